"""The scripts of a report with interactive figures, as parts of its one file."""

from __future__ import annotations

import base64
import gzip
import hashlib
from pathlib import Path

_STATIC = Path(__file__).parents[2] / "web" / "static"
_DRAWING = (_STATIC / "vendored" / "echarts" / "echarts.min.js", _STATIC / "charts.js")
"""The scripts that draw the charts of the dashboard, in the order in which they run."""
_SWITCH = Path(__file__).with_name("figures.js")


def write_scripts(body: str, script: str) -> tuple[str, str]:
    """Return a page's script elements, its own `script` first, and the policy that allows them.

    Both are empty for a page without a script whose body has no figure with charts. The scripts
    that draw are packed until a reader first asks for a chart: a report that is only read costs a
    third of their size and no time.
    """
    elements, allowed = (f"\n<script>{script}</script>", [script]) if script else ("", [])
    if "<metadata>" in body:
        drawing = "\n".join(path.read_text(encoding="utf-8") for path in _DRAWING)
        packed = base64.b64encode(gzip.compress(drawing.encode(), mtime=0)).decode()
        switch = _SWITCH.read_text(encoding="utf-8")
        elements += f'\n<script type="application/gzip" id="drawing">{packed}</script>\n<script>{switch}</script>'
        allowed += [switch, drawing]
    hashes = [base64.b64encode(hashlib.sha256(code.encode()).digest()).decode() for code in allowed]
    sources = "".join(f" 'sha256-{digest}'" for digest in hashes)
    return elements, "; script-src" + sources if hashes else ""

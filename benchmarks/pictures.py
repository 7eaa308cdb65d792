"""Pictures of the dashboard's pages, for the documentation and for eyes that look for faults.

    python -m benchmarks.pictures [FOLDER] [--pages studies,search] [--looks wide,phone,dark,dark-phone] [--height 900]

Makes the studies of tests/support/house_of_studies.py, serves them, and saves each page as PNG with few colours;
without a folder into docs/figures/pages, in light and 1,280 pixels wide. `--height 0`: the whole page.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from PIL import Image

from benchmarks.options import words_of
from graft.web.settings import Settings
from tests.support.browser import Browser, browser
from tests.support.house_of_studies import house
from tests.support.servers import serving

DOCS = Path(__file__).parents[1] / "docs" / "figures" / "pages"
PAGES = {
    "studies": "/",
    "search": "/studies/rate-or-dropout",
    "arms": "/studies/scorers",
    "transfer": "/studies/quick-transfer",
    "failed": "/studies/out-of-memory",
    "waiting": "/studies/next-rates",
    "empty": "/studies/just-begun",
    "table": "/studies/rate-or-dropout/trials?sort=objective&group=model.scorer",
    "trial": "/studies/rate-or-dropout/trials/17",
    "curves": "/studies/rate-or-dropout?trials=17,31",
    "matrix": "/studies/quick-transfer/matrix?source=add&target=memorize",
    "workers": "/studies/rate-or-dropout/workers",
    "figures": "/studies/rate-or-dropout/figures",
    "queue": "/queue",
    "compare": "/compare?study=rate-or-dropout&study=just-begun",
    "compare-arms": "/compare?study=scorers&study=scorers-again",
    "choose": "/compare",
    "nothing": "/?q=nothing",
    "login": "/login",
    "refused": "/studies/none",
    "addresses": "/addresses",
}
IN_DOCS = ("studies", "search", "arms", "transfer", "table", "trial", "matrix", "queue", "compare-arms")
LOOKS = {"wide": (1280, "light"), "phone": (390, "light"), "dark": (1280, "dark"), "dark-phone": (390, "dark")}
TALLEST = 6_000
_COLOURS = 128


def take(page: Browser, address: str, look: str, height: int, path: Path) -> None:
    """Save a page as a picture of few colours."""
    width, scheme = LOOKS[look]
    page.open(address, (width, height or 900))
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    tall = height or min(page.run("document.documentElement.scrollHeight"), TALLEST)
    page.call("Emulation.setDeviceMetricsOverride", width=width, height=tall, deviceScaleFactor=1, mobile=False)
    page.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    page.picture(path)
    with Image.open(path) as picture:
        few = picture.convert("RGB").quantize(_COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(path, optimize=True)
    print(f"{path.name}: {path.stat().st_size:,} bytes, {len(page.complaints)} complaints", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=DOCS)
    parser.add_argument("--pages", type=words_of(PAGES), default=[*IN_DOCS])
    parser.add_argument("--looks", type=words_of(LOOKS), default=["wide"])
    parser.add_argument("--height", type=int, default=900)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    # Chromium's helpers may still write when it has ended.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        url = f"sqlite:///{folder}/graft.db"
        with (
            house(url),
            serving(Settings(database=url, rate=1e4, burst=10_000)) as address,
            browser(Path(folder)) as page,
        ):
            for name in options.pages:
                for look in options.looks:
                    ending = "" if look == "wide" else f"-{look}"
                    take(page, address + PAGES[name], look, options.height, options.folder / f"{name}{ending}.png")


if __name__ == "__main__":
    main()

"""What MkDocs is told beside mkdocs.yml: pages made from the code, pages of the root, and that all works offline."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
ROOT_PAGES = {"index.md": "README.md"} | {name: name for name in ("BENCHMARKS.md", "CHANGELOG.md", "CONTRIBUTING.md")}
"""Page of the site -> the file of the repository's root that it is."""


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are not files of docs/."""
    sys.path.insert(0, str(ROOT))  # the code that is described is this repository's, also where another is installed
    from docs.generate import pages

    texts = dict(pages()) | {page: (ROOT / name).read_text() for page, name in ROOT_PAGES.items()}
    for path, text in texts.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links between docs/ and the root, as they are right in the repository, become right in the site."""
    if page.file.src_uri in ROOT_PAGES:
        return re.sub(r"(?<=\]\()(?:docs/|(README\.md))", lambda found: "index.md" if found[1] else "", markdown)
    return re.sub(r"(?<=\]\()((?:\.\./)*)\.\./(?=[A-Z]+\.md)", r"\1", markdown)


def on_post_build(config: Any) -> None:
    """Fail where a page would fetch anything from elsewhere."""
    from docs.offline import fetched

    for path in sorted(Path(config.site_dir).rglob("*")):
        if path.suffix in (".html", ".css") and (found := fetched(path.read_text())):
            raise PluginError(f"{path.name} fetches {found}")

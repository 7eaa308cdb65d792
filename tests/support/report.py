"""A report as a browser's parser reads it."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

from graft.report.data import StudyData
from graft.report.study import render
from tests.support.synthetic_studies import metrics_frame, study_data, study_row, trial_row, trials_frame

EVIL = '<script>alert("1 & 2")</script>|`$x_1$`'
VOID = {"meta", "br", "hr", "img", "link"}


class Page(HTMLParser):
    """A page read as a browser would: tags in order, all attributes, the text outside of styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.ids: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        self.ids += [value for name, value in attrs if name == "id" and value]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def assert_inert(page: Page) -> None:
    """All tags are closed, no script but those of figures, nothing is fetched, every reference has its target."""
    assert page.open == []
    assert page.tags.count("script") in (0, 2)  # the switch and, packed, what it runs
    assert not [name for tag, name, _ in page.attributes if tag == "script" and name not in ("type", "id")]
    assert not {"iframe", "link", "object", "embed", "form", "base"} & set(page.tags)
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    references = {value for _, name, value in page.attributes if name in ("href", "xlink:href", "src", "action")}
    references |= {
        f"#{name}" for _, _, value in page.attributes for name in re.findall(r"url\(#([^)]*)\)", value or "")
    }
    assert all(reference and reference.startswith(("#", "data:image/")) for reference in references)
    assert len(page.ids) == len(set(page.ids))
    assert {reference[1:] for reference in references if reference and reference[0] == "#"} <= set(page.ids)


def html(study: StudyData, folder: Path) -> Page:
    render(study, folder / "page.html")
    assert [path.name for path in folder.iterdir()] == ["page.html"]
    return Page((folder / "page.html").read_text(encoding="utf-8"))


def evil_study(text: str = EVIL) -> StudyData:
    """Every text that comes from a user tries to be a script."""
    rows = [
        trial_row(
            number,
            number // 4,
            "finished",
            0.1 + number,
            params={text: text if number else "x", f"{text}dropout".replace('"', ""): number / 10, "shared": text},
            config={"task": {text: 3}},
        )
        for number in range(8)
    ]
    metrics = [
        (number, 1, name, variant, condition, 0.5 + number)
        for number in range(8)
        for name, condition in ((text, text), (text, ""), ("tvd", ""))
        for variant in ("raw", text)
    ]
    row = study_row(name=text, objective=f"{text}/raw", state=text)
    return study_data(row, trials_frame(rows), metrics_frame(metrics))

"""The tables and figures of the five papers: which are made here, and from which space."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Literal

import yaml

from graft.files import check_ending
from graft.report.rendering.document import Document, Paragraph, Picture, Table
from graft.report.sections import Omission
from graft.report.study import WRITERS, collect_sections, lay_out, number_figures, read, write_document
from spaces import plugins
from spaces.errors import StudyError
from spaces.messages import no_such
from storage.frames import Reader

State = Literal["whole", "part", "none"]


@dataclass(frozen=True, kw_only=True)
class Item:
    """A table or figure of a paper."""

    name: str
    """The paper and its name of the item: `003/figure-4`."""
    shows: str
    state: State
    """The part of it that is made here, at whatever scale."""
    missing: str = ""
    space: str = ""
    """The packaged space at the paper's scale, or at ours where that is not known; empty for none."""
    cut: str = ""
    """The same space cut to a laptop; empty for none."""
    report: Literal["study", "transfer", "nonlinearities", "attention", "temperature", "norms", "formulas", ""] = ""
    """The report that makes it, `formulas` without a study; empty where nothing does."""
    options: str = ""
    """Further options of the command of another report than `study`."""
    sections: Sequence[str] = ()
    """The sections of a study's report that make it."""

    def command(self, study: str = "STUDY") -> str:
        """Return the command that makes the item of a study of its space; empty where none does."""
        if self.report == "formulas":
            return f"search report paper {self.name} -o FILE.html"
        if self.report == "study":
            return f"search report paper {self.name} {study} -o FILE.html"
        trial = " TRIAL" if self.report in ("attention", "temperature", "norms") else ""
        options = f" {self.options}" if self.options else ""
        return f"search report {self.report} {study}{trial}{options} -o FILE.html" if self.report else ""


@cache
def read_items() -> Sequence[Item]:
    """Return all items, paper by paper."""
    text = resources.files(__package__ or "").joinpath("items.yaml").read_text("utf-8")
    return [Item(name=name, **fields) for name, fields in yaml.safe_load(text).items()]


def find_item(name: str) -> Item:
    """Return the named item of one study or of formulas; StudyError with advice for others."""
    items = {item.name: item for item in read_items()}
    if name not in items:
        raise StudyError(no_such("table or figure of a paper", name, list(items)))
    item = items[name]
    if not item.report:
        raise StudyError(f"{name} ({item.shows}) is not made here; missing: {item.missing}")
    if item.report not in ("study", "formulas"):
        raise StudyError(f"{name} ({item.shows}) is made by: {item.command()}")
    return item


def write_item(reader: Reader, item: Item, study: str, path: Path) -> None:
    """Write the item as a study has it, .html or .md; StudyError if it cannot be made of it."""
    check_ending(path, WRITERS)
    data = read(reader, study)
    named = (section for section in collect_sections(data) if plugins.name_of(section) in item.sections)
    sections = [section for section in named if data.ended.height and section.fits and section.applies]
    if not sections:
        raise StudyError(
            f"{item.name} cannot be made of {study}: it has nothing for {' or '.join(item.sections)}; "
            f"`search launch {item.cut or item.space}` makes a study that has"
        )
    made = list(lay_out(sections, number_figures(sections)))
    if not any(isinstance(block, Picture | Table) for block in made):
        reasons = " ".join(block.text for block in made if isinstance(block, Omission))
        raise StudyError(
            f"{item.name} cannot be made of {study}: {reasons} `search launch {item.cut or item.space}` makes a study "
            "of which it can"
        )
    paper, _, label = item.name.partition("/")
    opening = f"{label.replace('-', ' ').capitalize()} of paper {paper}, {item.shows}, of the study {study}."
    if item.missing:
        opening += f" Not here: {item.missing.replace('`', '')}."
    blocks = [Paragraph(text=opening), *made]
    write_document(Document(title=f"{item.name} of {study}", blocks=blocks), path)

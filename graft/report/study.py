"""The report of one study: its state, and the sections that apply, with their figures numbered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import polars as pl
import polars.selectors as cs

from graft.files import check_ending, writing
from graft.plugins.families import families, packaged_names
from graft.plugins.stored import read_outside
from graft.report.data import StudyData
from graft.report.rendering import html, markdown
from graft.report.rendering.document import Block, Document, Heading, Paragraph, Table
from graft.report.rendering.formatting import number
from graft.report.sections import FigureNumbers, Omission, Part, Section
from graft.stored.fingerprints import SURROGATE, read_fingerprints
from graft.stored.params import StoredParams
from graft.stored.studies import describe_objective, read_transfer_tasks
from search.analysis.prior_use import READ, PriorUse, assess_prior
from search.analysis.study.scores import Reserved
from search.analysis.study.trials import count_states
from spaces import parse_stored, plugins
from spaces.errors import PluginError, SpaceError
from spaces.experiment import ARM, ExperimentSpace
from spaces.messages import no_such
from spaces.plugins.active import using
from spaces.transfer import TransferSpace
from storage.frames import Reader
from storage.frames.columns import TRIALS
from storage.frames.study import StudyReader

WRITERS: dict[str, Callable[[Document, Path], None]] = {".html": html.write, ".md": markdown.write}
"""Ending of a file -> the function that writes it."""

_LEFT_OUT = {
    "params",
    "draws",
    "config",
    "worker",
    "step_kind",
    "seed",
    "parent",
    "parent_step",
    "fence",
    "deaths",
}
_COLUMNS = tuple(
    name
    for name, dtype in TRIALS.items()
    if name not in _LEFT_OUT and not name.endswith("id") and not dtype.is_temporal()
)
"""Columns of trials that a report may count or rank by; it reads params and configs apart."""
_HEADINGS = {Part.FIGURES: "Figures"}


def read(reader: Reader, study: str, *, runs_code: bool = True) -> StudyData:
    """Return a study's data, for as long as the reader is open; StudyError if there is none.

    Its tasks of a transfer and its prior are read by the plug-ins that are stored with the study.
    Without `runs_code`, a study that has any is read as one without tasks and prior.
    """
    stored, times = reader.study(study), ("number", "started_at", "finished_at")
    lasted = (pl.col("finished_at") - pl.col("started_at")).dt.total_microseconds() / 1e6
    data = StudyData(
        study=stored.row,
        load_trials=lambda: _read_trials(stored),
        load_metrics=stored.metric_batches,
        load_params=lambda: map(StoredParams(stored).renew, stored.trial_batches(columns=("number", "params"))),
        load_step_counts=stored.count_steps,
        load_conditions=lambda: read_fingerprints(reader, study),
        load_transfer_tasks=lambda: read_transfer_tasks(reader, stored.row),
        load_seconds=lambda: stored.trials(columns=times).select("number", seconds=lasted),
        load_prior=lambda: _read_prior(reader, stored),
        reserved=reserved_metrics(),
    )
    if runs_code or stored.sources().is_empty():
        return data
    return replace(data, load_transfer_tasks=dict, load_prior=lambda: None)


def _read_trials(study: StudyReader) -> pl.DataFrame:
    """Return the study's trials, with JSON for those that StudyData.trials names."""
    where = _FIRSTS.format(kept=_KEPT.format(id=study.row["id"]))
    firsts = study.trials(where=where, columns=("number", "params", "config"))
    best = study.trials(top=_BEST, columns=("number", "params"))
    if best["params"].str.json_path_match(f'$["{ARM}"]').count():  # an experiment
        best = study.trials(columns=("number", "params"))
    shown = firsts.join(best, on="number", how="full", coalesce=True)
    shown = shown.select("number", pl.coalesce("params", "params_right").alias("params"), "config")
    shown = StoredParams(study).renew(shown)
    words = cs.string().cast(pl.Categorical)
    batches = study.trial_batches(columns=_COLUMNS)
    trials = pl.concat([batch.with_columns(words) for batch in batches])
    return trials.rechunk().join(shown, on="number", how="left", maintain_order="left")


def _read_prior(reader: Reader, study: StudyReader) -> PriorUse | None:
    """Return the account of StudyData.load_prior."""
    text, name = study.row["space"], study.row["name"]
    if study.row["second_objective"] or not any(word in text for word in ("learned", "warm")):
        return None
    try:
        with using(read_outside(reader, name)):
            space = parse_stored(study.row, families())
            if isinstance(space, ExperimentSpace | TransferSpace):
                return None
            return assess_prior(space, study.trials("parent IS NULL", columns=READ))
    except (SpaceError, PluginError):  # in the language of another version of this program
        return None


_BEST = 100
"""Trials whose params are read: more than any table shows."""
_FIRSTS = """number IN (
SELECT min(number) FROM trials WHERE {kept} GROUP BY group_number
) AND 2 * (SELECT count(DISTINCT group_number) FROM trials WHERE {kept})
<= (SELECT count(*) FROM trials WHERE {kept})"""
"""Condition of the first kept trial of each group, unless the groups are no ensembles (list_groups)."""
_KEPT = "study_id = {id} AND objective IS NOT NULL AND feasible IS NOT FALSE"
"""Condition of the trials that `StudyData.ended` has."""


def reserved_metrics() -> list[Reserved]:
    """Return the metrics that sections keep to themselves."""
    return [section.reserved for section in map(_load, plugins.names(Section)) if section.reserved]


def render(data: StudyData, path: Path) -> None:
    """Write an .html file, or .md with `<stem>_figure1.svg` beside it; OutputError for others."""
    check_ending(path, WRITERS)
    write_document(document(data), path)


def write_document(document: Document, path: Path) -> None:
    """Write a report to a path that ends in one of WRITERS."""
    with writing(path):
        WRITERS[path.suffix](document, path)


def document(data: StudyData) -> Document:
    """Return the report in no format yet."""
    every = collect_sections(data)
    fitting = (section for section in every if section.fits and (data.ended.height or not section.needs_results))
    sections = [section for section in fitting if section.applies]
    blocks = _opening(data, sections)
    if not data.ended.height:
        text = "No trial has ended with a result yet, so there is nothing to compare and no figure to draw."
        blocks.append(Paragraph(text=text))
    blocks += lay_out(sections, number_figures(every))
    return Document(title=f"Study {data.study['name']}", blocks=blocks)


def _load(name: str) -> type[Section]:
    return plugins.load(Section, name)


def collect_sections(data: StudyData) -> list[Section]:
    """Return all sections there are, in their order."""
    after = {name: _load(name).after for name in plugins.names(Section)}
    members = [_load(name)(data=data) for name in order_sections(after)]
    return sorted(members, key=lambda section: section.part)


def order_sections(after: Mapping[str, str]) -> list[str]:
    """Return the names of sections in order; `after` maps each to the one it follows, or to "".

    Sections from outside come first of those that follow the same one, and last of those that
    follow none. Raises PluginError for a name that is no section, and for a circle.
    """
    packaged = set(packaged_names("section"))
    followers: dict[str, list[str]] = {}
    for name in sorted(after, key=lambda name: (name in packaged, name)):
        if after[name] and after[name] not in after:
            raise PluginError(f"section {name}: after: {no_such('section', after[name], sorted(after))}")
        followers.setdefault(after[name], []).append(name)
    order = list[str]()
    waiting = sorted(followers.get("", ()), key=lambda name: (name not in packaged, name))[::-1]
    while waiting:
        order.append(waiting.pop())
        waiting += reversed(followers.get(order[-1], ()))
    if circle := sorted(after.keys() - set(order)):
        raise PluginError(f"sections that follow each other in a circle: {', '.join(circle)}")
    return order


def number_figures(sections: Iterable[Section]) -> dict[str, int]:
    """Return section -> the number of its first figure, by the figures of those before it."""
    numbers: dict[str, int] = {}
    following = 1
    for section in sections:
        numbers[plugins.name_of(section)] = following
        following += section.figure_count
    return numbers


def _opening(data: StudyData, sections: Sequence[Section]) -> list[Block]:
    """Return the state of the study, what its sections found, and its trials by state."""
    study, counts = data.study, count_states(data.trials)
    started = f", started {study['created_at']:%Y-%m-%d %H:%M} UTC" if study["created_at"] else ""
    total = sum(counts.values())
    second = study.get("second_objective")
    aim = describe_objective(study)
    aim = f"Its objectives are to {aim} and to {second}" if second else f"Its objective is to {aim}"
    text = (
        f"The study is {study['state']}{started}. {aim}; "
        f"{number(total)} of {number(study['trials'])} planned trials exist."
    )
    steps, room = data.step_counts
    if room:
        text += f" Lane utilisation is {100 * steps / room:.1f} % ({number(steps)} of {number(room)} lane-steps)."
    if answered := [fingerprint.number for fingerprint in data.conditions if SURROGATE in fingerprint.methods]:
        count = data.trials.filter(pl.col("fingerprint").is_in(answered)).height
        text += f" {number(count)} of its trials are answers of a table's model, not trainings (`--surrogate`)."
    findings = [sentence for section in sections for sentence in section.findings()]
    blocks: list[Block] = [Paragraph(text=sentence) for sentence in (text, *findings)]
    if total:
        rows = [[state, number(count), f"{100 * count / total:.1f} %"] for state, count in counts.items()]
        blocks.append(Table(caption="Trials by state", header=["State", "Trials", "Share"], rows=rows))
    return blocks


def lay_out(sections: Sequence[Section], numbers: Mapping[str, int]) -> Iterable[Block]:
    """Yield the sections under their headings, and how their numbers are made."""
    names = [plugins.name_of(section) for section in sections]
    known = {name: numbers[name] for name in names}
    by_name = dict(zip(names, sections, strict=True))
    for part, members in groupby(names, key=lambda name: by_name[name].part):
        if part in _HEADINGS:
            yield Heading(text=_HEADINGS[part])
        omissions: list[Block] = []
        for name in members:
            if title := by_name[name].title:
                yield Heading(text=title)
            blocks = list(by_name[name].blocks(FigureNumbers(own=known[name], sections=known)))
            yield from (block for block in blocks if not isinstance(block, Omission))
            omissions += (block for block in blocks if isinstance(block, Omission))
        yield from omissions
    notes = [note for section in sections for note in section.notes]
    if notes:
        yield Heading(text="How these numbers are made")
    yield from (Paragraph(text=note) for note in notes)

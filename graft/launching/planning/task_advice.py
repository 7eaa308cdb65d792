"""A database's knowledge of a task, read and put into words before the task is searched again."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from graft.plugins.families import family_of, member_names
from graft.stored.fingerprints import SURROGATE
from graft.stored.studies import read_at, read_transfer_space
from search.analysis.statistics.power import WANTED_POWER
from search.analysis.statistics.verdicts import SURE
from search.analysis.task_advice import (
    COUNTS,
    FEWEST,
    Best,
    Evidence,
    Knob,
    Setting,
    SettingAdvice,
    TaskAdvice,
    advise_task,
)
from spaces import plugins
from spaces.errors import GraftError, PluginError, SpaceError, StudyError
from spaces.messages import no_such
from spaces.plugins import canonical_json
from spaces.reading import content_of
from spaces.reading.claim_section import claims_of_text
from spaces.records import State
from spaces.space import Space
from storage.frames import Reader, open_reader

_RANDOM = ("random", "qmc")
_SHOWN = 3
"""Settings that are written out for people."""
_KNOBS_NAMED = 3
"""Knobs that a dry run names."""
MOST = 5_000
"""The most trials that are read of a study; a configuration has some thousand bytes."""
_COLUMNS = ("number", "seed", "state", "objective", "model", "config", "params")


@dataclass(frozen=True, kw_only=True, repr=False)
class Known:
    """A database's knowledge of a task. Its `repr` is the text that `search advise TASK` prints."""

    task: str
    tasks: tuple[str, ...]
    """The tasks whose trials were read: the task itself, or others of its family if it has none."""
    family: str | None
    """The family that these tasks share with it; None for the task itself."""
    found: TaskAdvice

    def __repr__(self) -> str:
        return "\n".join(describe(self))


def read_task_advice(reader: Reader, task: str, difference: float | None = None, *, runs_code: bool = True) -> Known:
    """Return what the database knows of a task, or of its family if the task has no trials.

    Seeds are counted for a `difference` of two arms. Without `runs_code`, transfers with plug-ins
    of their own, which alone can read them, are left out. Raises GraftError for a difference not
    above 0, PluginError for an unknown task, StudyError if neither it nor its family has trials.
    """
    if difference is not None and not 0 < difference < math.inf:
        raise GraftError(f"difference {difference:g}: must be a number above 0")
    stored = sorted(reader.query("SELECT DISTINCT task FROM trials WHERE objective IS NOT NULL")["task"].drop_nulls())
    if task not in stored and task not in member_names("task"):
        raise PluginError(no_such("task", task, sorted({*member_names("task"), *stored})))
    if trials := _read_evidence(reader, [task], runs_code=runs_code):
        return Known(task=task, tasks=(task,), family=None, found=advise_task(trials, difference))
    family = family_of("task")
    members: dict[str, type] = {}
    for name in {task, *stored}:
        with suppress(PluginError):  # a task from outside that is not in use
            members[name] = plugins.load(family, name)
    kinds = members[task].__mro__[1:] if task in members else ()
    for kind in kinds:  # the narrowest family that the task shares with stored ones is the first
        if kind is family or not issubclass(kind, family):
            continue
        kin = sorted(name for name, member in members.items() if name != task and issubclass(member, kind))
        if kin and (evidence := _read_evidence(reader, kin, runs_code=runs_code)):
            names = tuple(sorted({json.loads(piece.setting.task)["name"] for piece in evidence}))
            return Known(task=task, tasks=names, family=kind.__name__, found=advise_task(evidence, difference))
    raise StudyError(
        f"no trial of {task}, or of a task of its family, has ended in this database: launch a random search of it "
        "(`sampler: random`), or name another with --storage"
    )


def _read_evidence(reader: Reader, tasks: Sequence[str], *, runs_code: bool = True) -> list[Evidence]:
    """Return the trained trials of some tasks by study and setting, the first MOST of each study.

    Unfinished studies with a claim, and trials of a transfer that got an architecture, are left
    out.
    """
    names = ", ".join("'" + task.replace("'", "''") + "'" for task in tasks)
    where = (
        f"number < {MOST} AND task IN ({names}) AND state IN ('finished', 'pruned', 'diverged') AND parent IS NULL "
        "AND feasible IS NOT FALSE "
        f"AND (step_kind IS NULL OR step_kind <> '{SURROGATE}')"
    )
    evidence: list[Evidence] = []
    for row in reader.studies().iter_rows(named=True):
        if row["state"] != "finished" and claims_of_text(row["space"]):
            continue
        trials = reader.study(row["name"]).trials(where, columns=_COLUMNS)
        if trials.is_empty():
            continue
        try:
            transfer = read_transfer_space(reader, row, runs_code=runs_code)
        except (SpaceError, PluginError):  # another version's, or code that may not run reads it
            continue
        content, states = content_of(row["space"], row["name"]), reader.study(row["name"]).counts()
        is_random, of_study = _is_random(content, states), (row["objective"], row["direction"], read_at(content))
        by_setting: dict[Setting, list[int]] = {}
        for index, trial in enumerate(trials.iter_rows(named=True)):
            if "architecture.trial" in json.loads(trial["params"]):
                continue
            objective, config = of_study, json.loads(trial["config"])
            if transfer:
                of_task = transfer.search_of(trial["number"]).objective
                objective = str(of_task), of_task.direction, of_task.at
            setting = Setting(canonical_json(config["task"]), trial["model"], *objective, config["training"]["steps"])
            by_setting.setdefault(setting, []).append(index)
        for setting, indices in by_setting.items():
            columns = trials[indices].select("seed", "state", "objective", "config", "params")
            evidence.append(Evidence(study=row["name"], setting=setting, trials=columns, is_random=is_random))
    return evidence


def _is_random(content: Any, states: Mapping[State, int]) -> bool:
    """Return True if a study's trials are random draws of one space that all train to their end.

    `states` counts its trials: a stopping policy that ended some may be gone from the space.
    """
    search = content.get("search", {})
    sampler = search.get("sampler", "random")
    name = sampler if isinstance(sampler, str) else sampler.get("name", next(iter(sampler), None))
    is_plain = not {"arms", "seeds", "confirm", "tasks", "transfer"} & content.keys()
    return is_plain and name in _RANDOM and not search.get("stopping") and "pruned" not in states


def describe(known: Known) -> Iterator[str]:
    """Yield the facts about a task in lines for people."""
    if known.family:
        yield f"{known.task} has no trials here; of its family ({known.family}): {', '.join(known.tasks)}"
    settings = known.found.settings
    for setting in settings[:_SHOWN]:
        yield from _describe_setting(setting)
    if (more := len(settings) - _SHOWN) > 0:
        yield f"{more} more setting{'s' * (more > 1)} with fewer trials: --format json has all"
    knobs = known.found.knobs
    if not knobs:
        yield f"ranges: not known: no study has {FEWEST} trials with draws of their own"
        return
    is_tested = any(knob.q is not None for knob in knobs)
    what = "the best tenth of random trials lay" if is_tested else "the best tenth lay (not random: untested)"
    yield f"ranges: where {what}, 10 % to 90 %, and all trials; q: that it is by chance, over all rows (Holm)"
    rows: list[tuple[str, str, str, str]] = []
    for knob in knobs:
        whole = f"of {knob.winners:,} among {len(knob.options)} options"
        if knob.least is not None and knob.most is not None:
            whole = f"of {knob.least:.3g} to {knob.most:.3g}"
        verdict = "" if knob.q is None else f"q = {knob.q:.2g}"
        if verdict and not knob.is_told:
            verdict = f"not told from chance ({verdict})"
        rows.append((knob.path, _spell_range(knob), whole, verdict))
    widths = [*(max(len(row[at]) for row in rows) for at in range(3)), 0]
    for row in rows:
        yield "  " + "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True))


def _describe_setting(advice: SettingAdvice) -> Iterator[str]:
    studies = f"{len(advice.studies):,} studies" if len(advice.studies) > 1 else advice.studies[0]
    yield f"{advice.setting.describe()}: {advice.trials:,} trials of {studies}, {advice.diverged:,} diverged"
    noise = "not known: no configuration was trained from two seeds; an experiment (`seeds: 8`) tells it"
    if advice.noise:
        noise = (
            f"standard deviation over seeds {advice.noise.spread:.3g} "
            f"({advice.noise.low:.3g} to {advice.noise.high:.3g}), "
            f"from {advice.noise.trials:,} trials of {advice.noise.configurations:,} configurations"
        )
    yield f"  noise   {noise}"
    if advice.seeds:
        yield (
            f"  seeds   of each of two arms, to find a difference with a probability of {100 * WANTED_POWER:.0f} % at "
            f"level {SURE:g}: {_list_seeds(advice)}"
        )
    if not advice.random:
        yield "  best    not known: no trial was drawn at random and trained to its end"
        return
    minimize = advice.setting.direction == "minimize"
    known = [best for best in advice.best if best.expected is not None]
    yield f"  best    of N new random trials, by {advice.random:,} that were drawn (expected; 95 % interval)"
    yield from (f"          {best.trials:>6,}  {_describe_best(best, minimize=minimize)}" for best in known)
    if len(known) < len(advice.best):
        yield f"          {advice.best[len(known)].trials:>6,}  not known: more than were drawn"


def _list_seeds(advice: SettingAdvice) -> str:
    return ", ".join(f"{difference:.3g}: {seeds:,}" for difference, seeds in advice.seeds)


def _describe_best(best: Best, *, minimize: bool) -> str:
    """Return `0.27 (0.2 to 0.39)`, or `0.27 (at most 0.39)` if the better end is not known."""
    if best.worse is None:
        return f"{best.expected:.4g} (no interval)"
    if best.better is None:
        return f"{best.expected:.4g} ({'at most' if minimize else 'at least'} {best.worse:.4g})"
    low, high = sorted((best.better, best.worse))
    return f"{best.expected:.4g} ({low:.4g} to {high:.4g})"


def _spell_range(knob: Knob) -> str:
    if knob.low is not None and knob.high is not None:
        return f"{knob.low:.3g} to {knob.high:.3g}"
    ranked = sorted(knob.options, key=lambda option: -knob.options[option][0])
    return ", ".join(f"{option} {knob.options[option][0]}" for option in ranked[:_KNOBS_NAMED])


def to_json(known: Known) -> dict[str, Any]:
    """Return the facts about a task as docs/schemas/advise-task.json describes them."""
    return {
        "format": 1,
        "task": known.task,
        "tasks": known.tasks,
        "family": known.family,
        "level": SURE,
        "power": WANTED_POWER,
        "settings": [
            {
                **advice.setting._asdict(),
                "task": json.loads(advice.setting.task),
                "studies": list(advice.studies),
                "trials": advice.trials,
                "diverged": advice.diverged,
                "random": advice.random,
                "noise": asdict(advice.noise) if advice.noise else None,
                "seeds": [{"difference": difference, "seeds": seeds} for difference, seeds in advice.seeds],
                "best": [asdict(best) for best in advice.best],
            }
            for advice in known.found.settings
        ],
        "knobs": [
            {
                **asdict(knob),
                "options": {name: {"winners": wins, "trials": every} for name, (wins, every) in knob.options.items()},
                "is_told": knob.is_told,
            }
            for knob in known.found.knobs
        ],
    }


def note_task(url: str, space: Space) -> list[str]:
    """Return two or three lines about a space's task; none if the database has no trials of it."""
    config = space.sample(0, lambda _: 0.5).config
    name = config["task"]["name"]
    try:
        with open_reader(url) as reader:
            evidence = _read_evidence(reader, [name])
    except GraftError:  # a dry run tells what runs, whatever the database is
        return []
    goal, steps = space.search_of(0).objective, config["training"]["steps"]
    task, model = canonical_json(config["task"]), config["model"]["name"]
    setting = Setting(task, model, str(goal), goal.direction, goal.at, steps)
    same = [piece for piece in evidence if piece.setting == setting]
    if not same:
        count = sum(piece.trials.height for piece in evidence)
        return [f"{count:,} trials of {name} in other settings: search advise {name}"] if count else []
    planned = max(1, space.search.trials)
    task_advice = advise_task(same, counts=sorted({*COUNTS, planned}))
    [advice] = task_advice.settings
    lines = [f"{advice.trials:,} trials of this setting"]
    if known := [best for best in advice.best if best.expected is not None and best.trials <= planned]:
        best = _describe_best(known[-1], minimize=goal.direction == "minimize")
        lines[0] += f"; the best of {known[-1].trials:,} random ones is {best}"
    if advice.noise and advice.seeds:
        spread, pairs = f"{advice.noise.spread:.3g}", _list_seeds(advice)
        lines.append(f"standard deviation over seeds {spread}; seeds that find a difference: {pairs}")
    if clear := [knob for knob in task_advice.knobs if knob.is_told][:_KNOBS_NAMED]:
        ranges = ", ".join(f"{knob.path} {_spell_range(knob)}" for knob in clear)
        lines.append(f"the best tenth had {ranges}")
    return lines

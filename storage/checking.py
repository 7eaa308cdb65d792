"""Whether a database is what its writers left: the file itself, and what our own tables promise beyond their keys."""

from __future__ import annotations

from dataclasses import dataclass

from spaces.errors import GraftError
from spaces.settings import MOST_TRIALS
from storage.databases import find_database
from storage.databases.sqlite import Sqlite
from storage.frames import Reader, open_reader
from storage.row_values import find_strange_values

_FINITE = "BETWEEN -1.7976931348623157e308 AND 1.7976931348623157e308"
_ENDED = "('finished', 'pruned', 'diverged', 'failed')"
_FURTHEST = "SELECT trial_id, max(step) AS step FROM metrics GROUP BY trial_id"

_RULES = {
    "a study's state is running, stopped, finished or failed, its direction minimize or maximize": """
        SELECT name FROM studies WHERE state NOT IN ('running', 'stopped', 'finished', 'failed')
        OR direction NOT IN ('minimize', 'maximize')""",
    "a study's objective is a metric and a variant, the second one a direction and a quantity": """
        SELECT name FROM studies WHERE objective NOT LIKE '%_/%_'
        OR second_objective NOT LIKE 'minimize %' AND second_objective NOT LIKE 'maximize %'""",
    "a study's name is its own": "SELECT name FROM studies GROUP BY name HAVING count(*) > 1",
    "a study's steps are those of its trials that ended": f"""
        SELECT name FROM studies WHERE steps <> (SELECT coalesce(sum(trials.steps - coalesce(parent_step, 0)), 0)
        FROM trials WHERE study_id = studies.id AND trials.state IN {_ENDED})""",
    "a finished study has no trial that waits or runs": """
        SELECT trials.id FROM trials JOIN studies ON studies.id = study_id
        WHERE studies.state = 'finished' AND trials.state IN ('queued', 'running')""",
    "a trial belongs to a study": "SELECT id FROM trials WHERE study_id NOT IN (SELECT id FROM studies)",
    f"a trial's id is its study's times {MOST_TRIALS:,} plus its number": f"""
        SELECT id FROM trials WHERE id <> CAST(study_id AS bigint) * {MOST_TRIALS} + number
        OR number NOT BETWEEN 0 AND {MOST_TRIALS - 1}""",
    "a trial's number is its own in its study": """
        SELECT min(id) FROM trials GROUP BY study_id, number HAVING count(*) > 1""",
    "a trial's state is queued, running, finished, pruned, diverged or failed": f"""
        SELECT id FROM trials WHERE state NOT IN {_ENDED} AND state NOT IN ('queued', 'running')""",
    "a finished trial has an objective or says why not": """
        SELECT id FROM trials WHERE state = 'finished' AND objective IS NULL AND error IS NULL""",
    "a diverged or failed trial says why": """
        SELECT id FROM trials WHERE state IN ('diverged', 'failed') AND error IS NULL""",
    "only a finished or pruned trial has an objective, a finite one": f"""
        SELECT id FROM trials WHERE objective IS NOT NULL
        AND (state NOT IN ('finished', 'pruned') OR NOT objective {_FINITE})""",
    "a trial that ended says when, and no other does": f"""
        SELECT id FROM trials WHERE (state IN {_ENDED}) <> (finished_at IS NOT NULL)""",
    "a running trial says where and since when": """
        SELECT id FROM trials WHERE state = 'running' AND (worker IS NULL OR started_at IS NULL)""",
    "a trial goes on from an earlier trial of its study, at a step": """
        SELECT child.id FROM trials AS child
        LEFT JOIN trials AS known ON known.study_id = child.study_id AND known.number = child.parent
        WHERE (child.parent IS NULL) <> (child.parent_step IS NULL)
        OR (child.parent IS NOT NULL AND (known.id IS NULL OR child.parent >= child.number))""",
    "a metric belongs to a trial": """
        SELECT DISTINCT trial_id FROM metrics WHERE trial_id NOT IN (SELECT id FROM trials)""",
    "a metric's value is finite or NULL": f"SELECT DISTINCT trial_id FROM metrics WHERE NOT value {_FINITE}",
    "a trial has metrics up to the step that it reached": f"""
        SELECT id FROM trials JOIN ({_FURTHEST}) AS furthest ON trial_id = id WHERE furthest.step > trials.steps""",
    "a trial that waits is where its furthest checkpoint is, or at step 0": """
        SELECT id FROM trials WHERE state = 'queued'
        AND steps <> (SELECT coalesce(max(step), 0) FROM checkpoints WHERE trial_id = trials.id)""",
    "a checkpoint belongs to a trial that runs or waits, and to one of its starts": """
        SELECT trial_id FROM checkpoints LEFT JOIN trials ON trials.id = trial_id
        WHERE trials.id IS NULL OR state NOT IN ('running', 'queued') OR checkpoints.fence > trials.fence""",
    "a worker belongs to a study": "SELECT id FROM workers WHERE study_id NOT IN (SELECT id FROM studies)",
    "a trial's fingerprint is one of its study": """
        SELECT trials.id FROM trials LEFT JOIN fingerprints
        ON fingerprints.study_id = trials.study_id AND fingerprints.number = trials.fingerprint
        WHERE trials.fingerprint IS NOT NULL AND fingerprints.number IS NULL""",
    "a fingerprint belongs to a study, and follows an earlier one": """
        SELECT number FROM fingerprints WHERE study_id NOT IN (SELECT id FROM studies)
        OR previous NOT BETWEEN 0 AND number - 1""",
    "a source belongs to a study": "SELECT module FROM sources WHERE study_id NOT IN (SELECT id FROM studies)",
    "a change belongs to a study": "SELECT number FROM changes WHERE study_id NOT IN (SELECT id FROM studies)",
    "an entry of the queue belongs to a study": """
        SELECT study_id FROM submissions WHERE study_id NOT IN (SELECT id FROM studies)""",
    "an architecture belongs to a trial of its study": """
        SELECT architectures.id FROM architectures LEFT JOIN trials ON trials.id = trial_id
        WHERE trials.id IS NULL OR trials.study_id <> architectures.study_id""",
    "the state of an entry of the queue is waiting, running, paused, cancelled, done or failed": """
        SELECT study_id FROM submissions
        WHERE state NOT IN ('waiting', 'running', 'paused', 'cancelled', 'done', 'failed')""",
    "a token's role is read, submit or admin": "SELECT name FROM tokens WHERE role NOT IN ('read', 'submit', 'admin')",
    "a learned non-linearity is of mlp or attention": """
        SELECT id FROM architectures WHERE component NOT IN ('mlp', 'attention')""",
    "a metric's step is 0 or more": "SELECT DISTINCT trial_id FROM metrics WHERE step < 0",
}
"""What holds -> a SELECT of what breaks it."""

_NUMBERS = """
SELECT DISTINCT trial_id FROM metrics
WHERE typeof(step) <> 'integer' OR typeof(value) NOT IN ('integer', 'real', 'null') OR typeof(name) <> 'text'
OR typeof(variant) <> 'text' OR typeof(condition) <> 'text'
"""
_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What was found; each line is one sentence."""

    rules: int
    """How many were looked at."""
    faults: tuple[str, ...]
    """Rules that are broken, and by what."""
    notes: tuple[str, ...]
    """What is no fault, but should be known."""


def check(url: str) -> Verdict:
    """Look at everything in a database; StorageError if there is none, or one of another schema.

    Nothing is changed. It may be written meanwhile: each rule is looked at as of one moment.
    """
    damage = find_database(url).damage()
    if damage:
        return Verdict(rules=1, faults=tuple(damage), notes=())
    with open_reader(url) as reader:
        rules = dict(_RULES)
        if isinstance(reader.database, Sqlite):  # PostgreSQL's columns take numbers, or none
            rules["a metric's step and value are numbers"] = _NUMBERS
        broken = [(rule, reader.query(sql).to_series().to_list()) for rule, sql in rules.items()]
        faults = tuple(f"{rule}; broken by {_list(found)}" for rule, found in broken if found)
        strange = tuple(find_strange_values(reader))
        notes = () if strange else tuple(_find_abandoned(reader))
        return Verdict(rules=2 + len(rules), faults=(*strange, *faults), notes=notes)


def describe_damage(url: str) -> str | None:
    """What to tell where something went wrong over a database, if rows of it are not what Graft writes; else None."""
    try:
        faults = check(url).faults
    except GraftError:
        return None
    if not faults:
        return None
    first, *others = faults
    more = f", and {len(others):,} more; `search db check` lists them" if others else ""
    return f"{find_database(url).name}: a row is not what Graft writes: {first}{more}"


def _find_abandoned(reader: Reader) -> list[str]:
    """Studies whose trials run, or that are called running, under a controller that is gone."""
    notes: list[str] = []
    for name, state in reader.studies().select("name", "state").iter_rows():
        count = reader.study(name).counts().get("running", 0)
        if (count or state == "running") and not reader.study(name).holder():
            notes.append(
                f"study {name} is {state} with {count:,} running trials, but no process is at it; resume it with "
                f"`search resume {name}`, which starts them again"
            )
    return notes


def _list(found: list[object]) -> str:
    shown = ", ".join(map(str, found[:_SHOWN]))
    return shown if len(found) <= _SHOWN else f"{shown} and {len(found) - _SHOWN:,} more"

"""Checks a database: the file itself, and the rules of our tables beyond their keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import islice

from sqlalchemy import Table

from spaces.bounds import MOST_TRIALS
from spaces.errors import GraftError
from spaces.plugins.files import list_changes
from storage.databases import find_database
from storage.databases.sqlite import Sqlite
from storage.frames import Reader, open_reader
from storage.row_values import describe_value, find_broken_columns, find_broken_rule
from storage.schema import metadata, metrics

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
    "a claim belongs to a study": "SELECT number FROM claim_events WHERE study_id NOT IN (SELECT id FROM studies)",
    "a result on a test set belongs to a trial": """
        SELECT test_results.number FROM test_results LEFT JOIN trials
        ON trials.study_id = test_results.study_id AND trials.number = test_results.number WHERE trials.id IS NULL""",
    "a reveal belongs to a study": "SELECT number FROM reveals WHERE study_id NOT IN (SELECT id FROM studies)",
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
"""Rule -> a SELECT of the rows that break it."""

_NUMBERS = """
SELECT DISTINCT trial_id FROM metrics
WHERE typeof(step) <> 'integer' OR typeof(value) NOT IN ('integer', 'real', 'null') OR typeof(name) <> 'text'
OR typeof(variant) <> 'text' OR typeof(condition) <> 'text'
"""
_SHOWN = 5
"""The most rows of a column, or of a rule, that are named."""
_BATCH = 5_000


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The result of a check; each line is one sentence."""

    rules: int
    """The number of rules that were checked."""
    faults: tuple[str, ...]
    """Broken rules, with the rows that break them."""
    notes: tuple[str, ...]
    """Facts that are no fault, but should be known."""


def check(url: str) -> Verdict:
    """Check everything in a database, and the files on this machine that its studies read.

    Nothing is changed; each rule is checked at one moment. StorageError for another schema.
    """
    damage = find_database(url).damage()
    if damage:
        return Verdict(rules=1, faults=tuple(damage), notes=())
    with open_reader(url) as reader:
        strange = tuple(_find_strange_values(reader))
        broken = tuple(_find_broken_rules(reader))
        notes = () if strange else tuple(_find_notes(reader))
        return Verdict(rules=2 + len(_rules_of(reader)), faults=(*strange, *broken), notes=notes)


def describe_damage(url: str) -> str | None:
    """Return a line on the first row that Graft does not write, or None; all rows take a minute."""
    database = find_database(url)
    try:
        with open_reader(url) as reader, closing(_find_faults(reader)) as faults:
            first = next(faults, None)
        first = first or next(iter(database.damage()), None)
    except GraftError:
        return None
    if first is None:
        return None
    problem = f"a row is not what Graft writes: {first}"
    return f"{database.name}: {problem}; `search db check` lists all such rows"


def _find_faults(reader: Reader) -> Generator[str]:
    yield from _find_strange_values(reader)
    yield from _find_broken_rules(reader)


def _rules_of(reader: Reader) -> Mapping[str, str]:
    if not isinstance(reader.database, Sqlite):  # PostgreSQL's columns take numbers, or none
        return _RULES
    return {**_RULES, "a metric's step and value are numbers": _NUMBERS}


def _find_strange_values(reader: Reader) -> Iterator[str]:
    """Yield a line for each value that no Graft writes: its place, the value and its rule.

    The first _SHOWN of a column are named, others counted; metrics have their own rules.
    """
    for table in metadata.sorted_tables:
        if table is not metrics:
            yield from _look_at(reader, table)


def _look_at(reader: Reader, table: Table) -> Iterator[str]:
    columns = list(table.columns)
    counts: Counter[str] = Counter()
    rows = reader.rows(f"SELECT {', '.join(column.name for column in columns)} FROM {table.name}")
    while batch := list(islice(rows, _BATCH)):
        broken = find_broken_columns(columns, batch)
        for row in batch if broken else ():
            values = dict(zip((column.name for column in columns), row, strict=True))
            key = {column.name: values[column.name] for column in table.primary_key}
            for column in broken:
                rule = find_broken_rule(column, (values[column.name],))
                counts[column.name] += rule is not None
                if rule and counts[column.name] <= _SHOWN:
                    yield describe_value(column, key, values[column.name], rule)
    for name, count in counts.items():
        if count > _SHOWN:
            yield f"{name} in {count - _SHOWN:,} more rows of {table.name} is no such value"


def _find_broken_rules(reader: Reader) -> Iterator[str]:
    """Yield a line for each broken rule, with the first rows that break it."""
    for rule, sql in _rules_of(reader).items():
        rows = reader.rows(sql)
        examples = [str(row[0]) for row in islice(rows, _SHOWN)]
        more = sum(1 for _ in rows)
        if examples:
            yield f"{rule}; broken by {', '.join(examples)}" + (f" and {more:,} more" if more else "")


def _find_notes(reader: Reader) -> Iterator[str]:
    """Yield a line for each study without its controller, and for each changed file."""
    studies = reader.studies().select("name", "state").rows()
    for name, state in studies:
        count = reader.study(name).counts().get("running", 0)
        if (count or state == "running") and not reader.study(name).holder():
            yield (
                f"study {name} is {state} with {count:,} running trials, but no process is at it; resume it with "
                f"`search resume {name}`, which starts them again"
            )
    for name, _ in studies:
        versions = reader.study(name).data() or {}
        for _, _, change in list_changes({file: known[-1] for file, known in versions.items()}):
            yield f"study {name}: {change}"

"""The claims of stored studies: their locks, their edits, and looks at results before the end."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import polars as pl

from graft.plugins.families import version
from spaces.errors import RowError
from spaces.experiment import Claim
from spaces.messages import one_line
from spaces.records import TERMINAL
from spaces.settings import MetricName
from storage import record_look, take_waiting_requests
from storage.claim_events import hash_claims
from storage.frames import Reader
from storage.frames.study import StudyReader


def read_history(study: StudyReader) -> list[dict[str, Any]]:
    """Return the events of a study's claims, in order, the claims of each as JSON values.

    Raises RowError for a row that was edited by hand, so that its claims lack their hash.
    """
    rows = study.claim_events().drop("study_id", "request").iter_rows(named=True)
    history = [{**row, "claims": json.loads(row["claims"])} for row in rows]
    for row in history:
        if hash_claims(row["claims"]) != row["sha256"]:
            raise RowError(
                f"study {study.row['name']}: row {row['number']} of claim_events was edited by hand: its claims do not "
                f"have the SHA-256 {row['sha256'][:16]} under which they were locked"
            )
    return history


def claims_in(history: Sequence[dict[str, Any]]) -> list[Claim]:
    """Return the claims that are in force after these events."""
    return [Claim(**claim) for claim in history[-1]["claims"]] if history else []


def read_scores(study: StudyReader, claim: Claim) -> pl.DataFrame:
    """Return the results, if any, of a claim's arms (`search.analysis.arms.claims.score_claim`)."""
    objective, name = study.row["objective"], claim.metric.partition("/")[0]
    values = pl.DataFrame() if claim.metric == objective else study.metrics([name])
    return _score(study, claim, values, objective)


def read_test_scores(study: StudyReader, claim: Claim) -> pl.DataFrame | None:
    """Return the results as `read_scores` does, on test sets; None before the study is revealed."""
    values = _read_test_values(study, claim)
    return None if values is None else _score(study, claim, values, objective="")


def _score(study: StudyReader, claim: Claim, values: pl.DataFrame, objective: str) -> pl.DataFrame:
    from search.analysis.arms.claims import score_claim  # scipy, which recording a look does not need
    from search.analysis.arms.experiment import READ, choose_trials, read_arms

    compared = choose_trials(read_arms(study.trials(columns=READ)), study.row["direction"])
    return score_claim(compared, values, claim, objective)


def _read_test_values(study: StudyReader, claim: Claim) -> pl.DataFrame | None:
    """Return a claim's metric on test sets, a row of METRICS a trial, at the validation to count.

    The best one is the first whose objective equals the trial's. None before the study is revealed.
    """
    opened = study.test_results()
    if opened is None:
        return None
    metric = MetricName.of(claim.metric)
    values = opened.filter(**metric._asdict())
    if claim.at == "best":
        reached = study.trials(columns=("number", "objective"))
        best = study.metrics([metric.name]).filter(**metric._asdict()).join(reached, on="number")
        first = best.filter(pl.col("value") == pl.col("objective")).group_by("number").agg(pl.col("step").min())
        values = values.join(first, on=["number", "step"], how="semi", maintain_order="left")
    return values.sort("step").group_by("number").last().select(values.columns)


def put_side_by_side(study: StudyReader, claim: Claim) -> pl.DataFrame | None:
    """Return the means of both arms of a claim by validation, on test sets, and over fresh seeds.

    `validation` and `test` are the claim's metric for the configuration whose objective was the best
    of `configurations` by validation, means over the seeds that it was chosen by. `fresh_validation`
    and `fresh_test` are its means over `fresh_seeds` seeds that had no part in the choice, null if
    there are none. Returns None before the study is revealed.
    """
    from search.analysis.arms.experiment import READ, rank_configurations, read_arms

    values = _read_test_values(study, claim)
    if values is None:
        return None
    arms = read_arms(study.trials(columns=READ)).filter(pl.col("arm").is_in([claim.arm, claim.than]))
    # Chosen by the objective, as the configurations that the fresh seeds train were.
    ranked = rank_configurations(arms, study.row["direction"])
    best = ranked.filter(pl.col("rank") == 0).select("arm", "configuration")
    if claim.metric != study.row["objective"]:
        arms = arms.drop("objective").join(_read_last_values(study, claim), on="number", how="left")
    arms = arms.join(values.select("number", test="value"), on="number", how="left", maintain_order="left")
    counts = (
        arms.filter(pl.col("rank").is_null()).group_by("arm").agg(configurations=pl.col("configuration").n_unique())
    )
    chosen = arms.join(best, on=["arm", "configuration"], how="semi")
    means = chosen.group_by("arm").agg(seeds=pl.len(), validation=pl.mean("objective"), test=pl.mean("test"))
    fresh = (
        arms.filter(pl.col("rank") == 0)
        .group_by("arm")
        .agg(fresh_seeds=pl.len(), fresh_validation=pl.mean("objective"), fresh_test=pl.mean("test"))
    )
    return counts.join(means, on="arm", how="left").join(fresh, on="arm", how="left").sort("arm", descending=True)


def _read_last_values(study: StudyReader, claim: Claim) -> pl.DataFrame:
    """Return number and objective: the last value by validation of a claim's metric."""
    metric = MetricName.of(claim.metric)
    validations = study.metrics([metric.name]).filter(**metric._asdict())
    return validations.sort("step").group_by("number").agg(objective=pl.col("value").last())


def describe_history(history: Sequence[dict[str, Any]]) -> list[str]:
    """Return a line for each lock, edit and refused change, and one for all looks."""
    lines: list[str] = []
    for row in history:
        after = f"after {row['results']:,} trials had ended" if row["results"] else "before any trial had ended"
        when = f"{row['created_at']:%Y-%m-%d %H:%M} UTC"
        if row["event"] == "refused":
            lines.append(f"a change was refused {when}, {after}: {one_line(row['command'])}")
        elif row["event"] != "looked":
            lines.append(f"{row['event']} {when}, {after}, SHA-256 {row['sha256'][:16]}")
    looks = [row for row in history if row["event"] == "looked"]
    if looks:
        commands = ", ".join(dict.fromkeys(one_line(row["command"]) for row in looks))
        counts = ", ".join(str(row["results"]) for row in looks[:10])
        lines.append(f"looked at before the end {len(looks):,} times ({commands}), when {counts} trials had ended")
    return lines


def list_claims(reader: Reader) -> pl.DataFrame:
    """Return a row per claim: its text, its lock and the results by then, edits, looks."""
    rows: list[dict[str, Any]] = []
    for study in reader.studies()["name"]:
        history = read_history(reader.study(study))
        events = [row["event"] for row in history]
        for claim in claims_in(history):
            first = history[0]
            counts = {"edits": events.count("edited"), "looks": events.count("looked")}
            locked = {"locked_at": first["created_at"], "results_at_lock": first["results"]}
            rows.append({"study": study, "claim": str(claim), "seeds": claim.seeds, **locked, **counts})
    return pl.DataFrame(rows, schema=_COLUMNS)


_COLUMNS = {
    "study": pl.String(),
    "claim": pl.String(),
    "seeds": pl.Int64(),
    "locked_at": pl.Datetime("us", "UTC"),
    "results_at_lock": pl.Int64(),
    "edits": pl.Int64(),
    "looks": pl.Int64(),
}


def note_query(reader: Reader, url: str, sql: str, command: str) -> list[str]:
    """Record a query as a look at each study whose results it may show; return a line for each."""
    if not _RESULTS.search(sql):
        return []
    open_ones = reader.studies().filter(pl.col("state") != "finished")["name"]
    return [line for study in open_ones if (line := note_look(reader, url, study, command))]


_RESULTS = re.compile(r"\b(trials|metrics|checkpoints)\b", re.IGNORECASE)


def note_look(reader: Reader, url: str, study: str, command: str) -> str | None:
    """Record a look at results of an unfinished study with a claim; return a line about it.

    Raises StorageError if the look cannot be recorded, so that none is hidden.
    """
    stored = reader.study(study)
    if not claims_in(read_history(stored)):
        return None
    if stored.row["state"] == "finished":
        take_waiting_requests(url)  # looks that were recorded while only a launch could write
        return None
    ended = sum(count for state, count in stored.counts().items() if state in TERMINAL)
    record_look(url, study, command, version(), ended)
    return f"{study} has a claim and is not finished: this look at its results is recorded"

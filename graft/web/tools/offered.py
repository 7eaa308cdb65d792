"""The tools that programs have.

A caller may do what the token's role allows: the tools call what the addresses below `/api` call.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from dataclasses import replace
from typing import IO, Annotated, Any, Literal

from pydantic import Field

from graft.launching.planning.preview import list_packaged_spaces
from graft.launching.planning.task_advice import describe, read_task_advice, to_json
from graft.plugins.families import FAMILIES, packaged_names, version
from graft.report.arms import compare_two
from graft.report.claims import read_claim_report
from graft.stored.claims import note_look
from graft.stored.export import write_table
from graft.stored.params import PARAMS_PREFIX, StoredParams
from graft.stored.status import read_status
from graft.stored.studies import describe_objective, read_studies
from graft.stored.trials import LISTED, find_varying_params, list_varying, read_trial, summarise_metrics
from graft.stored.waiting import wait_for_study
from graft.web.callers import Caller, find_entry
from graft.web.charts.conditions import LONGEST, check_condition, check_order
from graft.web.models import Submission
from graft.web.security.refusals import RefusalError
from graft.web.submissions import advise_space, describe_family, describe_space
from graft.web.tools.answers import LARGEST, cut_file, digest, list_rows
from graft.web.tools.parts import PART_CURSOR, give_part, start_of
from graft.web.tools.tool import TOOLS, tool
from spaces.bounds import MOST_TRIALS, PRIORITIES
from spaces.experiment import ARM
from spaces.messages import no_such
from spaces.reading import catalogue
from storage import StoreRequest, reveal_study
from storage.frames import Reader
from storage.new_study import NAME
from storage.queue_entries import OPEN

__all__ = ["TOOLS"]

Study = Annotated[str, Field(pattern=f"^{NAME}$", description="Name of a study.")]
Space = Annotated[
    str, Field(max_length=200_000, description="YAML text of a space, or the name of a packaged one: quick/every.")
]
Cursor = Annotated[int, Field(ge=0, le=1_000_000_000, description="`next` of the answer before.")]
PartCursor = Annotated[
    str, Field(pattern=PART_CURSOR, coerce_numbers_to_str=True, description="`next` of the answer before.")
]
Arm = Annotated[str, Field(max_length=250, description="STUDY:ARM")]
Condition = Annotated[
    str | None, Field(max_length=LONGEST, description="optimizer.learning_rate > 1e-3 AND state = 'x'")
]
Order = Annotated[str | None, Field(max_length=LONGEST, description="steps DESC; objective: best first.")]
Size = Annotated[int, Field(ge=1, le=100_000, description="Of `text`, about.")]
Answer = dict[str, Any]

_PART = "study bytes text next? note?"
_VERDICTS = "rows study state made_in_advance commands history next? note?"
_SETTLE_SECONDS = 0.2
"""Seconds after which a study whose process is gone counts as interrupted (`wait_for_study`)."""
_OF_TRIALS = ("number", "group_number", "state", "steps", "objective", "second_objective", "feasible", "seed", "error")
_KEPT_PARAMS = (f"{PARAMS_PREFIX}{ARM}", f"{PARAMS_PREFIX}transfer.")
"""Params of a list of trials even if all of these have one value."""


def _look(caller: Caller, reader: Reader, study: str, name: str) -> dict[str, str]:
    """Record a look at interim results of a study with a claim; return the note on it, if any."""
    note = note_look(reader, caller.settings.database, study, f"mcp {name}")
    return {"note": note} if note else {}


@tool("rows next? service?")
def _list(
    caller: Caller,
    what: Literal["studies", "queue", "spaces", "plugins"] = "studies",
    family: Annotated[
        str | None, Field(max_length=40, description="Of plug-ins: task, model, scorer ... All: leave out.")
    ] = None,
    cursor: Cursor = 0,
) -> Answer:
    """List studies, the queue, packaged spaces, or plug-ins (tasks, scorers ...)."""
    if what == "spaces":
        return list_rows(list_packaged_spaces()[cursor:].to_dicts(), cursor)
    if what == "plugins":
        rows = [{"family": name, "names": packaged_names(name)} for name in FAMILIES]
        if family is not None:
            of_family = _read_family(caller, family)
            about = {row["name"]: row["about"] for row in of_family}
            rows = [{"name": name, "about": text} for name, text in about.items()]
        return list_rows(rows[cursor:], cursor)
    with caller.read() as reader:
        if what == "queue":
            facts = {"service": reader.service() or "none runs: start `search serve`"}
            return list_rows([vars(entry) for entry in reader.queue()][cursor:], cursor, facts)
        newest = read_studies(reader, archived=False, tag=None).reverse()
        columns = ("name", "state", "ended", "trials", "objective", "created_at", "note")
        # The best result of a study with a claim is a look, which `query` records.
        return list_rows(newest[cursor:].select(columns).to_dicts(), cursor)


def _read_family(caller: Caller, family: str) -> list[dict[str, Any]]:
    if family not in FAMILIES:
        raise RefusalError(400, no_such("family", family, [*FAMILIES]))
    return caller.checker.ask(describe_family, (family,), caller.client)


@tool("name? about? rows? study? bytes? text? next? note?")
def _describe(
    caller: Caller,
    name: Annotated[
        str, Field(max_length=200, description="space/quick/every, scorer/ssa, task/every, study/NAME ...")
    ],
    cursor: PartCursor = "0",
) -> Answer:
    """Show the YAML text of a packaged space or of a study, or the fields of a plug-in."""
    kind, _, subject = name.partition("/")
    if kind == "space":
        if subject not in catalogue.packaged_spaces():
            raise RefusalError(404, no_such("packaged space", subject, catalogue.packaged_spaces()))
        file = io.BytesIO(catalogue.read_text(subject).encode())
        return cut_file(file, start_of(cursor), LARGEST // 2, name=name)
    if kind == "study":
        return _export(caller, study=subject, what="space", cursor=cursor)
    if kind not in FAMILIES:
        raise RefusalError(400, f"name: {no_such('kind of thing', kind, ['space', 'study', *FAMILIES])}, before the /")
    rows = [row for row in _read_family(caller, kind) if row["name"] == subject]
    if not rows:
        raise RefusalError(404, no_such(kind, subject, packaged_names(kind)))
    keys = ("field", "rule", "default")
    fields = [{key: row[key] for key in keys} for row in rows if row["field"]]
    start = start_of(cursor)
    return list_rows(fields[start:], start, {"name": name, "about": rows[0]["about"]})


@tool("good study trials summary notes claims")
def _check(caller: Caller, space: Space) -> Answer:
    """Check a space, and say in a line what it would train; an error names line and rule."""
    description = caller.checker.ask(describe_space, (caller.submitted(space),), caller.client)
    return {"good": True, **digest(description)}


@tool("rows lines? study? state? note? next?")
def _advise(
    caller: Caller,
    space: Space | None = None,
    task: Annotated[str | None, Field(max_length=60, description="In place of a space.")] = None,
    pilot: Annotated[
        int | None, Field(ge=3, le=100, description="Queue a study of so many other seeds, to advise by.")
    ] = None,
    cursor: Cursor = 0,
) -> Answer:
    """Say what the seeds of a space's claim can find, by finished studies of the same arms; or what
    trials know of a task: noise over seeds, best of N, ranges of the best tenth.

    `pilot` first queues one, of other seeds: watch it, then advise again.
    """
    if task is not None and space is None and pilot is None:
        with caller.read() as reader:
            known = read_task_advice(reader, task, runs_code=False)
        return list_rows(to_json(known)["settings"][cursor:], cursor, {"lines": [*describe(known)]})
    if space is None or task is not None:
        raise RefusalError(400, "advise: give a space, or a task alone")
    if pilot is not None:
        caller.require("submit")
    values = caller.submitted(space), caller.settings.database, pilot
    advice = caller.checker.ask(advise_space, values, caller.client)
    if pilot is None:
        return list_rows(advice["rows"][cursor:], cursor, {"lines": advice["lines"]})
    request = StoreRequest.from_json(json.dumps(advice["request"]))
    terms = caller.check_terms(Submission(space=space, owner=caller.holder.name))
    return {"rows": [], **_queue(caller, replace(request, terms=terms))}


@tool("study state note?", role="submit")
def _submit(
    caller: Caller,
    space: Space,
    study: Annotated[Study | None, Field(description="Its name, in place of the space's.")] = None,
    priority: Annotated[int, Field(ge=PRIORITIES[0], le=PRIORITIES[-1])] = 0,
) -> Answer:
    """Put a space into the queue; its claim is locked. The same space again changes nothing."""
    asked = Submission(space=space, study=study, priority=priority, owner=caller.holder.name)
    return _queue(caller, caller.plan(asked))


def _queue(caller: Caller, request: StoreRequest) -> Answer:
    entry = caller.send(request)
    state = entry.state if entry else "sent: another process has the database, and the next service takes it up"
    return {"study": request.study, "state": state, **_note_service(caller)}


def _note_service(caller: Caller) -> dict[str, str]:
    with caller.read() as reader:
        served = reader.service()
    return {} if served else {"note": "no service runs, so nothing in the queue trains: start `search serve`"}


@tool("study outcome state planned ended counts eta_seconds? note?")
def _watch(
    caller: Caller,
    study: Study,
    seconds: Annotated[float, Field(ge=0, le=50, description="Wait so long at most for its end.")] = 20.0,
) -> Answer:
    """Wait for a study's end: outcome finished, failed, stopped, interrupted, or else timeout.

    Shows no result.
    """
    # The server asks again until `seconds` are over, and keeps no thread meanwhile.
    with caller.read() as reader:
        outcome = wait_for_study(reader, study, _SETTLE_SECONDS)
        status = read_status(reader, study)
        entry = find_entry(reader, study)
    goes_on, left = outcome == "timeout", status.eta_seconds
    return {
        "study": study,
        "outcome": outcome,
        "state": status.state,
        "planned": status.progress.planned,
        "ended": status.progress.ended,
        "counts": dict(status.progress.counts),
        **({"eta_seconds": digest(left)} if left is not None and goes_on else {}),
        **(_note_service(caller) if goes_on and entry and entry.state in OPEN else {}),
    }


@tool("rows next? objective note?")
def _query(
    caller: Caller,
    study: Study,
    where: Condition = None,
    sort: Order = None,
    limit: Annotated[int, Field(ge=1, le=200)] = 10,
    cursor: Cursor = 0,
) -> Answer:
    """List trials of a study with the values in which they differ."""
    condition, order = check_condition(where), check_order(sort)
    with caller.read() as reader:
        stored = reader.study(study)
        # By number the page after a cursor is exact; the cursor of the tool is the next trial.
        after = cursor if order else cursor - 1
        page = stored.trial_page(condition, order, after, limit + 1, LISTED)
        params = StoredParams(stored).unpack(page.head(limit))
        kept = {*_OF_TRIALS, *find_varying_params(stored), *list_varying(params)}
        note = _look(caller, reader, study, "query")
    facts = {"objective": describe_objective(stored.row)}
    rows = params.select(name for name in params.columns if name in kept or name.startswith(_KEPT_PARAMS)).to_dicts()
    answer = list_rows(rows, facts={**facts, **note})
    shown = len(answer["rows"])
    answer.pop("next", None)
    if shown < page.height:
        answer["next"] = cursor + shown if order else page["number"][shown]
    return answer


@tool("one than objective direction note?")
def _compare(
    caller: Caller, one: Arm, other: Annotated[Arm, Field(description="STUDY:ARM, the one that it is compared with.")]
) -> Answer:
    """Compare two arms over the same seeds: difference, 95 % interval, q, verdict.

    A claim is decided by the tool claim alone.
    """
    with caller.read() as reader:
        comparison = compare_two(reader, one, other)
        notes: Counter[str] = Counter()
        for study in dict.fromkeys(side.partition(":")[0] for side in (one, other)):
            notes.update(_look(caller, reader, study, "compare").values())
    return digest({"one": one, "than": other, **comparison, "note": "; ".join(notes) or None})


@tool(_VERDICTS)
def _claim(caller: Caller, study: Study, cursor: Cursor = 0) -> Answer:
    """Decide the claims of a study: confirmed, refuted or undecided, with gain, interval, power and
    the seeds still needed; and their history.
    """
    with caller.read() as reader:
        note = _look(caller, reader, study, "claim")
        report = read_claim_report(reader, study)
    whole = report.to_json()
    lines = report.sentences()[len(report.results) :]
    facts = {name: whole[name] for name in ("study", "state", "made_in_advance", "commands")}
    return list_rows(whole["claims"][cursor:], cursor, {**facts, "history": lines, **note})


@tool(_VERDICTS, role="submit")
def _reveal(caller: Caller, study: Study) -> Answer:
    """Open the sealed test results of a finished study with a claim `on: test`, and decide it.

    Recorded with your name; nothing more can be trained in the study. `next` is a cursor of claim.
    """
    with caller.read() as reader:
        caller.check_owner(reader, study)
    holder = caller.holder
    reveal_study(caller.settings.database, study, person=holder.name, version=version(), by=holder.requester)
    return _claim(caller, study=study)


@tool("rows study number state steps config replay next? note?")
def _show(
    caller: Caller, study: Study, number: Annotated[int, Field(ge=0, lt=MOST_TRIALS)], cursor: Cursor = 0
) -> Answer:
    """Show one trial: configuration, metrics (lowest, highest, last), and its replay command."""
    with caller.read() as reader:
        row, metrics = read_trial(reader, study, number)
        note = _look(caller, reader, study, "show")
    facts = {
        "study": study,
        **{name: row[name] for name in ("number", "state", "steps", "seed", "objective", "error")},
        "config": row["config"],
        "replay": f"search replay {study} {number}",
        **note,
    }
    return list_rows(summarise_metrics(metrics)[cursor:].to_dicts(), cursor, facts)


@tool(_PART)
def _export(
    caller: Caller,
    study: Study,
    what: Literal["trials", "metrics", "space", "claim"] = "trials",
    cursor: PartCursor = "0",
    bytes: Size = LARGEST // 2,  # noqa: A002 - the name that programs know
) -> Answer:
    """Give a table (CSV), the claim report (JSON) or the space of a study, a part at a time."""
    with caller.read() as reader:
        stored = reader.study(study)

        def write(file: IO[bytes]) -> None:
            if what == "space":
                file.write(stored.row["space"].encode())
            elif what == "claim":
                file.write(json.dumps(read_claim_report(reader, study).to_json()).encode())
            else:
                write_table(reader, study, what, "csv", file)

        subject = (caller.settings.database, study, what)
        part = give_part(subject, write, cursor, bytes, study=study)
        return {**part, **({} if what == "space" else _look(caller, reader, study, "export"))}

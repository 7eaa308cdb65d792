"""The tools that programs have: what each of them does, and what it says of itself.

Who calls may do what the role of the token allows, as over HTTP: the tools call what the addresses below `/api` call.
"""

from __future__ import annotations

import io
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from graft.launching.planning.preview import list_packaged_spaces
from graft.plugins.families import FAMILIES, packaged_names, version
from graft.report.arms import compare_two
from graft.report.claims import read_claim_report
from graft.stored.claims import note_look
from graft.stored.export import write_table
from graft.stored.status import read_status
from graft.stored.studies import read_studies
from graft.stored.trials import LISTED, find_varying_params, read_metrics, read_trial, summarise_metrics, unpack_params
from graft.stored.waiting import wait_for_study
from graft.web.charts.conditions import check_condition, check_order
from graft.web.checking import Checker
from graft.web.routes.queue import check_owner, check_role, quotas_of, send
from graft.web.security.access import Holder
from graft.web.security.refusals import RefusalError
from graft.web.settings import Settings
from graft.web.submissions import Submitted, advise_space, describe_family, describe_space
from graft.web.tools.answers import LARGEST, cut_file, digest, list_rows
from graft.web.tools.arguments import (
    Advise,
    Arguments,
    Check,
    Compare,
    Describe,
    Export,
    List,
    OfStudy,
    Query,
    Show,
    Submit,
    Watch,
)
from spaces.messages import no_such
from spaces.reading import catalogue
from storage import QueueRequest, Terms, open_reader, reveal_study
from storage.frames import Reader
from storage.queue_entries import OPEN
from storage.tokens import Role


@dataclass(frozen=True, kw_only=True)
class Caller:
    """On whose behalf a tool is called, and on which terms."""

    settings: Settings
    checker: Checker
    holder: Holder
    client: str
    """The person, for whom one check is made at a time."""

    def submitted(self, space: str, study: str | None = None) -> Submitted:
        """Return a space that comes by a tool, with what it may name and ask for; a packaged one by its name."""
        text = catalogue.read_text(space) if space in catalogue.packaged_spaces() else space
        return Submitted(
            text=text,
            name=study,
            plugins=self.settings.plugins,
            resources=self.settings.resources,
            quotas=quotas_of(self.settings, self.holder),
        )

    def look(self, reader: Reader, study: str, tool: str) -> dict[str, str]:
        """Record a look at interim results of a study with a claim; `note` says so, where there is one."""
        note = note_look(reader, self.settings.database, study, f"mcp {tool}")
        return {"note": note} if note else {}


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A tool: what it says of itself, who may call it, and what it does."""

    name: str
    about: str
    arguments: type[Arguments]
    run: Callable[[Caller, Any], dict[str, Any]]
    role: Role = "read"
    answer: Mapping[str, Any]
    """JSON Schemas of what its answer has, by name."""
    optional: tuple[str, ...] = ("next", "note", "service", "eta_seconds")
    """What may be missing in an answer."""


def _list(caller: Caller, asked: List) -> dict[str, Any]:
    start = asked.cursor
    if asked.what == "spaces":
        return list_rows(list_packaged_spaces()[start:].to_dicts(), start)
    if asked.what == "plugins":
        if asked.family is None:
            rows = [{"family": name, "names": packaged_names(name)} for name in FAMILIES]
            return list_rows(rows[start:], start)
        rows = _read_family(caller, asked.family)
        first = {row["name"]: {"name": row["name"], "about": row["about"]} for row in rows}
        return list_rows([*first.values()][start:], start)
    with open_reader(caller.settings.database, caller.settings.answer_seconds) as reader:
        if asked.what == "queue":
            entries = [vars(entry) for entry in reader.queue()]
            facts = {"service": reader.service() or "none runs: start `search serve`"}
            return list_rows(entries[start:], start, facts)
        newest = read_studies(reader, archived=False, tag=None).reverse()
        columns = ("name", "state", "ended", "trials", "objective", "created_at", "note")
        # The best result of a study with a claim is a look, which `query` records.
        return list_rows(newest[start:].select(columns).to_dicts(), start)


def _read_family(caller: Caller, family: str) -> list[dict[str, Any]]:
    if family not in FAMILIES:
        raise RefusalError(400, no_such("family", family, [*FAMILIES]))
    return caller.checker.ask(describe_family, (family,), caller.client)


def _describe(caller: Caller, asked: Describe) -> dict[str, Any]:
    kind, _, name = asked.name.partition("/")
    if kind == "space":
        if name not in catalogue.packaged_spaces():
            raise RefusalError(404, no_such("packaged space", name, catalogue.packaged_spaces()))
        return cut_file(_file_of(catalogue.read_text(name)), asked.cursor, LARGEST // 2, name=asked.name)
    if kind == "study":
        return _export(caller, Export(study=name, what="space", cursor=asked.cursor, bytes=LARGEST // 2))
    if kind not in FAMILIES:
        raise RefusalError(400, f"name: {no_such('kind of thing', kind, ['space', 'study', *FAMILIES])}, before the /")
    rows = [row for row in _read_family(caller, kind) if row["name"] == name]
    if not rows:
        raise RefusalError(404, no_such(kind, name, packaged_names(kind)))
    fields = [{key: row[key] for key in ("field", "rule", "default")} for row in rows if row["field"]]
    return list_rows(fields[asked.cursor :], asked.cursor, {"name": asked.name, "about": rows[0]["about"]})


def _check(caller: Caller, asked: Check) -> dict[str, Any]:
    found = caller.checker.ask(describe_space, (caller.submitted(asked.space),), caller.client)
    return {"good": True, **digest(found)}


def _advise(caller: Caller, asked: Advise) -> dict[str, Any]:
    if asked.pilot is not None:
        check_role(caller.holder, "submit")
    values = caller.submitted(asked.space), caller.settings.database, asked.pilot
    found = caller.checker.ask(advise_space, values, caller.client)
    if asked.pilot is None:
        return list_rows(found["rows"], facts={"lines": found["lines"]})
    request = QueueRequest.from_json(json.dumps(found["request"]))
    return {"rows": [], **_queue(caller, replace(request, terms=_terms(caller, 0)))}


def _terms(caller: Caller, priority: int) -> Terms:
    quotas = quotas_of(caller.settings, caller.holder)
    return Terms(
        owner=caller.holder.name, priority=priority, max_lanes=int(quotas.lanes) if quotas is not None else None
    )


def _submit(caller: Caller, asked: Submit) -> dict[str, Any]:
    submitted = caller.submitted(asked.space, asked.study)
    quotas = quotas_of(caller.settings, caller.holder)
    if quotas:
        quotas.check("priority", asked.priority)
    request = caller.checker.check(submitted, caller.client)
    return _queue(caller, replace(request, terms=_terms(caller, asked.priority)))


def _queue(caller: Caller, request: QueueRequest) -> dict[str, Any]:
    entry = send(caller.settings, caller.holder, request)
    state = entry.state if entry else "sent: another process has the database, and the next service takes it up"
    return {"study": request.study, "state": state, **_note_service(caller)}


def _note_service(caller: Caller) -> dict[str, str]:
    with open_reader(caller.settings.database, caller.settings.answer_seconds) as reader:
        served = reader.service()
    return {} if served else {"note": "no service runs, so nothing in the queue trains: start `search serve`"}


_SETTLE_SECONDS = 0.2
"""After which a study whose process is gone counts as interrupted (`wait_for_study`)."""


def _watch(caller: Caller, asked: Watch) -> dict[str, Any]:
    with open_reader(caller.settings.database, caller.settings.answer_seconds) as reader:
        outcome = wait_for_study(reader, asked.study, _SETTLE_SECONDS)
        status = read_status(reader, asked.study)
        open_entry = any(one.study == asked.study and one.state in OPEN for one in reader.queue())
    left = status.eta_seconds
    return {
        "study": asked.study,
        "outcome": outcome,
        "state": status.state,
        "planned": status.progress.planned,
        "ended": status.progress.ended,
        "counts": dict(status.progress.counts),
        **({"eta_seconds": digest(left)} if left is not None and outcome == "timeout" else {}),
        **(_note_service(caller) if open_entry and outcome == "timeout" else {}),
    }


def _query(caller: Caller, asked: Query) -> dict[str, Any]:
    where, order = check_condition(asked.where), check_order(asked.sort)
    with open_reader(caller.settings.database, caller.settings.answer_seconds) as reader:
        stored = reader.study(asked.study)
        note = caller.look(reader, asked.study, "query")
        # By number the page after a cursor is exact, however the study changes; the cursor of the tool is the next one.
        after = asked.cursor if order else asked.cursor - 1
        found = stored.trial_page(where, order, after, asked.limit + 1, LISTED)
        varying = find_varying_params(stored)
        study = stored.row
    numbers = found["number"].to_list()
    params = unpack_params(found.head(asked.limit))
    kept = [name for name in params.columns if name in _OF_TRIALS or name in varying]
    facts = {"objective": study["objective"], "direction": study["direction"], **note}
    answer = list_rows(params.select(kept).to_dicts(), facts=facts)
    shown = len(answer["rows"])
    answer.pop("next", None)
    if shown < len(numbers):
        answer["next"] = asked.cursor + shown if order else numbers[shown]
    return answer


_OF_TRIALS = ("number", "group_number", "state", "steps", "objective", "second_objective", "feasible", "seed", "error")


def _compare(caller: Caller, asked: Compare) -> dict[str, Any]:
    with open_reader(caller.settings.database, caller.settings.answer_seconds) as reader:
        notes: Counter[str] = Counter()
        for study in dict.fromkeys(side.partition(":")[0] for side in (asked.one, asked.other)):
            notes.update(caller.look(reader, study, "compare").values())
        found = compare_two(reader, asked.one, asked.other)
    return digest({"one": asked.one, "than": asked.other, **found, "note": "; ".join(notes) or None})


def _claim(caller: Caller, asked: OfStudy) -> dict[str, Any]:
    with open_reader(caller.settings.database, caller.settings.answer_seconds) as reader:
        note = caller.look(reader, asked.study, "claim")
        report = read_claim_report(reader, asked.study)
    whole = report.to_json()
    lines = report.sentences()[len(report.results) :]
    facts = {name: whole[name] for name in ("study", "state", "made_in_advance", "commands")}
    return list_rows(whole["claims"], facts={**facts, "history": lines, **note})


def _reveal(caller: Caller, asked: OfStudy) -> dict[str, Any]:
    with open_reader(caller.settings.database, caller.settings.answer_seconds) as reader:
        check_owner(reader, asked.study, caller.holder)
    holder = caller.holder
    reveal_study(caller.settings.database, asked.study, person=holder.name, version=version(), by=holder.requester)
    return _claim(caller, asked)


def _show(caller: Caller, asked: Show) -> dict[str, Any]:
    with open_reader(caller.settings.database, caller.settings.answer_seconds) as reader:
        note = caller.look(reader, asked.study, "show")
        row = read_trial(reader, asked.study, asked.number)
        metrics = summarise_metrics(read_metrics(reader, row["id"]))
    facts = {
        "study": asked.study,
        **{name: row[name] for name in ("number", "state", "steps", "seed", "objective", "error")},
        "config": json.loads(row["config"]),
        "replay": f"search replay {asked.study} {asked.number}",
        **note,
    }
    return list_rows(metrics.to_dicts(), facts=facts)


def _export(caller: Caller, asked: Export) -> dict[str, Any]:
    with open_reader(caller.settings.database, caller.settings.answer_seconds) as reader:
        stored = reader.study(asked.study)
        if asked.what == "space":
            return cut_file(_file_of(stored.row["space"]), asked.cursor, asked.bytes, study=asked.study)
        note = caller.look(reader, asked.study, "export")
        if asked.what == "claim":
            file = _file_of(json.dumps(read_claim_report(reader, asked.study).to_json()))
            return cut_file(file, asked.cursor, asked.bytes, study=asked.study, **note)
        with tempfile.TemporaryFile() as table:
            write_table(reader, asked.study, asked.what, "csv", table)
            return cut_file(table, asked.cursor, asked.bytes, study=asked.study, **note)


def _file_of(text: str) -> io.BytesIO:
    return io.BytesIO(text.encode())


_ROWS: Mapping[str, Any] = {"type": "array", "items": {"type": "object"}}
_TEXT: Mapping[str, Any] = {"type": "string"}
_TEXTS: Mapping[str, Any] = {"type": "array", "items": _TEXT}
_COUNT: Mapping[str, Any] = {"type": "integer"}
_PART: Mapping[str, Any] = {"study": _TEXT, "bytes": _COUNT, "text": _TEXT, "next": _COUNT, "note": _TEXT}
_ENTRY: Mapping[str, Any] = {"study": _TEXT, "state": _TEXT, "note": _TEXT}

_VERDICTS: Mapping[str, Any] = {
    "rows": _ROWS, "study": _TEXT, "state": _TEXT, "made_in_advance": {"type": "boolean"}, "commands": _TEXTS,
    "history": _TEXTS, "next": _COUNT, "note": _TEXT,
}  # fmt: skip

TOOLS: Mapping[str, Tool] = {
    tool.name: tool
    for tool in (
        Tool(
            name="list",
            about="List studies, the queue, packaged spaces, or plug-ins (tasks, scorers ...).",
            arguments=List,
            run=_list,
            answer={"rows": _ROWS, "next": _COUNT, "service": _TEXT},
        ),
        Tool(
            name="describe",
            about="Show the YAML text of a packaged space or of a study, or the fields of a plug-in.",
            arguments=Describe,
            run=_describe,
            answer={"name": _TEXT, "about": _TEXT, "rows": _ROWS, **_PART},
            optional=("name", "about", "rows", *_PART),
        ),
        Tool(
            name="check",
            about="Check a space, and say in a line what it would train; an error names the line and the rule.",
            arguments=Check,
            run=_check,
            answer={
                "good": {"const": True}, "study": _TEXT, "trials": _COUNT, "summary": _TEXT, "notes": _TEXTS,
                "claims": _TEXTS,
            },
        ),
        Tool(
            name="advise",
            about="Say what the seeds of a space's claim can find, by finished studies of the same arms. `pilot` first "
            "queues one, of other seeds: watch it, then advise again.",
            arguments=Advise,
            run=_advise,
            answer={"rows": _ROWS, "lines": _TEXTS, **_ENTRY, "next": _COUNT},
            optional=("lines", *_ENTRY, "next"),
        ),
        Tool(
            name="submit",
            about="Put a space into the queue; its claim is locked. The same space again changes nothing.",
            arguments=Submit,
            run=_submit,
            role="submit",
            answer=_ENTRY,
        ),
        Tool(
            name="watch",
            about="Wait for the end of a study: outcome finished, failed, stopped, interrupted, or timeout while it "
            "goes on. Shows no result.",
            arguments=Watch,
            run=_watch,
            answer={
                "study": _TEXT, "outcome": _TEXT, "state": _TEXT, "planned": _COUNT, "ended": _COUNT,
                "counts": {"type": "object"}, "eta_seconds": {"type": "number"}, "note": _TEXT,
            },
        ),
        Tool(
            name="query",
            about="List trials of a study with the values in which they differ.",
            arguments=Query,
            run=_query,
            answer={"rows": _ROWS, "next": _COUNT, "objective": _TEXT, "direction": _TEXT, "note": _TEXT},
        ),
        Tool(
            name="compare",
            about="Compare two arms over the same seeds: difference, 95 % interval, q, verdict. A claim is decided by "
            "the tool claim alone.",
            arguments=Compare,
            run=_compare,
            answer={"one": _TEXT, "than": _TEXT, "objective": _TEXT, "direction": _TEXT, "note": _TEXT},
        ),
        Tool(
            name="claim",
            about="Decide the claims of a study: confirmed, refuted or undecided, with gain, interval, power and the "
            "seeds still needed; and their history.",
            arguments=OfStudy,
            run=_claim,
            answer=_VERDICTS,
        ),
        Tool(
            name="reveal",
            about="Open the sealed test results of a finished study with a claim `on: test`, and decide it. Recorded "
            "with your name; nothing more can be trained in the study.",
            arguments=OfStudy,
            run=_reveal,
            role="submit",
            answer=_VERDICTS,
        ),
        Tool(
            name="show",
            about="Show one trial: configuration, metrics (lowest, highest, last), and the command that replays it.",
            arguments=Show,
            run=_show,
            answer={
                "rows": _ROWS, "study": _TEXT, "number": _COUNT, "state": _TEXT, "steps": _COUNT,
                "config": {"type": "object"}, "replay": _TEXT, "next": _COUNT, "note": _TEXT,
            },
        ),
        Tool(
            name="export",
            about="Give a table (CSV), the claim report (JSON) or the space of a study, whole, a part at a time.",
            arguments=Export,
            run=_export,
            answer=_PART,
        ),
    )
}  # fmt: skip
"""Name -> tool. There are at most twelve, as a program reads all of this before it calls any."""


def call(caller: Caller, tool: Tool, arguments: Arguments) -> dict[str, Any]:
    """Return a tool's answer; raises RefusalError or another GraftError, one line."""
    check_role(caller.holder, tool.role)
    return tool.run(caller, arguments)

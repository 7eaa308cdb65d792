"""The page with the table of a study's trials, and the stars, tags and notes that people give."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Annotated, Any
from urllib.parse import urlencode

import polars as pl
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from graft.files import cell
from graft.launching.editing.administration import mark_trials
from graft.stored.params import PARAMS_PREFIX, StoredParams
from graft.stored.trials import LISTED, find_varying_params
from graft.web.callers import Submitter
from graft.web.charts.conditions import LONGEST, check_condition, check_order
from graft.web.charts.sampling import spell_draw
from graft.web.charts.specs import draw_effects
from graft.web.reading import Form, OpenReader, OpenStudy, refuse, settings_of
from graft.web.rendering import render
from graft.web.security.refusals import RefusalError
from search.analysis.study.value_groups import group_by_value
from spaces.bounds import MOST_TRIALS
from spaces.errors import StorageError, StudyError
from spaces.reading.transfer_section import has_one_direction, has_one_objective
from storage.frames.study import StudyReader
from storage.trial_notes import WORDS

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)

_ROWS = 100
"""Trials of a page."""
_GROUPED = 25_000
"""Trials from which groups are computed; of more about so many are taken, to be quick."""
_MOST_VARYING = 6
"""Values that are columns where none was chosen."""
_COLUMNS = tuple(name for name in LISTED if name not in ("number", "params", "constraints"))

Text = Annotated[str, Query(max_length=LONGEST)]


@router.get("/studies/{study}/trials")
def show_trials(
    stored: OpenStudy,
    request: Request,
    where: Text = "",
    sort: Text = "",
    group: Text = "",
    column: Annotated[list[str], Query(max_length=100)] = [],  # noqa: B006 - FastAPI copies it
    cursor: Annotated[int, Query(ge=-1, le=MOST_TRIALS)] = -1,
) -> HTMLResponse:
    """Return a page of trials by a condition and an order, and groups; errors are told on it."""
    name: str = stored.row["name"]
    varying = sorted(find_varying_params(stored))
    notes = stored.trial_notes()
    known = [*_COLUMNS, *WORDS, *varying]
    said = [word for word in WORDS[1:] if (notes[word] != "").any()]
    has_second = ["second_objective"] * bool(stored.row["second_objective"])
    shown = [field for field in column if field in known or field.startswith(PARAMS_PREFIX)]
    shown = shown or ["state", "objective", *has_second, *varying[:_MOST_VARYING], "steps", *said]
    chosen = {"where": where, "sort": sort, "group": group, "column": column}
    values: dict[str, Any] = {"rows": [], "following": None, "counted": 0, "groups": None, "error": ""}
    try:
        asked = check_condition(where), check_order(sort), check_condition(group)
        values |= _read(stored, *asked, cursor, shown, notes)
    except (StudyError, StorageError) as error:
        values["error"] = refuse(error, settings_of(request).database).reason
    return render(
        "trials",
        status_code=400 if values["error"] else 200,
        title=f"Trials of {name}",
        name=name,
        all=stored.count_numbers(),
        starred=int(notes["starred"].sum()),
        may_change=request.state.holder.may("submit"),
        known=known,
        heads=[_head(field, sort, stored.row, chosen) for field in shown],
        columns=shown,
        chosen=chosen,
        query=urlencode({"where": where, "sort": sort}),
        next=_address({**chosen, "cursor": values["following"]}),
        first=_address(chosen) if cursor > -1 else "",
        **values,
    )


@router.post("/studies/{study}/trials/marks")
def mark(
    stored: OpenStudy,
    reader: OpenReader,
    caller: Submitter,
    request: Request,
    form: Form,
    back: Annotated[int | None, Query(ge=0, lt=MOST_TRIALS)] = None,
) -> Response:
    """Star, tag and note the trials `number` of a form; `back`: the trial whose page is shown then.

    A script, which asks for no page, gets none. `tags` of the form are all that a trial is to have,
    `added` and `removed` some.
    """
    name: str = stored.row["name"]
    caller.check_change(reader, name)
    numbers = [int(text) for text in form.get("number", []) if text.isdecimal() and len(text) < 10]
    if not 0 < len(numbers) <= _ROWS:
        raise RefusalError(400, f"{len(numbers)} trials; from 1 to {_ROWS} are marked at once")
    text = {key: texts[-1].strip() for key, texts in form.items()}
    added, removed = text.get("added", "").split(), text.get("removed", "").split()
    if "tags" in text:
        added = text["tags"].split()
        before = stored.trial_notes().filter(pl.col("number").is_in(numbers))["tags"]
        removed = [tag for tag in " ".join(before).split() if tag not in added]
    starred = text["starred"] == "1" if "starred" in text else None
    url = caller.settings.database
    mark_trials(url, name, numbers, starred=starred, added=added, removed=removed, note=text.get("note"))
    if "text/html" not in request.headers.get("accept", ""):
        return Response(status_code=204)
    return RedirectResponse(f"/studies/{name}/trials{'' if back is None else f'/{back}'}", 303)


def _read(
    stored: StudyReader,
    where: str | None,
    sort: str | None,
    group: str | None,
    cursor: int,
    columns: Sequence[str],
    notes: pl.DataFrame,
) -> dict[str, Any]:
    """Return what the database says of one page, and of the groups."""
    fitting = stored.numbers(where, sort)
    # By number a cursor is the last trial before the page; by an order, how many come before it.
    start = max(cursor, 0) if sort else int((fitting <= cursor).sum())
    end = start + _ROWS
    numbers = fitting.slice(start, _ROWS)
    listed = ", ".join(map(str, numbers)) or "NULL"
    page = stored.trials(f"number IN ({listed})", columns=(*LISTED, "draws"))
    page = numbers.to_frame().join(page, on="number", maintain_order="left")
    page = page.join(notes, on="number", how="left", maintain_order="left")
    rows = StoredParams(stored).unpack(page).to_dicts() if page.height else []
    return {
        "rows": [_write_row(stored.row["name"], row, columns) for row in rows],
        "following": None if end >= fitting.len() else end if sort else numbers[-1],
        "counted": fitting.len() if where else None,
        "groups": _group(stored, group, where, -(-fitting.len() // _GROUPED)) if group else None,
    }


def _write_row(study: str, row: Mapping[str, Any], columns: Sequence[str]) -> dict[str, Any]:
    values = [(path, row.get(PARAMS_PREFIX + path)) for path in sorted(json.loads(row["draws"]))]
    pairs = (f"{path}={value}" for path, value in values if value is not None)
    like = [f"--set {shlex.quote(pair)}" for pair in pairs]
    name, number, shown = shlex.quote(study), row["number"], map(row.get, columns)
    return {
        "number": number,
        "starred": bool(row["starred"]),
        "values": [(cell(x), isinstance(x, int | float) and not isinstance(x, bool)) for x in shown],
        "commands": {
            "replay": f"search replay {name} {number}",
            "enqueue": f"search enqueue {name} {' '.join(like)}",
            "export": f"search export {name} {number} --script trial-{number}.py",
        },
    }


def _group(stored: StudyReader, by: str, where: str | None, every: int) -> dict[str, Any]:
    """Return groups of one in `every` trials, as a table and a chart that judges no difference."""
    taken = spell_draw(every) if every > 1 else None
    both = " AND ".join(f"({condition})" for condition in (where, taken) if condition)
    groups = group_by_value(stored.values(by, both or None))
    effects = groups.select("group", "mean", "low", "high", pl.format("{} trials", "trials"))
    objective = stored.row["objective"] if has_one_objective(stored.row["space"]) else "objective"
    title = f"mean {objective} by {by}, with 95 % intervals"
    chart = draw_effects(effects, objective, title, from_zero=False)
    return {"rows": groups.to_dicts(), "chart": chart, "every": every}


def _head(column: str, sort: str, study: Mapping[str, Any], chosen: Mapping[str, Any]) -> dict[str, str]:
    """Return a column's head: clicks sort by it, then the other way round, then not."""
    is_mixed = column == "objective" and not has_one_direction(study["space"])
    aims = {"objective": "" if is_mixed else study["direction"], "second_objective": study["second_objective"]}
    # By an objective's name alone the best are first, as in `StudyReader.trials`, which refuses mixed ones.
    best = f"{column} ASC" if is_mixed else column
    from_high = str(aims.get(column)).startswith("maximize")
    worst = f"{column} {'ASC' if from_high else 'DESC'}"
    following = {best: worst, worst: ""}.get(sort, best)
    falls = from_high != (sort == worst)
    return {
        "text": column.removeprefix(PARAMS_PREFIX),
        "href": _address({**chosen, "sort": following}),
        "order": ("descending" if falls else "ascending") if sort in (best, worst) else "none",
    }


def _address(values: Mapping[str, Any]) -> str:
    kept = {name: value for name, value in values.items() if value not in ("", None)}
    return f"?{urlencode(kept, doseq=True)}"

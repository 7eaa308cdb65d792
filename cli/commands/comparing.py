"""Commands that compare arms in short: compare, leaderboard."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.options import Format, Storage, open_db, say_look
from cli.tables import show, show_text


def compare(
    arm: Annotated[str, typer.Argument(metavar="STUDY:ARM", help="An arm; STUDY alone where it has one arm.")],
    other: Annotated[str, typer.Argument(metavar="STUDY:ARM", help="The arm that it is compared with.")],
    storage: Storage = None,
    form: Format = "table",
) -> None:
    """Compare two arms in a line over the same seeds; `search report compare` compares all arms.

    Example: search compare my-arms:ssa my-arms:softmax
    """
    import polars as pl

    from graft.report.arms import compare_two

    with open_db(storage) as reader:
        comparison = compare_two(reader, arm, other)
        for study in dict.fromkeys(side.partition(":")[0] for side in (arm, other)):
            say_look(reader, study, "compare")
    if form != "table":
        show(pl.DataFrame([{"one": arm, "than": other, **comparison}]), form)
        return
    # `a:ssa is better than a:softmax by accuracy/raw (maximize): 0.8 against 0.7, ...`
    verdict = comparison["verdict"] or "not told apart, with so few seeds,"
    words = f"{arm} is {verdict} {'than' if verdict in ('better', 'worse') else 'from'} {other}"
    means = ["nothing" if value is None else f"{value:.4g}" for value in (comparison["mean"], comparison["against"])]
    line = f"{words} by {comparison['objective']} ({comparison['direction']}): {' against '.join(means)}"
    if comparison["difference"] is not None:
        line += f", difference {comparison['difference']:.4g}"
    if comparison["difference_low"] is not None:
        line += f" (95 %: {comparison['difference_low']:.4g} to {comparison['difference_high']:.4g})"
    line += f" over {comparison['pairs'] or 0:,} seeds"
    show_text(line + (f", q = {comparison['q']:.2g}" if comparison["q"] is not None else ""))


def leaderboard(
    task: Annotated[str, typer.Argument(help="A task: every, set_complement ...")],
    storage: Storage = None,
    form: Format = "table",
) -> None:
    """Rank the arms of all experiments on a task, each compared with the best over the same seeds.

    Studies share a board where they evaluate on equal data, by one objective and from one
    search.seed.

    Example: search leaderboard every
    """
    from graft.report.arms import rank_arms

    with open_db(storage) as reader:
        frame, studies = rank_arms(reader, task)
        for study in studies:
            say_look(reader, study, "leaderboard")
    show(frame, form)

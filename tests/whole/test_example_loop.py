"""The example of a loop: rounds of edits are studies, claims decide what is kept, and what does nothing is not."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import polars as pl
import pytest

import graft
from examples.loop import measure
from examples.loop.__main__ import main
from examples.loop.proposals import RATE, ByChance, ByCommand, known_edit, null_edits, start_recipe, write_part
from examples.loop.rounds import KEPT, Edit, Loop, Plan, Recipe
from search.analysis.statistics.power import find_power
from spaces.experiment import Claim

RUN = graft.Run(executor="inline", workers=1, device="cpu", progress=False)


@pytest.fixture
def space(tmp_path: Path) -> Path:
    """Return the space of the rounds, cut to a few steps."""
    cut = (Path(measure.__file__).parent / "start.yaml").read_text().replace("steps: 80", "steps: 20")
    path = tmp_path / "start.yaml"
    path.write_text(
        cut.replace("validate_every: 40, validation_batch: 128", "validate_every: 10, validation_batch: 16")
    )
    return path


def history_of(recipe: Recipe) -> dict[str, Any]:
    return {"recipe": {"set": dict(recipe.set), "files": dict(recipe.files)}, "outcomes": []}


def test_an_edit_takes_the_place_of_what_it_overlaps() -> None:
    recipe = Recipe(set={"model.scorer": "ssa", RATE: 0.01}, files={"one": "a"})
    changed = recipe.apply(Edit(why="", set={"model.scorer.b": 2}, files={"two": "b"}))
    assert changed == Recipe(set={RATE: 0.01, "model.scorer.b": 2}, files={"one": "a", "two": "b"})


def test_the_plan_has_the_fewest_seeds_of_the_corrected_level() -> None:
    plan = Plan.of_spread(spread=1.0, difference=1.0, edits=8)
    assert plan.seeds == 17
    assert plan.power(1.0) == find_power(17, 1.0, 1.0, 0.05 / 8)
    assert find_power(16, 1.0, 1.0, 0.05 / 8) < 0.8 <= plan.power(1.0)


def test_chance_proposes_edits_of_all_kinds_and_repeats_them_by_its_seed() -> None:
    history = history_of(start_recipe())
    kinds = {ByChance(random=Random(seed))(history).kind for seed in range(60)}
    assert kinds == {"scorer", "activation", "learning rate", "knob of the scorer", "knob of the activation"}
    assert ByChance(random=Random(3))(history) == ByChance(random=Random(3))(history)
    values, files = write_part("scorer", "z")
    assert write_part("scorer", "z") == (values, files)
    assert write_part("scorer", "2 * z")[1].keys() != files.keys()


@pytest.mark.long
def test_a_round_keeps_what_is_better_and_nothing_that_does_nothing(tmp_path: Path, space: Path) -> None:
    edits = iter(
        [
            Edit(why="renamed", kind="does nothing", set={"model.activation": "renamed"}, files={"renamed": RENAMED}),
            Edit(why="ten times the rate", kind="rate", set={RATE: 0.03}),
            Edit(why="no learning", kind="rate", set={RATE: 0.0001}),
        ]
    )
    start = start_recipe()
    loop = Loop(tmp_path / "loop.db", Plan(edits=3, seeds=6, difference=0.01), recipe=start, space=space, run=RUN)
    renamed, faster, slower = loop.round(lambda _: next(edits))
    assert (renamed.verdict, renamed.kept, renamed.gain) == ("refuted", False, 0)
    assert (faster.verdict, faster.kept, faster.better_on_one_seed) == ("confirmed", True, True)
    assert (slower.verdict, slower.kept, slower.better_on_one_seed) == ("refuted", False, False)
    assert loop.recipe.set[RATE] == 0.03
    assert loop.learned()[0].startswith("round 0: kept ten times the rate: gain ")
    assert "rate: 2 edits, 1 confirmed, 1 refuted, 0 undecided; one seed would have kept 1" in loop.learned()
    assert loop.confirm(start).startswith("confirmed: kept has a lower mse/raw than start")
    database = graft.open(tmp_path / "loop.db")
    assert list(database) == ["loop-0", "loop-whole"]
    seeds = database.query("SELECT DISTINCT seed FROM studies")["seed"]
    assert len(seeds) == 2  # what was chosen is confirmed by data that no choice has seen
    assert database["loop-0"].claims().was_first


RENAMED = next(iter(write_part("activation", "torch.nn.functional.silu(x)")[1].values()))
"""The activation of the first recipe, whose file gets another name."""


def test_a_proposer_without_other_edits_is_told_so(tmp_path: Path) -> None:
    loop = Loop(tmp_path / "loop.db", Plan(edits=2, seeds=2, difference=1.0), recipe=start_recipe())
    with pytest.raises(ValueError, match="40 proposals had 1 different edits of 2"):
        loop.round(lambda _: Edit(why="the same", set={RATE: 0.01}))


def test_a_file_that_is_edited_needs_another_name(tmp_path: Path) -> None:
    loop = Loop(tmp_path / "loop.db", Plan(edits=1, seeds=2, difference=1.0), recipe=start_recipe())
    [name, *_] = loop.recipe.files
    with pytest.raises(ValueError, match=f"file '{name}' has two texts in one round"):
        loop.judge([Edit(why="", set={RATE: 0.01}, files={name: "pass"})])


def test_a_command_reads_the_history_and_answers_an_edit() -> None:
    code = "import json, sys; h = json.load(sys.stdin); print(json.dumps({'why': 'x', 'set': {'a': h['outcomes']}}))"
    edit = ByCommand(command=[sys.executable, "-c", code])(history_of(start_recipe()))
    assert edit == Edit(why="x", set={"a": []})
    for code, words in (
        ("print('hm')", "must answer {why, kind, set, files} as JSON"),
        ("print('{\"what\": 1}')", "must answer {why, kind, set, files} as JSON"),
        ("raise SystemExit('no key')", "ended with status 1: no key"),
    ):
        with pytest.raises(ValueError, match=words):
            ByCommand(command=[sys.executable, "-c", code])({})


@pytest.mark.long
def test_edits_that_do_nothing_are_other_draws_of_the_same_model(tmp_path: Path, space: Path) -> None:
    """A mirrored model has other numbers, and for mirrored weights the same ones: the mirror twice changes nothing."""
    start = start_recipe()
    edits = null_edits(start)
    assert len({json.dumps(edit.set) for edit in edits}) == 7
    for edit in edits:
        mirrored = start.apply(edit)
        assert any(start.set == mirrored.apply(again).set for again in null_edits(mirrored))
    known = known_edit(start, 0.0031)
    assert start.apply(known).set[RATE] == 0.0031
    loop = Loop(tmp_path / "loop.db", Plan(edits=7, seeds=3, difference=1.0), recipe=start, space=space, run=RUN)
    outcomes = loop.judge(edits)
    assert not any(outcome.kept for outcome in outcomes)
    trials = graft.open(tmp_path / "loop.db")["loop-0"].trials()
    assert trials["objective"].n_unique() > 3  # numbers differ from arm to arm


def made_gains(effect: float) -> pl.DataFrame:
    """Objectives of 40 seeds of normal noise, of seven arms that do nothing and one that is better by `effect`."""
    random = Random(1)
    arms = [KEPT, *(f"edit{index}" for index in range(measure.EDITS))]
    values: Mapping[str, list[float]] = {arm: [random.gauss(0, 2**-0.5) for _ in range(340)] for arm in arms}
    frame = pl.DataFrame(values).with_columns(pl.col(arms[-1]) - effect)
    return frame.with_columns(seed=pl.int_range(340) % 17, round=pl.int_range(340) // 17)


@pytest.mark.long
def test_the_table_counts_what_the_claims_of_rounds_decide() -> None:
    claims = [
        Claim(
            arm=f"edit{index}", than=KEPT, direction="minimize", metric="mse/raw", at="last", difference=1.0, seeds=17,
            fresh=False,
        )
        for index in range(measure.EDITS)
    ]  # fmt: skip
    lines = measure.make_table(claims, made_gains(3.0), edits=140)
    cells = {line.split(" | ")[0].strip("| "): line.strip("| ").split(" | ")[1:] for line in lines[2:]}
    assert list(cells) == [
        f"{kind}, {how}" for how in ("trained", "drawn") for kind in ("does nothing", "known effect")
    ]
    assert [cells["does nothing, trained"][0], cells["does nothing, drawn"][0]] == ["140", "140"]
    assert float(cells["does nothing, drawn"][1]) <= 5
    assert float(cells["known effect, drawn"][1]) == 100
    assert 40 < float(cells["does nothing, drawn"][-1]) < 60  # kept by one seed


@pytest.mark.long
def test_the_loop_runs_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--rounds", "2", "--edits", "2", "--seeds", "4", "--database", str(tmp_path / "loop.db")]
    monkeypatch.setattr(sys, "argv", ["loop", *asked])
    main()
    lines = capsys.readouterr().out.splitlines()
    assert [line[0] for line in lines[:4]] == ["0", "0", "1", "1"]
    assert lines[4].startswith("4 edits in ")
    assert "kept has a lower mse/raw than start" in lines[-1]

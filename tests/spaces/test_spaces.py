"""The space language: reading files, drawing trials, overriding values, and what is said about mistakes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spaces
from spaces import plugins
from spaces.errors import SpaceError
from spaces.grammar.formulas import Draw
from spaces.grammar.nodes import Node, compose, read
from spaces.grammar.overrides import to_yaml
from spaces.reading import catalogue
from spaces.records import Trial
from spaces.seeds import trial_seed
from spaces.space import Space
from tests.support.fake_plugins import FAMILIES
from tests.support.spaces import BASE, CONDITIONAL, parse

pytestmark = pytest.mark.fast

COORDINATE = st.floats(0, 1 - 2**-53)


def error(text: str, overrides: Mapping[str, str] | None = None) -> str:
    with pytest.raises(SpaceError) as caught:
        parse(text, overrides).check()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def edited(old: str, new: str, text: str = BASE) -> str:
    assert text.count(old) == 1
    return text.replace(old, new)


def halves(space: Space, **other: float) -> Trial:
    return space.sample(12, lambda draw: other.get(draw.name.replace(".", "_"), 0.5))


def test_a_trial_is_fully_resolved() -> None:
    trial = halves(parse())
    assert trial.number == 12
    assert trial.group == 1
    assert trial.seed == trial_seed(0, 12)
    assert trial.config == {
        "task": {"name": "copy", "length": 5, "vocabulary": 9},
        "model": {
            "name": "tiny",
            "width": 16,
            "scorer": {"name": "softmax"},
            "dropout": 0.0,
            "temperature": 1.0,
            "activation": "relu",
            "tied": False,
        },
        "optimizer": {"name": "sgd", "learning_rate": 1e-3, "momentum": 0.0, "warmup": 3},
        "averaging": {"name": "ema", "power": 0.5},
        "learning": {"name": "weights"},
        "training": {
            "steps": 1000,
            "batch": 32,
            "accumulate": 1,
            "validate_every": 1000,
            "validation_batch": 1024,
            "dtype": "float32",
            "autocast": "none",
            "diagnostics": False,
            "pad_shapes": False,
        },
    }
    assert trial.params == {
        "task.length": 5,
        "task.vocabulary": 9,
        "model.dropout": 0.0,
        "optimizer.learning_rate": 1e-3,
        "optimizer.warmup": 3,
        "averaging.power": 0.5,
    }
    assert trial.draws == dict.fromkeys(
        [
            "group.length",
            "group.vocabulary",
            "trial.power",
            "model.dropout",
            "optimizer.learning_rate",
            "optimizer.warmup",
        ],
        0.5,
    )


def test_the_structure_is_what_a_pack_shares() -> None:
    trial = halves(parse(), model_dropout=0.75)
    expected = {
        "task": {"name": "copy", "length": 5, "vocabulary": 9},
        "model": {
            "name": "tiny",
            "width": 16,
            "scorer": {"name": "softmax"},
            "dropout": "on",
            "activation": "relu",
            "tied": False,
        },
        "optimizer": {"name": "sgd"},
        "averaging": {"name": "ema"},
        "learning": {"name": "weights"},
        "training": {
            "batch": 32,
            "accumulate": 1,
            "validate_every": 1000,
            "validation_batch": 1024,
            "dtype": "float32",
            "autocast": "none",
            "diagnostics": False,
            "pad_shapes": False,
        },
    }
    assert json.loads(trial.structure) == expected
    assert trial.structure == plugins.canonical_json(expected)


@pytest.mark.long
@pytest.mark.parametrize("text", [BASE, CONDITIONAL], ids=["plain", "conditional"])
@given(data=st.data())
def test_a_trial_equals_the_one_resolved_from_its_draws(text: str, data: st.DataObject) -> None:
    space = parse(text)
    asked: list[Draw] = []

    def source(draw: Draw) -> float:
        asked.append(draw)
        return data.draw(COORDINATE)

    trial = space.sample(data.draw(st.integers(0, 10**6)), source)
    names = [draw.name for draw in asked]
    assert len(names) == len(set(names))
    assert list(trial.draws) == names
    assert set(asked) <= {*space.group_draws, *space.trial_draws}
    stored = json.loads(json.dumps(dict(trial.draws)))
    assert space.resolve(trial.number, stored) == trial
    assert parse(text).resolve(trial.number, stored) == trial
    for section, family in FAMILIES.items():
        if section in trial.config:
            config = trial.config[section]
            assert plugins.config_of(plugins.build(family, config)) == config
    structures = {
        key: plugins.structure_of(plugins.build(FAMILIES[key], value))
        for key, value in trial.config.items()
        if key in FAMILIES
    }
    shared = {key: value for key, value in trial.config["training"].items() if key != "steps"}
    assert trial.structure == plugins.canonical_json({**structures, "training": shared})


def test_resolving_without_a_stored_draw_says_which_one() -> None:
    with pytest.raises(SpaceError, match=r"demo: trial 3 was stored without the draw trial\.power"):
        parse().resolve(3, {"group.length": 0.5, "group.vocabulary": 0.5})


def test_trials_of_a_group_differ_only_in_what_they_draw_for_themselves() -> None:
    space = parse()
    trials = [space.sample(n, lambda draw, n=n: 0.3 if draw.scope == "group" else n / 10) for n in range(10)]
    assert {trial.group for trial in trials} == {0}
    assert len({plugins.canonical_json(trial.config["task"]) for trial in trials}) == 1
    assert len({trial.config["averaging"]["power"] for trial in trials}) == 10
    assert len({trial.structure for trial in trials}) == 2  # dropout on and off


def test_draws_under_an_option_are_asked_for_only_when_it_is_taken() -> None:
    space = parse(CONDITIONAL)
    by_name = {draw.name: draw for draw in space.trial_draws}
    assert by_name["model.scorer"].choices == 3
    assert by_name["model.scorer"].bounds == "softmax | ssa | entmax"
    assert by_name["model.scorer.n"].condition == "model.scorer=ssa"
    assert by_name["model.scorer.alpha"].condition == "model.scorer=entmax"
    assert by_name["model.width"].choices == 3
    first, second, third = (halves(space, model_scorer=u) for u in (0.0, 0.5, 0.99))
    assert first.config["model"]["scorer"] == {"name": "softmax"}
    assert second.config["model"]["scorer"] == {"name": "ssa", "n": 2.0, "b": 2.0}
    assert third.config["model"]["scorer"] == {"name": "entmax", "alpha": 1.5}
    assert not {"model.scorer.n", "model.scorer.alpha"} & first.draws.keys()
    assert second.params["model.scorer"] == "ssa"
    assert second.params["model.scorer.n"] == 2.0
    assert "model.scorer.b" not in second.params
    assert (second.params["model.activation"], second.params["model.tied"]) == ("gelu", False)


def test_two_options_of_the_same_plugin_are_told_apart() -> None:
    space = parse(CONDITIONAL.replace("{name: entmax, alpha: {uniform: [1, 2]}}", "{ssa: {n: uniform(5, 6)}}"))
    conditions = {draw.name: draw.condition for draw in space.trial_draws if draw.condition}
    assert conditions == {
        "model.scorer.n": "model.scorer={ssa: {n: uniform(1, 3), b: 2}}",
        "model.scorer.n#2": "model.scorer={ssa: {n: uniform(5, 6)}}",
    }


@pytest.mark.parametrize("spelling", ["entmax", "{entmax: }", "{entmax: {alpha: 1.5}}", "{name: entmax, alpha: 3/2}"])
def test_a_plugin_can_be_written_in_three_ways(spelling: str) -> None:
    trial = halves(parse(edited("  width: 16\n", f"  width: 16\n  scorer: {spelling}\n")))
    assert trial.config["model"]["scorer"] == {"name": "entmax", "alpha": 1.5}


@pytest.mark.parametrize(
    "spelling",
    [
        "10 ** uniform(-2, 0)",
        "'10 ** uniform(-2, 0)'",
        "{log_uniform: [0.01, 1]}",
        "{log_uniform: [1e-2, 2 - 1]}",
        "log_uniform(1e-2, 1)",
    ],
)
def test_a_draw_can_be_written_as_a_call_or_as_a_mapping(spelling: str) -> None:
    trial = halves(parse(edited("10 ** uniform(-5, -1)", spelling)))
    assert trial.config["optimizer"]["learning_rate"] == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("spelling", "expected"),
    [
        ("{learning_rate: max(0.25, uniform(0, 1)), warmup: floor(uniform(0, min(10, 20)))}", (0.5, 5)),
        ("{learning_rate: {choice: [uniform(0, 1), max(1, 2, 3), 5]}, warmup: 2}", (3.0, 2)),
    ],
)
def test_calls_keep_their_commas_inside_braces_and_brackets(spelling: str, expected: tuple[float, int]) -> None:
    config = halves(parse(edited(BASE.splitlines()[14], f"optimizer: {{sgd: {spelling}}}"))).config["optimizer"]
    assert (config["learning_rate"], config["warmup"]) == expected


def test_named_values_may_stand_in_any_order() -> None:
    text = edited("  length: 1 +", "  last: $vocabulary + 1\n  length: 1 +")
    assert halves(parse(text.replace("width: 16", "width: $last"))).config["model"]["width"] == 10


def test_a_value_of_the_trial_may_depend_on_the_group_alone() -> None:
    space = parse(
        edited("  power: uniform(0, 1)\n", "  power: uniform(0, 1)\n  longer: $length + 1\n").replace(
            "length: $length", "length: $longer"
        )
    )
    assert halves(space).config["task"] == {"name": "copy", "length": 6, "vocabulary": 9}


@pytest.mark.parametrize("number", ["1e3", "1E3", "1_000", "1000.0", "+1000", "'1000'", ".1e4", "10 ** 3"])
def test_numbers_are_read_as_people_write_them(number: str) -> None:
    assert halves(parse(edited("1_000", number))).config["training"]["steps"] == 1000


def test_what_is_left_out_takes_its_default() -> None:
    text = edited("averaging: {ema: {power: $power}}\n", "")
    space = parse(text)
    assert halves(space).config["averaging"] == {"name": "none"}
    assert plugins.name_of(space.search.sampler) == "random"
    assert space.search.stopping == ()
    assert (space.search.seed, space.search.history, space.search.objective.at) == (0, "thin", "best")


def test_the_search_is_read() -> None:
    search = parse(
        edited(
            "  objective: {minimize: tvd/ema}\n",
            "  objective: {maximize: accuracy/raw/length=64, at: last}\n  sampler: {grid: {points: 5}}\n"
            "  stopping: [{patience: {steps: 10 ** 3}}, median]\n  seed: 9223372036854775807\n  history: thin\n",
        )
    ).search
    assert (search.trials, search.group, search.seed, search.history) == (100, 10, 2**63 - 1, "thin")
    assert (search.objective.direction, str(search.objective)) == ("maximize", "accuracy/raw/length=64")
    assert search.objective.at == "last"
    assert plugins.config_of(search.sampler) == {"name": "grid", "points": 5}
    assert [plugins.config_of(policy) for policy in search.stopping] == [
        {"name": "patience", "steps": 1000},
        {"name": "median", "grace": 5},
    ]


def test_the_description_has_a_row_for_every_value() -> None:
    rows = {row.path: row for row in parse(CONDITIONAL).describe()}
    assert (rows["group.length"].text, rows["group.length"].level.name) == ("1 + floor(2 ** uniform(0, 4))", "GROUP")
    assert rows["model.dropout"].bounds == "[-1/2, 1/2)"
    assert (rows["task.length"].text, rows["task.length"].level.name) == ("$length", "GROUP")
    assert (rows["training.steps"].text, rows["training.steps"].level.name) == ("1_000", "CONSTANT")
    assert (rows["model.scorer.n"].condition, rows["model.scorer.n"].level.name) == ("model.scorer=ssa", "TRIAL")


def test_the_hash_is_of_the_content_alone() -> None:
    section = "training: {steps: 1_000, batch: 32}\n"
    moved = "# a comment\n" + edited(section, "") + "training:\n  batch: 32\n  steps: 1000\n"
    assert parse(moved).hash == parse().hash
    assert parse(edited("32", "33")).hash != parse().hash


# --- overrides


@pytest.mark.parametrize(
    ("path", "value", "read"),
    [
        ("training.steps", "2000", lambda config: config["training"]["steps"] == 2000),
        ("training.validate_every", "7", lambda config: config["training"]["validate_every"] == 7),
        ("model.scorer", "{ssa: {n: 1.5}}", lambda config: config["model"]["scorer"]["n"] == 1.5),
        ("model.temperature", "1e-5", lambda config: config["model"]["temperature"] == 1e-5),
        ("optimizer.momentum", "uniform(0, 1/2)", lambda config: config["optimizer"]["momentum"] == 0.25),
        ("optimizer.sgd.momentum", "0.25", lambda config: config["optimizer"]["momentum"] == 0.25),
        ("optimizer.learning_rate", "{int: [1, 3]}", lambda config: config["optimizer"]["learning_rate"] == 2),
        ("averaging", "none", lambda config: config["averaging"] == {"name": "none"}),
        ("task.length", "3", lambda config: config["task"]["length"] == 3),
        ("group.length", "2", lambda config: config["task"]["vocabulary"] == 6),
    ],
)
def test_an_override_replaces_or_adds_a_value(path: str, value: str, read: object) -> None:
    space = parse(BASE, {path: value})
    assert callable(read)
    assert read(halves(space).config)
    again = parse(space.text)
    assert again.hash == space.hash != parse().hash
    assert halves(again) == halves(space)


@pytest.mark.parametrize("spelling", ["ssa", "{ssa: {n: 3}}", "{name: ssa, n: 3}", "{ssa: }"])
def test_an_override_finds_the_field_of_a_plugin_however_it_is_written(spelling: str) -> None:
    text = edited("  width: 16\n", f"  width: 16\n  scorer: {spelling}\n")
    scorer = halves(parse(text, {"model.scorer.n": "2"})).config["model"]["scorer"]
    assert scorer == {"name": "ssa", "n": 2.0, "b": 1.0}


@pytest.mark.parametrize("spelling", ["ssa", "{ssa: {n: 3}}", "{name: ssa, n: 3}", "{ssa: }"])
@pytest.mark.parametrize("written", ["model.scorer: {}", "model: {{name: tiny, width: 16, scorer: {}}}"])
def test_an_override_finds_the_field_of_a_plugin_that_an_arm_sets(spelling: str, written: str) -> None:
    text = f"{BASE}\narms: {{plain: {{}}, bent: {{{written.format(spelling)}}}}}\nseeds: 2\n"
    space = spaces.parse(text, "x.yaml", FAMILIES, {"search.trials": "1", "arms.bent.model.scorer.n": "2"})
    assert space.sample(2, lambda _: 0.5).config["model"]["scorer"] == {"name": "ssa", "n": 2.0, "b": 1.0}


def test_later_overrides_build_on_earlier_ones() -> None:
    space = parse(
        BASE,
        {"model.scorer": "ssa", "model.scorer.n": "2", "search.stopping": "patience"} | {"search.stopping.steps": "5"},
    )
    assert halves(space).config["model"]["scorer"]["n"] == 2.0
    assert space.search.stopping[0].steps == 5


def test_an_override_leaves_the_other_places_of_an_alias_alone() -> None:
    text = edited("{steps: 1_000, batch: 32}", "{steps: &n 1_000, batch: *n, validate_every: *n}")
    config = halves(parse(text, {"training.batch": "8"})).config["training"]
    assert (config["steps"], config["batch"], config["validate_every"]) == (1000, 8, 1000)


def test_without_overrides_the_text_is_kept_to_the_letter() -> None:
    assert parse("# mine\n" + BASE).text == "# mine\n" + BASE


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("training.steps", "-1", "--set training.steps=-1: training.steps: -1 must be an integer >= 1"),
        ("training.stepz", "5", "'stepz' is no field of training, did you mean 'steps'?"),
        ("training.steps", "[1", "--set training.steps=[1: broken YAML"),
        ("training.steps", "", "--set training.steps=: it is empty"),
        ("training.steps.x", "1", "--set training.steps.x=1: training.steps is no section, set it as a whole"),
        ("modle.width", "1", "--set modle.width=1: 'modle' is no section, did you mean 'model'?"),
        ("model.scorer.n", "2", "the file has no model.scorer, set model.scorer=NAME before its fields"),
        ("model.scorer", "sas", "'sas' is no scorer, did you mean 'ssa'? choose one of entmax, softmax, ssa"),
        ("", "1", "a path is names joined by dots"),
        ("model..width", "1", "a path is names joined by dots"),
    ],
)
def test_a_mistake_in_an_override_names_the_override(path: str, value: str, message: str) -> None:
    said = error(BASE, {path: value})
    assert said.startswith(f"--set {path}={value}: ")
    assert message in said


# --- mistakes in files


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("study: demo", "study: a b", "demo.yaml:1: study: 'a b' must be a word"),
        ("study: demo\n", "", "demo.yaml:1: a space needs the section study"),
        ("model:", "modle:", "demo.yaml:11: 'modle' is no section, did you mean 'model'?"),
        ("  width: 16\n", "", "demo.yaml:11: model: tiny needs width"),
        ("  width: 16", "  widht: 16", "demo.yaml:13: model.widht: 'widht' is no field of tiny, did you mean 'width'?"),
        ("  width: 16", "  width: 16\n  width: 17", "demo.yaml:14: 'width' stands here twice, first at demo.yaml:13"),
        ("  width: 16", "  width: 16.5", "demo.yaml:13: model.width: 16.5 must be an integer >= 1"),
        ("  width: 16", "  width: 0", "demo.yaml:13: model.width: 0 must be an integer >= 1"),
        ("  width: 16", "  width: true", "demo.yaml:13: model.width: true must be an integer >= 1, an expression or"),
        ("  width: 16", "  width:", "demo.yaml:13: model.width: nothing must be an integer >= 1"),
        ("  width: 16", "  width: [1, 2]", "demo.yaml:13: model.width: [1, 2] must be an integer >= 1"),
        ("  width: 16", "  width: 1" + "0" * 400, "demo.yaml:13: model.width: inf must be an integer >= 1"),
        ("  width: 16", "  width: .inf", "demo.yaml:13: model.width: .inf: this is not an expression"),
        ("  width: 16", "  width: {uniform: [1]}", "{uniform: [1]}: uniform needs a list of two bounds"),
        ("  width: 16", "  width: {unifrm: [1, 2]}", "demo.yaml:13: model.width: {unifrm: [1, 2]} must be an integer"),
        (
            "  width: 16",
            "  width: {choice: [3]}",
            "demo.yaml:13: model.width: {choice: [3]}: choice needs a list of at",
        ),
        ("  width: 16", "  width: {choice: [3, 0]}", "demo.yaml:13: model.width: 0 must be an integer >= 1"),
        ("  width: 16", "  width: {int: [1.5, 3]}", "demo.yaml:13: model.width: int(1.5, 3): the bounds must be whole"),
        (
            "  width: 16",
            "  width: {log_int: [0, 3]}",
            "demo.yaml:13: model.width: log_int(0, 3): the bounds must be pos",
        ),
        ("  width: 16", "  width: 16\n  tied: maybe", "demo.yaml:14: model.tied: 'maybe' must be true or false"),
        ("  width: 16", "  width: 16\n  tied: on", "demo.yaml:14: model.tied: 'on' must be true or false"),
        ("  width: 16", "  width: 16\n  activation: relo", "activation: 'relo' must be one of relu, gelu"),
        ("  width: 16", "  width: 16\n  activation: [relu]", "activation: [relu] must be one of relu, gelu"),
        (
            "  width: 16",
            "  width: 16\n  scorer: 5",
            "demo.yaml:14: model.scorer: 5 is not a plug-in, write one as name",
        ),
        (
            "  width: 16",
            "  width: 16\n  scorer: {ssa: 5}",
            "model.scorer.ssa: 5 stands here, but this must be a section",
        ),
        ("  width: 16", "  width: 16\n  scorer: {a: 1, b: 2}", "model.scorer: {a: 1, b: 2} is not a plug-in"),
        ("  width: 16", "  width: 16\n  scorer: {choice: [softmax, sas]}", "'sas' is no scorer, did you mean 'ssa'?"),
        ("  name: tiny", "  name: tyny", "demo.yaml:11: model: 'tyny' is no model, did you mean 'tiny'?"),
        ("uniform(-1/2, 1/2)", "uniform(1/2, -1/2)", "demo.yaml:14: model.dropout: relu(uniform(1/2, -1/2)): uniform("),
        ("uniform(-5, -1)", "uniform(-5, $power, 1)", "uniform takes 2 arguments, but got 3"),
        ("{power: $power}", "{power: power}", "averaging.power: power: 'power' is a named value, write $power"),
        ("{power: $power}", "{power: $powr}", "'$powr' is no named value, did you mean '$power'?"),
        (
            "  power: uniform(0, 1)",
            "  power: $power",
            "demo.yaml:6: trial.power: the value depends on itself: power -> p",
        ),
        (
            "  power: uniform(0, 1)",
            "  length: 3",
            "demo.yaml:6: trial.length: 'length' is a value of the group already",
        ),
        ("  power: uniform(0, 1)", "  Power: 3", "demo.yaml:6: trial: 'Power' must be a name of a-z, 0-9 and _"),
        (
            "2 ** uniform(0, 4))\n  voc",
            "$power)\n  voc",
            "group.length: 1 + floor($power): $power differs from trial to",
        ),
        ("steps: 1_000, ", "", "demo.yaml:17: training: training needs steps"),
        ("steps: 1_000", "steps: 0", "demo.yaml:17: training.steps: 0 must be an integer >= 1"),
        ("{steps: 1_000, batch: 32}", "fast", "demo.yaml:17: training: fast stands here, but this must be a section"),
        ("trials: 100", "trials: -3", "demo.yaml:19: search.trials: -3 must be an integer in [1, 1e+09]"),
        (
            "trials: 100",
            "trials: int(1, 3)",
            "demo.yaml:19: search.trials: int(1, 3): int draws a random value, but this",
        ),
        ("  trials: 100\n", "", "demo.yaml:18: search: search needs trials"),
        ("  objective: {minimize: tvd/ema}\n", "", "demo.yaml:18: search: search needs objective"),
        ("trials: 100", "trails: 100", "demo.yaml:19: search: 'trails' is no field of search, did you mean 'trials'?"),
        (
            "{minimize: tvd/ema}",
            "tvd/ema",
            "demo.yaml:21: search.objective: tvd/ema stands here, but this must be a se",
        ),
        ("{minimize: tvd/ema}", "{minimise: tvd/ema}", "'minimise' is no field of objective, did you mean 'minimize'?"),
        ("{minimize: tvd/ema}", "{at: last}", "{at: last} must have exactly one of minimize, maximize"),
        ("{minimize: tvd/ema}", "{minimize: tvd}", "'tvd' must be metric/variant or metric/variant/condition"),
        ("{minimize: tvd/ema}", "{minimize: tvd/mean}", "'tvd/mean' must be metric/variant"),
        ("{minimize: tvd/ema}", "{minimize: tvd/ema, at: end}", "search.objective.at: 'end' must be one of best, last"),
        (
            "trials: 100",
            "trials: 100\n  sampler: rand",
            "demo.yaml:20: search.sampler: 'rand' is no sampler, did you mea",
        ),
        ("trials: 100", "trials: 100\n  stopping: [median, {patience: }]", "search.stopping: patience needs steps"),
        ("trials: 100", "trials: 100\n  seed: -1", "search.seed: -1 must be an integer in [0, 9.22337e+18]"),
        ("study: demo", "study: demo\n\tx: 1", "demo.yaml:2: broken YAML"),
        ("study: demo", "study: [demo", "broken YAML"),
        ("study: demo", "study: !!python/name:os.system demo", "tags are not part of a space"),
        ("study: demo", "study: !local demo", "demo.yaml:1: !local: tags are not part of a space"),
        ("study: demo", "study: demo\n? [1]\n: 2", "demo.yaml:2: a key must be a word"),
        ("study: demo", "study: d\x07mo", "demo.yaml:1: YAML cannot hold the character '\\x07'"),
    ],
)
def test_a_mistake_is_named_with_its_line_path_rule_and_choices(old: str, new: str, message: str) -> None:
    assert message in error(edited(old, new))


def test_a_cycle_is_named() -> None:
    text = edited("  power: uniform(0, 1)", "  a: $b + 1\n  b: 2 * $c\n  c: $a\n  power: 1")
    said = error(text)
    chain = said.rpartition(": ")[2].split(" -> ")
    assert chain[0] == chain[-1]
    assert "".join(chain[:-1]) in ("abc", "bca", "cab")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "demo.yaml: it is empty"),
        ("# nothing\n", "demo.yaml: it is empty"),
        ("study", "demo.yaml:1: study stands here, but this must be a section"),
        ("[1, 2]", "demo.yaml:1: [1, 2] stands here"),
        ("a: 1\n---\nb: 2", "demo.yaml:2: broken YAML"),
        ("a: &a [*a]", "nested 32 deep"),
        ("[" * 5000, "demo.yaml: broken YAML: nested too deeply"),
        ('"\\Uffffffff"', "an escape sequence stands for no character"),
        ("study: '" + "x" * (1 << 20) + "'", "a space may have 1,048,576 characters"),
    ],
)
def test_what_is_no_space_at_all_is_refused(text: str, message: str) -> None:
    assert message in error(text)


def test_aliases_cannot_blow_a_space_up() -> None:
    lines = ["a0: &a0 [1, 2, 3, 4, 5, 6, 7, 8, 9]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 25)]
    assert "a space may have 10,000 values" in error("\n".join(lines))


def test_a_rule_that_breaks_for_some_draws_is_found_by_check_with_the_values() -> None:
    space = parse(edited("  width: 16", "  width: floor(uniform(0, $length))"))
    with pytest.raises(SpaceError) as caught:
        space.check()
    assert "demo.yaml:13: model.width: 0.0 must be an integer >= 1, from floor(uniform(0, $length))" in str(
        caught.value
    )
    assert "$length = 2" in str(caught.value)


def test_a_rule_between_fields_names_what_was_drawn() -> None:
    text = edited("vocabulary: $length + floor(2 ** uniform(0, 4))", "vocabulary: 10")
    assert "demo.yaml:7: task: length 16 must be below vocabulary 10, with length = 16, vocabulary" not in error(text)
    assert "demo.yaml:7: task: length 16 must be below vocabulary 10, with length = 16 (where" in error(text)


def test_a_division_by_zero_at_one_draw_is_reported_with_the_expression() -> None:
    said = error(edited("10 ** uniform(-5, -1)", "1 / relu(uniform(-1, 1))"))
    assert "optimizer.learning_rate: 1 / relu(uniform(-1, 1)): division by zero" in said


# --- where spaces come from


def test_the_packaged_spaces_are_listed() -> None:
    assert {"set_complement", "quick/set_complement"} <= set(spaces.packaged_spaces())


def test_a_packaged_space_is_found_as_papers_name_it() -> None:
    assert catalogue.read_text("spaces/quick/add_mod.yaml") == catalogue.read_text("quick/add_mod")


def test_a_file_wins_over_a_packaged_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("set_complement").write_text(BASE)
    assert spaces.load("set_complement", FAMILIES).name == "demo"


def test_a_file_may_start_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "demo.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + BASE.encode())
    assert spaces.load(str(path), FAMILIES).hash == parse().hash


def test_a_missing_file_names_the_packaged_spaces() -> None:
    with pytest.raises(SpaceError, match=r"no such file.* did you mean 'set_complement'\? choose one of algorithmic/"):
        spaces.load("set_complemen", FAMILIES)


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpaceError, match="this is a directory"):
        spaces.load(str(tmp_path), FAMILIES)


def test_a_file_that_is_not_utf_8_is_refused_with_the_line(tmp_path: Path) -> None:
    path = tmp_path / "demo.yaml"
    path.write_bytes(b"study: demo\ngroup: \xff\n")
    with pytest.raises(SpaceError, match=r"demo\.yaml:2: byte 0xff is not UTF-8"):
        spaces.load(str(path), FAMILIES)


def test_fields_and_records_need_no_yaml() -> None:
    """A machine that only trains has torch and numpy, not PyYAML."""
    code = "import sys; sys.modules['yaml'] = None; import spaces.plugins.fields, spaces.records, spaces.settings"
    subprocess.run([sys.executable, "-c", code], check=True)


# --- random input


def pieces(text: str) -> list[str]:
    return [part for line in text.splitlines(keepends=True) for part in (line, line.strip() + " ")]


@pytest.mark.long
@settings(max_examples=300)
@given(st.text(max_size=80) | st.lists(st.sampled_from(pieces(CONDITIONAL)), max_size=25).map("".join))
def test_random_text_is_a_space_or_a_space_error(text: str) -> None:
    try:
        parse(text).check(3)
    except SpaceError as problem:
        assert "\n" not in str(problem)  # noqa: PT017


@pytest.mark.long
@settings(max_examples=500)
@given(data=st.data())
def test_a_damaged_space_is_a_space_or_a_space_error(data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(CONDITIONAL)))
    end = data.draw(st.integers(start, min(start + 20, len(CONDITIONAL))))
    middle = data.draw(
        st.text(max_size=6) | st.sampled_from(["{", "[", "*a", "&a ", "$length", "!!int ", "- ", ": ", "'"])
    )
    try:
        parse(CONDITIONAL[:start] + middle + CONDITIONAL[end:]).check(3)
    except SpaceError as problem:
        assert "\n" not in str(problem)  # noqa: PT017


@pytest.mark.long
@settings(max_examples=300)
@given(
    path=st.text(max_size=8)
    | st.lists(st.sampled_from(["model", "scorer", "n", "name", "search", "trials", "training", "x"])).map(".".join),
    value=st.text(max_size=12)
    | st.sampled_from(["{ssa: {n: 2}}", "[1", "1", "{choice: [1, 2]}", "&a [*a]", "softmax"]),
)
def test_a_random_override_is_a_space_or_a_space_error(path: str, value: str) -> None:
    try:
        space = parse(CONDITIONAL, {path: value})
    except SpaceError as problem:
        assert "\n" not in str(problem)  # noqa: PT017
    else:
        assert parse(space.text).hash == space.hash


# --- a space is written out and read again: what a study keeps of it

WORDS = ("", "~", "''", '""', "'~'", "1", "1.0", "true", "word", "two words", "'a: b'", "log_uniform(1, 2)")


def texts(leaves: int = 3) -> st.SearchStrategy[str]:
    """YAML in braces and brackets."""
    words = st.sampled_from(WORDS)
    if not leaves:
        return words
    sections = st.dictionaries(st.sampled_from("abc"), texts(leaves - 1))
    lists = st.lists(texts(leaves - 1).filter(bool))
    return st.one_of(
        words,
        sections.map(lambda section: "{" + ", ".join(f"{key}: {value}" for key, value in section.items()) + "}"),
        lists.map(lambda items: "[" + ", ".join(items) + "]"),
    )


def plain(node: Node) -> object:
    match node.content:
        case tuple():
            return [plain(item) for item in node.content]
        case Mapping():
            return {key: plain(value) for key, value in node.content.items()}
        case _:
            return node.content


@pytest.mark.long
@given(texts(), st.sampled_from(["{{arms: {}}}", "arms: {}"]))
def test_what_is_written_out_is_read_as_it_was(value: str, style: str):
    root = compose(style.format(value), "a.yaml")
    assert plain(read(compose(to_yaml(root), "b.yaml"))) == plain(read(root))


def test_an_arm_in_braces_that_sets_nothing_still_sets_nothing():
    assert to_yaml(compose("arms: {softmax: , ssa: {model.scorer: ssa}}", "a.yaml")) == (
        "arms: {softmax: ~, ssa: {model.scorer: ssa}}\n"
    )

"""The algorithmic tasks of paper 002: every example against a solver written apart, splits, metrics and spaces."""

from __future__ import annotations

import ast
import math
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

import spaces
from graft.plugins.families import families
from spaces import plugins
from spaces.errors import PluginError
from spaces.records import Metric, Report
from tests.support.trials import FIRST_STEP, config, trial
from workers.data.splits import Split, below, draw_in_split, fractions
from workers.data.tasks import Batch, Task
from workers.data.tasks._completion import Completion
from workers.data.tasks.haystack import Haystack
from workers.engine.pack import Pack
from workers.numerics.randomness import Purpose, Streams
from workers.training.recipe import Recipe

ELSEWHERE = {"clrs_text"}  # completions that are no tasks of paper 002, with tests of their own
MEMBERS = [n for n in plugins.names(Task) if issubclass(plugins.load(Task, n), Completion) and n not in ELSEWHERE]
Tokens = list[int]


def task_of(name: str) -> Completion:
    task = plugins.build(Task, {"name": name})
    assert isinstance(task, Completion)
    return task


def streams(seeds: list[int], step: int = 0, purpose: Purpose = Purpose.TRAINING_DATA) -> Streams:
    return Streams.of(torch.tensor(seeds), purpose, step)


def splits(task: Completion, seed: int, count: int) -> dict[str, Batch]:
    """Every set that the task is trained or evaluated on."""
    held = streams([seed], purpose=Purpose.VALIDATION_DATA)
    return {
        "training": task.training(streams([seed]), count, FIRST_STEP),
        "validation": task.validation(held, count),
        **task.shifted_sets(streams([seed + 1], purpose=Purpose.VALIDATION_DATA), count),
    }


def pairs(task: Completion, batch: Batch) -> Iterator[tuple[Tokens, Tokens]]:
    """Input and output of each sequence of all lanes, cut out of what the model reads and predicts."""
    rows = (batch[name].flatten(0, 1).tolist() for name in ("inputs", "targets", "wanted"))
    for inputs, targets, wanted in zip(*rows, strict=True):
        cut = wanted.index(True) + 1
        whole = inputs + targets[-1:]
        output = [token for token, counts in zip(targets, wanted, strict=True) if counts]
        assert targets[:-1] == inputs[1:]
        assert whole == whole[:cut] + output + [task.padding] * (len(whole) - cut - len(output))
        if not isinstance(task, Haystack):
            assert whole.count(task.separator) == 1
            assert whole[cut - 1] == task.separator
            cut -= 1
        yield whole[:cut], output


# --- solvers, one for each task


def memorized() -> Callable[[Tokens], Tokens]:
    """Whatever was seen first for a key."""
    table: dict[tuple[int, ...], Tokens] = {}
    for key, value in pairs(task_of("memorize"), task_of("memorize").validation(streams([0]), 1)):
        table[tuple(key)] = value
    return lambda key: table[tuple(key)]


def bracket(tokens: Tokens) -> Tokens:
    """Return a stack machine."""
    stack = []
    for token in tokens:
        if token == 0:
            stack.append(token)
        elif stack:
            stack.pop()
        else:
            return [2]
    return [2 if stack else 3]


def needle(tokens: Tokens) -> Tokens:
    question = tokens[-1]
    return [next(value for marker, value in zip(tokens[::2], tokens[1::2], strict=False) if marker == question)]


def decimal_sum(order: int) -> Callable[[Tokens], Tokens]:
    def solve(tokens: Tokens) -> Tokens:
        left, right = "".join("0123456789+"[token] for token in tokens).split("+")
        assert left[::order][0] != "0"
        assert right[::order][0] != "0"
        return [int(digit) for digit in str(int(left[::order]) + int(right[::order]))[::order]]

    return solve


def value_of(node: ast.AST) -> int:
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return value_of(left) + value_of(right)
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return value_of(left) - value_of(right)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return value_of(left) * value_of(right)
    raise AssertionError(ast.dump(node))


def expression(tokens: Tokens) -> str:
    return "".join("0123456+-*()"[token] for token in tokens)


SOLVERS: dict[str, Callable[[Tokens], Tokens]] = {
    "memorize": memorized(),
    "parentheses": bracket,
    "add_mod": lambda tokens: [sum(tokens) % 97],
    "haystack": needle,
    "add": decimal_sum(1),
    "add_reversed": decimal_sum(-1),
    "copying": lambda tokens: tokens,
    "mano": lambda tokens: [value_of(ast.parse(expression(tokens), mode="eval").body) % 7],
}


# --- every task


def test_every_task_has_a_solver_that_shares_no_code_with_it() -> None:
    assert sorted(SOLVERS) == sorted(MEMBERS)


@pytest.mark.parametrize("name", MEMBERS)
def test_the_solver_agrees_on_a_thousand_examples_of_every_split(name: str) -> None:
    task = task_of(name)
    for split, batch in splits(task, 11, 1000).items():
        solved = 0
        for question, answer in pairs(task, batch):
            assert SOLVERS[name](question) == answer, (split, question)
            solved += 1
        assert solved == {"memorize": 1024, "add_mod": 471}.get(name, 1000) or split == "training"


@pytest.mark.parametrize("name", MEMBERS)
def test_shapes_and_tokens_are_as_declared(name: str) -> None:
    task = task_of(name)
    batches = splits(task, 3, 2000)
    lengths = {split: batch["inputs"].shape[-1] for split, batch in batches.items()}
    assert (lengths["training"], max(lengths.values())) == (task.context, task.longest)
    for batch in batches.values():
        assert batch["inputs"].shape == batch["targets"].shape == batch["wanted"].shape
        assert (batch["inputs"].dtype, batch["wanted"].dtype) == (torch.int64, torch.bool)
        assert batch["wanted"].any(-1).all()
        outputs = batch["targets"][batch["wanted"]]
        assert 0 <= int(batch["inputs"].min()) <= int(batch["inputs"].max()) < task.tokens
        assert 0 <= int(outputs.min()) <= int(outputs.max()) < task.symbols
    assert task.tokens == task.symbols + 2


@pytest.mark.parametrize("name", MEMBERS)
def test_the_data_of_a_trial_is_the_same_in_any_lane_of_any_pack(name: str) -> None:
    task = task_of(name)
    for draw in (
        lambda s: task.training(s, 20, FIRST_STEP),
        lambda s: task.validation(s, 20),
        *((lambda s, c=condition: task.shifted_sets(s, 20)[c]) for condition in task.shifted_sets(streams([1]), 1)),
    ):
        alone = draw(streams([42], step=7))
        among = draw(streams([5, 6, 42, 7], step=7))
        assert all(torch.equal(among[key][2], alone[key][0]) for key in alone)


@pytest.mark.parametrize("name", MEMBERS)
def test_a_trial_trains_on_other_data_at_another_step_or_with_another_seed(name: str) -> None:
    task = task_of(name)
    first = task.training(streams([1]), 50, FIRST_STEP)["inputs"]
    assert not torch.equal(first, task.training(streams([1], step=1), 50, FIRST_STEP)["inputs"])
    assert not torch.equal(first, task.training(streams([2]), 50, FIRST_STEP)["inputs"])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [name for name in MEMBERS if name != "memorize"])
def test_held_out_examples_are_never_trained_on(name: str) -> None:
    task, seen = task_of(name), dict[str, set[tuple[int, ...]]]()
    for seed in range(2):
        for split, batch in splits(task, 2 * seed, 5000).items():
            seen.setdefault(split, set()).update(tuple(question) for question, _ in pairs(task, batch))
    assert len(seen) == {"add_mod": 2, "copying": 7, "mano": 5}.get(name, 3)
    for split in seen.keys() - {"training"}:
        assert not seen["training"] & seen[split]
    if name not in ("parentheses", "add_mod"):
        rest = set.union(*(questions for split, questions in seen.items() if split not in ("training", "validation")))
        assert not seen["validation"] & rest


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", MEMBERS)
def test_random_answers_are_right_as_often_as_chance_says(name: str) -> None:
    task = task_of(name)
    batch = {key: tensor[0] for key, tensor in task.validation(streams([8]), 20_000).items()}
    answers = sorted(set(batch["targets"][batch["wanted"]].tolist()))
    rows = torch.randint(len(answers), batch["targets"].shape, generator=torch.Generator().manual_seed(0))
    guesses = torch.nn.functional.one_hot(torch.tensor(answers)[rows], task.tokens).double()
    accuracy = task.metrics(guesses, batch)["accuracy"]
    chance = float(task.facts()["chance"])
    assert abs(float(accuracy.mean()) - chance) < 5 * math.sqrt(max(float(accuracy.var()), chance) / len(accuracy))


def test_the_chance_of_every_task() -> None:
    chances = {name: task_of(name).facts()["chance"] for name in MEMBERS if name != "copying"}
    assert chances == {
        "memorize": 1 / 32,
        "parentheses": 1 / 2,
        "add_mod": 1 / 97,
        "haystack": 1 / 64,
        "add": 1 / 10,
        "add_reversed": 1 / 10,
        "mano": 1 / 7,
    }


# --- loss and metrics


def draw_batch(name: str, seed: int = 0) -> tuple[Completion, Batch, Tensor]:
    """Return a small batch of one trial, with logits that are right about half of the time."""
    task = task_of(name)
    batch = {key: tensor[0] for key, tensor in task.training(streams([seed]), 60, FIRST_STEP).items()}
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(*batch["targets"].shape, task.tokens, dtype=torch.float64, generator=generator)
    helped = torch.rand(batch["targets"].shape, generator=generator) < 0.7
    return task, batch, logits + 9 * helped[..., None] * torch.nn.functional.one_hot(batch["targets"], task.tokens)


@pytest.mark.parametrize("name", MEMBERS)
def test_the_loss_is_the_cross_entropy_of_the_outputs_alone(name: str) -> None:
    task, batch, logits = draw_batch(name)
    targets = batch["targets"].masked_fill(~batch["wanted"], -100)
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)
    torch.testing.assert_close(task.loss(logits, batch), expected)


@pytest.mark.parametrize("name", MEMBERS)
def test_accuracy_counts_output_tokens_and_whole_outputs_for_copying(name: str) -> None:
    task, batch, logits = draw_batch(name)
    accuracies = task.metrics(logits, batch)["accuracy"]
    guesses = logits.numpy().argmax(-1)
    for row, guess in enumerate(guesses):
        right = [g == t for g, t, w in zip(guess, batch["targets"][row], batch["wanted"][row], strict=True) if w]
        expected = float(all(right)) if name == "copying" else np.mean(right)
        assert float(accuracies[row]) == pytest.approx(expected, abs=1e-12)
    assert 0.1 < float(accuracies.mean()) < 0.95


# --- what is particular to a task


@settings(max_examples=60)
@given(rest=st.lists(st.integers(0, 2**40), min_size=1, max_size=6), size=st.integers(16, 300))
def test_the_splits_share_out_a_coordinate_whatever_the_rest_is(rest: Tokens, size: int) -> None:
    every = torch.linspace(0, 2**32 - 1, 4000, dtype=torch.float64).long()
    rows = torch.tensor(rest).expand(len(every), -1)
    draws = {split: draw_in_split(every, rows, size, split).tolist() for split in Split}
    assert sorted(number for numbers in draws.values() for number in set(numbers)) == list(range(size))
    assert len(set(draws[Split.VALIDATION])) == len(set(draws[Split.TEST])) == size // 16
    counts = Counter(draws[Split.TRAINING]).values()
    assert max(counts) - min(counts) <= 1


def test_whole_numbers_below_a_size_are_uniform_and_unrelated_to_their_neighbours() -> None:
    numbers = below(fractions(streams([3]), 60_000), 5)[0]
    cells = np.unique((numbers[::2] * 5 + numbers[1::2]).numpy(), return_counts=True)[1]
    assert len(cells) == 25
    assert stats.chisquare(cells).pvalue > 1e-3


def test_memorize_has_one_value_for_each_of_1024_keys_and_validates_all() -> None:
    task = task_of("memorize")
    table = {tuple(key): value for key, value in pairs(task, task.validation(streams([4]), 7))}
    assert len(table) == 1024
    counts = Counter(value[0] for value in table.values())
    assert stats.chisquare([counts[value] for value in range(32)]).pvalue > 1e-3
    assert max(counts.values()) / 1024 == pytest.approx(0.043, abs=5e-4)


@pytest.mark.long
def test_add_mod_trains_on_8938_pairs_and_validates_the_other_471() -> None:
    task = task_of("add_mod")
    trained = {tuple(question) for question, _ in pairs(task, task.training(streams([1]), 140_000, FIRST_STEP))}
    validated = {tuple(question) for question, _ in pairs(task, task.validation(streams([1]), 1))}
    assert (len(trained), len(validated), len(trained | validated)) == (8938, 471, 97**2)


@pytest.mark.long
def test_parentheses_lengths_and_labels_are_as_told() -> None:
    task = task_of("parentheses")
    for split, allowed in {"training": range(1, 21), "validation": range(21, 41), "test": range(21, 41)}.items():
        examples = list(pairs(task, splits(task, 5, 10_000)[split]))
        assert {len(question) for question, _ in examples} == set(allowed)
        assert np.mean([answer == [3] for _, answer in examples]) == pytest.approx(0.46, abs=0.02)


@pytest.mark.long
def test_balanced_strings_of_a_length_are_equally_likely() -> None:
    task = plugins.build(Task, {"name": "parentheses", "length": 8})
    assert isinstance(task, Completion)
    strings = [
        tuple(q) for q, a in pairs(task, task.training(streams([2]), 60_000, FIRST_STEP)) if a == [3] and len(q) == 8
    ]
    counts = Counter(strings)
    assert len(counts) == 14  # the fourth Catalan number
    assert stats.chisquare(list(counts.values())).pvalue > 1e-3


def test_haystack_draws_counts_uniformly_and_asks_for_repeated_markers_too() -> None:
    task = task_of("haystack")
    questions = [question for question, _ in pairs(task, task.training(streams([6]), 20_000, FIRST_STEP))]
    counts = Counter(len(question) // 2 for question in questions)
    assert counts.keys() == set(range(1, 11))
    assert stats.chisquare(list(counts.values())).pvalue > 1e-3
    assert sum(question[:-1:2].count(question[-1]) > 1 for question in questions) > 500


def test_copying_lengths_are_uniform_and_tests_are_by_length() -> None:
    task = task_of("copying")
    batches = splits(task, 9, 5000)
    for split, allowed in {"training": range(2, 11), "validation": range(2, 16)}.items():
        counts = Counter(len(question) for question, _ in pairs(task, batches[split]))
        assert counts.keys() == set(allowed)
        assert stats.chisquare(list(counts.values())).pvalue > 1e-3
    for length in range(16, 21):
        assert {len(question) for question, _ in pairs(task, batches[f"length={length}"])} == {length}


def test_copying_tests_of_all_lengths_together_have_a_share_of_each() -> None:
    task = plugins.build(Task, {"name": "copying", "test_together": True})
    assert isinstance(task, Completion)
    examples = list(pairs(task, splits(task, 9, 10)["lengths=16-20"]))
    assert [len(question) for question, _ in examples[:10]] == [*range(16, 21)] * 2
    assert all(answer == question for question, answer in examples)


@pytest.mark.parametrize(("length", "validation"), [(16, 15), (10, 20)])
def test_copying_refuses_lengths_out_of_order(length: int, validation: int) -> None:
    with pytest.raises(
        PluginError, match=rf"^task.validation_length: {validation} must be at least task.length {length} "
    ):
        plugins.build(Task, {"name": "copying", "length": length, "validation_length": validation})


def test_addition_has_four_digits_and_the_carry_decides_how_many_the_sum_has() -> None:
    for question, answer in pairs(task_of("add"), task_of("add").training(streams([1]), 3000, FIRST_STEP)):
        assert (len(question), question[4]) == (9, 10)
        assert (len(answer), answer[0]) == (5, 1) or len(answer) == 4


def operations(question: Tokens) -> int:
    return sum(token in (7, 8, 9) for token in question)


@pytest.mark.long
def test_mano_has_a_fixed_training_set_that_keeps_to_its_129_short_expressions() -> None:
    task = plugins.build(Task, {"name": "mano", "training_examples": 500})
    assert isinstance(task, Completion)
    first, second = (
        {tuple(q) for q, _ in pairs(task, task.training(streams([seed]), 10_000, FIRST_STEP))} for seed in (1, 2)
    )
    assert first == second
    assert len(first) < 500
    whole = task_of("mano")
    short = [{tuple(q) for q, _ in pairs(whole, b) if operations(q) == 1} for b in splits(whole, 3, 6000).values()]
    assert [len(expressions) for expressions in short] == [129, 9, 9, 0, 0]
    for count in (1, 2, 3):
        tested = splits(whole, 3, 500)[f"operations={count}"]
        assert {operations(question) for question, _ in pairs(whole, tested)} == {count}


def test_mano_draws_operations_and_forms_as_the_recursion_does() -> None:
    def form(node: ast.AST) -> str:
        return f"({form(node.left)}{form(node.right)})" if isinstance(node, ast.BinOp) else "."

    task = task_of("mano")
    questions = [question for question, _ in pairs(task, task.validation(streams([5]), 20_000))]
    counts = Counter(form(ast.parse(expression(question), mode="eval").body) for question in questions)
    expected = {"(..)": 6, "((..).)": 3, "(.(..))": 3, "((..)(..))": 2}
    expected |= {"(((..).).)": 1, "((.(..)).)": 1, "(.((..).))": 1, "(.(.(..)))": 1}
    assert counts.keys() == expected.keys()
    assert (
        stats.chisquare([counts[key] for key in expected], [20_000 * n / 18 for n in expected.values()]).pvalue > 1e-3
    )
    assert len(max(questions, key=len)) == 11


def test_mano_writes_the_examples_of_table_1() -> None:
    assert [expression(q) for q in ([10, 1, 9, 3, 11, 7, 4], [10, 2, 8, 10, 6, 8, 1, 11, 11, 9, 3])] == [
        "(1*3)+4",
        "(2-(6-1))*3",
    ]
    assert SOLVERS["mano"]([10, 1, 9, 3, 11, 7, 4]) == [0]
    assert SOLVERS["mano"]([10, 2, 8, 10, 6, 8, 1, 11, 11, 9, 3]) == [5]


# --- in the engine


def small(name: str, **sizes: int) -> dict:
    return config(steps=4, every=4, dtype="float32", vocabulary=12) | {"task": {"name": name, **sizes}}


def finished(pack: Pack) -> dict[int, Report]:
    return {report.number: report for report in pack.train(100)}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["add_mod", "copying"])
def test_a_trial_reports_the_same_numbers_alone_and_packed(name: str) -> None:
    trials = [trial(number, small(name)) for number in range(5)]
    together = Pack(trials[0], width=5)
    together.fill(trials)
    alone = Pack(trials[3], width=1)
    alone.fill(trials[3:4])
    reports = finished(together)
    assert reports[3] == finished(alone)[3]
    conditions = [metric.condition for metric in reports[3].metrics if metric[:2] == ("accuracy", "raw")]
    assert conditions == ["", *task_of(name).shifted_sets(streams([1]), 1)]


def test_a_fixed_set_is_judged_whole() -> None:
    """The mean is over the 471 pairs, although a validation is said to have 40 sequences and a batch 16."""
    candidate = trial(0, small("add_mod"))
    pack = Pack(candidate, width=2)
    pack.fill([candidate])
    pack.train(3)
    [accuracy, *_] = pack.evaluate([0])[0]
    recipe = Recipe.of(candidate.config)
    batch = {key: tensor[0] for key, tensor in recipe.task.validation(streams([candidate.seed]), 1).items()}
    expected = recipe.task.metrics(recipe.model.outputs(pack.parameters(0), batch, {}), batch)["accuracy"]
    assert accuracy == Metric("accuracy", "raw", "", pytest.approx(float(expected.double().mean()), abs=1e-12))


def test_a_small_transformer_learns_a_small_table_by_heart() -> None:
    settings = small("memorize", integers=4)
    settings["model"] = {"name": "transformer", "depth": 1, "width": 16}
    settings["optimizer"] = {"name": "adamw", "learning_rate": 0.01, "weight_decay": 0.0}
    settings["training"] |= {"steps": 300, "validate_every": 300, "batch": 32}
    candidate = trial(0, settings)
    pack = Pack(candidate, width=2)
    pack.fill([candidate])
    [report] = pack.train(300)
    assert report.metrics[0] == Metric("accuracy", "raw", "", 1.0)


# --- the packaged spaces

TABLE_4 = {
    # width, heads, layers, steps, batch, beta1, beta2, steps of the score (Appendix B)
    "memorize": (32, 2, 2, 500, 512, 0.9, 0.999, 150),
    "parentheses": (32, 2, 2, 500, 512, 0.9, 0.999, 300),
    "add_mod": (32, 2, 2, 1000, 512, 0.9, 0.999, 300),
    "haystack": (128, 2, 2, 1000, 512, 0.9, 0.999, 400),
    "add": (128, 2, 2, 1000, 512, 0.92, 0.98, 700),
    "add_reversed": (128, 2, 2, 1000, 512, 0.92, 0.98, 350),
    "copying": (128, 2, 2, 2000, 512, 0.92, 0.98, 2000),
    "mano": (128, 8, 4, 5000, 512, 0.9, 0.999, 3000),
}


@pytest.mark.parametrize("name", MEMBERS)
def test_the_packaged_baseline_has_the_sizes_of_table_4_and_differs_by_seed_alone(name: str) -> None:
    space = spaces.load(f"algorithmic/{name}", families())
    space.check()
    trials = [space.sample(number, lambda draw: 0.5) for number in range(space.search.trials)]
    assert len({candidate.seed for candidate in trials}) == 6
    assert all(
        (candidate.config, candidate.structure) == (trials[0].config, trials[0].structure) for candidate in trials
    )
    model, optimizer, training = (trials[0].config[part] for part in ("model", "optimizer", "training"))
    *sizes, score = TABLE_4[name]
    assert (
        model["width"],
        model["heads"],
        model["depth"],
        training["steps"],
        training["batch"],
        optimizer["beta1"],
        optimizer["beta2"],
    ) == tuple(sizes)
    assert score % training["validate_every"] == 0
    assert (model["pre_norm"], model["tied"], model["canon"]) == (
        (False, True, "ABCD") if name == "mano" else (False, False, "none")
    )
    assert optimizer["weight_decay"] == 0
    assert optimizer["schedule"] == {"name": "warmup_cooldown", "warmup": 0.05, "cooldown": 0.5}
    assert Recipe.of(trials[0].config).task == task_of(name)


@pytest.mark.parametrize("name", MEMBERS)
def test_logits_that_are_no_numbers_have_no_accuracy(name: str) -> None:
    task, batch, logits = draw_batch(name)
    logits = logits.clone()
    logits[0] = math.nan
    accuracy = task.metrics(logits, batch)["accuracy"]
    assert accuracy[0].isnan()
    assert not accuracy[1:].isnan().any()

"""CLRS-Text: every text against plain solvers that read it, and against what the published generator writes."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from itertools import chain, combinations
from pathlib import Path

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
from spaces.records import Report
from tests.support.clrs_solvers import SOLVERS, SORTS, key_of, numbers, shown, source_of, thousandths_of, weights_of
from tests.support.trials import FIRST_STEP, config, trial
from workers.data.clrs.catalogue import ALGORITHMS
from workers.data.clrs.writing import (
    ALPHABET,
    compact,
    decode,
    encode,
    places,
    thousandths,
    write,
    write_list,
)
from workers.data.tasks import Batch, Task
from workers.data.tasks.clrs_text import ClrsText
from workers.engine.pack import Pack
from workers.numerics.randomness import Purpose, Streams
from workers.training.recipe import Recipe

HINTED = (*SORTS, "minimum")


def task_of(algorithm: str, **fields: int | bool) -> ClrsText:
    task = plugins.build(Task, {"name": "clrs_text", "algorithm": algorithm, **fields})
    assert isinstance(task, ClrsText)
    return task


def streams(seeds: list[int], step: int = 0, purpose: Purpose = Purpose.TRAINING_DATA) -> Streams:
    return Streams.of(torch.tensor(seeds), purpose, step)


def splits(task: ClrsText, seed: int, count: int) -> dict[str, Batch]:
    """Every set that the task is trained or evaluated on."""
    return {
        "training": task.training(streams([seed]), count, FIRST_STEP),
        "validation": task.validation(streams([seed], purpose=Purpose.VALIDATION_DATA), count),
        **task.shifted_sets(streams([seed + 1], purpose=Purpose.VALIDATION_DATA), count),
    }


def texts(task: ClrsText, batch: Batch) -> Iterator[tuple[str, str]]:
    """Question and answer of each sequence of all lanes, cut out of what the model reads and predicts."""
    rows = (batch[name].flatten(0, 1).tolist() for name in ("inputs", "targets", "wanted"))
    for inputs, targets, wanted in zip(*rows, strict=True):
        asking = wanted.index(True)
        question, answer = inputs[: asking + 1], targets[asking : asking + sum(wanted)]
        assert [*inputs, targets[-1]] == question + answer + [task.padding] * (
            len(inputs) + 1 - asking - 1 - len(answer)
        )
        yield decode(question), decode(answer)


def size_of(question: str) -> int:
    """Items of the first list of the text, for graphs of the first row; a search tree's has one more."""
    return len(re.findall(r"\[+([^\[\]]*)\]", question)[0].split()) - question.startswith("optimal_bst")


def entries(question: str) -> list[list[float]]:
    """Return the matrix of a graph."""
    return [list(map(float, row.split())) for row in re.findall(r"\[([\d. ]+)\]", question)]


# --- every algorithm


@pytest.mark.sampled(6)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_plain_solver_agrees_on_texts_of_every_split(algorithm: str) -> None:
    task, (solver, asked) = task_of(algorithm), SOLVERS[algorithm]
    for split, batch in splits(task, 11, 60).items():
        examples = list(texts(task, batch))
        assert len(examples) == 60
        for question, answer in examples:
            assert answer == f"{solver(question)}\n\n", (split, question)
            assert question.startswith(f"{algorithm}:\n")
            assert question.endswith(f"\n{asked}:\n")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "segments_intersect"])
def test_sizes_are_uniform_in_training_and_fixed_in_each_condition(algorithm: str) -> None:
    task = task_of(algorithm, smallest=5, largest=9, farthest=11, stride=3)
    batches = splits(task, 5, 300)
    assert list(batches) == ["training", "validation", "size=5", "size=8", "size=11"]
    for split, batch in batches.items():
        counts = Counter(size_of(question) for question, _ in texts(task, batch))
        if split in ("training", "validation"):
            assert counts.keys() == set(range(5, 10))
            assert stats.chisquare(list(counts.values())).pvalue > 1e-3
        else:
            assert {f"size={size}" for size in counts} == {split}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_text_fits_into_the_context(algorithm: str) -> None:
    task = task_of(algorithm, smallest=10, largest=12, farthest=14, stride=1)
    for split, batch in splits(task, 3, 60).items():
        context = task.context if split == "training" else task.longest
        assert batch["inputs"].shape == (1, 60, context)
        assert all(answer.endswith("\n\n") for _, answer in texts(task, batch))
    assert task.tokens == len(ALPHABET) + 2 == 50


STAR = [int(11 in (node, other)) for node in range(12) for other in range(12)]
"""The matrix of a star around the last of twelve nodes."""

LONGEST = {
    **dict.fromkeys((*SORTS, "minimum"), [999] * 11 + [111]),
    "binary_search": [999] + [111] * 12,
    "find_maximum_subarray_kadane": [-999] * 11 + [-111],
    "quickselect": [111] * 6 + [999] * 5 + [555],
    "activity_selector": [111, 999] * 12,
    "task_scheduling": [111, 12] * 12,
    "matrix_chain_order": list(range(111, 135, 2)),
    "bfs": [11, *STAR],
    **{name: [11, *(111 if link else 999 for link in STAR)] for name in ("mst_prim", "bellman_ford", "dijkstra")},
    **dict.fromkeys(("articulation_points", "bridges"), [0] * 145),
    "mst_kruskal": [0] + [111] * 144,
    **dict.fromkeys(("lcs_length", "naive_string_matcher", "kmp_matcher"), [0] * 12),
    "segments_intersect": [111] * 8,
    **dict.fromkeys(("graham_scan", "jarvis_march"), [-1111] * 24),
}
"""What is written at its longest; of the other algorithms the context is a bound."""


@pytest.mark.parametrize("algorithm", LONGEST)
def test_the_longest_text_is_as_long_as_the_context_says(algorithm: str) -> None:
    parts = ALGORITHMS[algorithm].parts(torch.tensor([[LONGEST[algorithm]]]), torch.tensor([[[12]]]))
    longest = ALGORITHMS[algorithm].longest(12)
    assert [len(text_of(piece)) for piece in parts] == [len(piece) for piece in longest]
    whole = f"{algorithm}:\n{longest.given}\n{ALGORITHMS[algorithm].asked}:\n{longest.answer}\n\n"
    assert task_of(algorithm, largest=12).context == len(whole) - 1


@pytest.mark.sampled(3)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_data_of_a_trial_is_the_same_in_any_lane_of_any_pack(algorithm: str) -> None:
    task = task_of(algorithm, hints=algorithm in HINTED, largest=5, farthest=6)
    for draw in (
        lambda s: task.training(s, 20, FIRST_STEP),
        lambda s: task.validation(s, 20),
        *((lambda s, c=condition: task.shifted_sets(s, 20)[c]) for condition in task.shifted_sets(streams([1]), 1)),
    ):
        alone = draw(streams([42], step=7))
        among = draw(streams([5, 6, 42, 7], step=7))
        assert all(torch.equal(among[key][2], alone[key][0]) for key in alone)
        assert not torch.equal(alone["inputs"], draw(streams([42], step=8))["inputs"])
        assert not torch.equal(alone["inputs"], draw(streams([43], step=7))["inputs"])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_held_out_texts_are_never_trained_on(algorithm: str) -> None:
    """At sizes of which many examples are drawn twice, and whatever sizes the task has beside them."""
    seen: dict[str, set[str]] = {}
    for largest, count in {4: 2000, 6: 400}.items():
        task = task_of(algorithm, largest=largest, farthest=largest)
        for split, batch in splits(task, largest, count).items():
            name = split if split in ("training", "validation") else "test"
            seen.setdefault(name, set()).update(question for question, _ in texts(task, batch))
    for part, other in combinations(seen.values(), 2):
        assert not part & other
    shares = {"lcs_length": [224, 16, 16], "kmp_matcher": [98, 7, 7]}
    if algorithm in shares:  # every text of four letters, but for patterns that are only at the end
        assert [Counter(map(size_of, questions))[4] for questions in seen.values()] == shares[algorithm]


DRAWN = {
    # how often each value is drawn, keys in tenths
    "heapsort": (dict.fromkeys(range(10), 1 / 10), lambda q: [int(10 * key) for key in key_of(q)]),
    "binary_search": (dict.fromkeys(range(10), 1 / 10), lambda q: [int(10 * numbers(q)[-1])]),
    "find_maximum_subarray_kadane": (
        {-1: 999 / 1999, 0: 1 / 1999, 1: 999 / 1999},
        lambda q: [(key > 0) - (key < 0) for key in numbers(q)],
    ),
    **dict.fromkeys(
        ("lcs_length", "kmp_matcher"), (dict.fromkeys(range(4), 1 / 4), lambda q: numbers(q.split("key: ")[1])[-4:])
    ),
    "task_scheduling": (
        dict.fromkeys(range(1, 7), 1 / 6),
        lambda q: [int(d) for d in q.split("[")[1].split("]")[0].split()],
    ),
    "activity_selector": (
        # the smaller and the larger of two uniform numbers, in quarters
        {(0, quarter): (7 - 2 * quarter) / 32 for quarter in range(4)}
        | {(1, quarter): (1 + 2 * quarter) / 32 for quarter in range(4)},
        lambda q: [(item // 6, int(4 * time)) for item, time in enumerate(numbers(q))],
    ),
    "segments_intersect": ({0: 1 / 2, 1: 1 / 2}, lambda q: [int(SOLVERS["segments_intersect"][0](q))]),
    "jarvis_march": (
        # points in four rings of the same area
        dict.fromkeys(range(4), 1 / 4),
        lambda q: [min(int(x * x + y * y), 3) for x, y in zip(numbers(q)[:6], numbers(q)[6:], strict=True)],
    ),
}


@pytest.mark.parametrize("algorithm", DRAWN)
def test_numbers_are_drawn_as_told(algorithm: str) -> None:
    shares, read = DRAWN[algorithm]
    task = task_of(algorithm, smallest=6, largest=6)
    counts = Counter(n for q, _ in texts(task, task.training(streams([9]), 3000, FIRST_STEP)) for n in read(q))
    assert counts.keys() == shares.keys()
    expected = [share * counts.total() for share in shares.values()]
    assert stats.chisquare([counts[number] for number in shares], expected).pvalue > 1e-3


@pytest.mark.parametrize(
    ("algorithm", "links", "loops"),
    [
        # how many of the pairs of nodes below the diagonal, and of the fifth and sixth node's loops
        ("bfs", 1 / 4, 1 / 2),
        ("dijkstra", 1 / 4, 1 / 2),
        ("dfs", 1 / 2, 1 / 2),
        ("topological_sort", 1 / 4, 0),
        ("bridges", 1 / 25, 1 / 5),
        # parts of one, one, one, and three nodes: 6 of 30 ordered pairs in one part, 12 from a part to a later one
        ("strongly_connected_components", (6 / 2 + 12 / 100) / 30, 1 / 2),
    ],
)
def test_graphs_have_their_share_of_links_and_loops(algorithm: str, links: float, loops: float) -> None:
    task = task_of(algorithm, smallest=6, largest=6)
    edges, self_edges, sources = list[bool](), list[bool](), Counter[str]()
    for question, _ in texts(task, task.training(streams([4]), 1500, FIRST_STEP)):
        rows = entries(question)
        self_edges += [rows[node][node] > 0 for node in (4, 5)]
        edges += [rows[node][other] > 0 for other, node in combinations(range(6), 2)]
        sources.update(re.findall(r"\ns: (\d)", question))
    assert stats.binomtest(sum(edges), len(edges), links).pvalue > 1e-3
    assert stats.binomtest(sum(self_edges), len(self_edges), loops).pvalue > 1e-3
    assert sources.keys() == (set("012345") if algorithm in ("bfs", "dijkstra") else set())
    assert not sources or stats.chisquare(list(sources.values())).pvalue > 1e-3


@pytest.mark.parametrize(("algorithm", "power"), [("dijkstra", 2), ("dag_shortest_paths", 1)])
def test_weights_are_uniform_numbers_or_the_root_of_two(algorithm: str, power: int) -> None:
    task = task_of(algorithm, smallest=6, largest=6)
    matrices = [entries(question) for question, _ in texts(task, task.training(streams([5]), 300, FIRST_STEP))]
    weights = [row[other] for rows in matrices for node, row in enumerate(rows) for other in range(node) if row[other]]
    uniform, other = np.random.default_rng(0).random((2, len(weights)))
    expected = uniform if power == 1 else np.sqrt(uniform * other + 1e-3)
    assert stats.ks_2samp(weights, expected).pvalue > 1e-3


def test_a_search_trees_probabilities_are_uniform_numbers_over_their_sum() -> None:
    task = task_of("optimal_bst", smallest=6, largest=6)
    probabilities = [numbers(q) for q, _ in texts(task, task.training(streams([6]), 500, FIRST_STEP))]
    assert all(values.pop(6) == 0 for values in probabilities)
    drawn = np.random.default_rng(0).random((500, 13))
    expected = drawn / drawn.sum(1, keepdims=True)
    for index in (0, 6, 12):  # p_0, q_0, which decides the split, and q_6
        assert stats.ks_2samp([values[index] for values in probabilities], expected[:, index]).pvalue > 1e-3


# --- the format

EXAMPLES = [
    # what dm-clrs 2.0.3 writes, inputs cut to three decimals
    (
        "insertion_sort",
        [548, 715, 602, 544, 423],
        "key: [0.548 0.715 0.602 0.544 0.423]\npred:\n",
        "[0.423 0.544 0.548 0.602 0.715]",
    ),
    ("minimum", [548, 715, 602, 544, 423], "key: [0.548 0.715 0.602 0.544 0.423]\nmin:\n", "4"),
    (
        "binary_search",
        [645, 423, 544, 548, 602, 715],
        "key: [0.423 0.544 0.548 0.602 0.715], target: 0.645\nreturn:\n",
        "4",
    ),
    (
        "find_maximum_subarray_kadane",
        [97, 430, 205, 89, -152],
        "key: [0.097 0.43 0.205 0.089 -0.152]\nstart, end:\n",
        "0, 3",
    ),
    (
        "bfs",
        [0, 1, 1, 1, 0, 0, 1, 0, 1, 0, 0, 1, 1, 1, 1, 0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 0],
        "s: 0, A: [[1 1 1 0 0], [1 0 1 0 0], [1 1 1 1 0], [0 0 1 1 1], [0 0 0 1 0]]\npi:\n",
        "[0 0 0 2 3]",
    ),
    (
        "lcs_length",
        [0, 3, 1, 0, 3],
        "string: [0 0 0 1 1], key: [0 3 1 0 3]\nb:\n",
        "[[-1 -1 -1 0 2], [-1 -1 -1 1 0], [-1 -1 -1 1 1], [-1 -1 -1 -1 -1], [-1 -1 -1 -1 -1]]",
    ),
]


@pytest.mark.parametrize(("algorithm", "example", "question", "answer"), EXAMPLES)
def test_an_example_reads_as_the_published_generator_writes_it(
    algorithm: str, example: list[int], question: str, answer: str
) -> None:
    parts = ALGORITHMS[algorithm].parts(torch.tensor([[example]]), torch.tensor([[[5]]]))
    given, said = (text_of(piece) for piece in parts)
    assert f"{given}\n{ALGORITHMS[algorithm].asked}:\n" == question
    assert said == answer


PUBLISHED = (Path(__file__).parents[2] / "data" / "clrs_text.txt").read_text().strip().split("\n\n")
"""A text of each other algorithm, size 7, as the generator of dm-clrs 2.0.3 writes it, cut to three decimals."""

PAIRED = {"activity_selector": "sf", "task_scheduling": "wd", "graham_scan": "xy", "jarvis_march": "xy"}


def example_of(algorithm: str, question: str) -> list[int]:
    """Return the numbers that an algorithm's text is made of."""
    if algorithm in PAIRED:
        first, second = (thousandths_of(question, name) for name in PAIRED[algorithm])
        scale = 1000 if algorithm == "task_scheduling" else 1
        return [number for value, other in zip(first, second, strict=True) for number in (value, other // scale)]
    if algorithm == "optimal_bst":
        keys, between = thousandths_of(question, "p"), thousandths_of(question, "q")
        return [number for pair in zip(between, keys, strict=True) for number in pair][:-1]
    if algorithm == "segments_intersect":
        return thousandths_of(question, "x") + thousandths_of(question, "y")
    if " A: " in question or "\nA: " in question:
        return [source_of(question) if "\ns: " in question else 0, *chain(*weights_of(question))]
    scale = 1000 if "string: " in question else 1
    return [number // scale for number in thousandths_of(question, "p" if "\np: " in question else "key")]


@pytest.mark.parametrize("published", PUBLISHED, ids=lambda text: text.split(":")[0])
def test_a_published_text_is_written_from_its_numbers(published: str) -> None:
    algorithm, given, asked, answer = published.split("\n")
    algorithm = algorithm.removesuffix(":")
    row = example_of(algorithm, f"{algorithm}:\n{given}\n")
    parts = ALGORITHMS[algorithm].parts(torch.tensor([[row]]), torch.tensor([[[7]]]))
    assert [text_of(piece) for piece in parts] == [given, answer]
    assert asked == f"{ALGORITHMS[algorithm].asked}:"


def test_every_algorithm_has_a_published_text() -> None:
    named = {text.split(":")[0] for text in PUBLISHED} | {algorithm for algorithm, *_ in EXAMPLES}
    assert ALGORITHMS.keys() - named == {"bubble_sort", "heapsort", "quicksort"}  # these write what insertion sort does
    assert len(ALGORITHMS) == 30


def text_of(piece: Tensor) -> str:
    tokens, length = compact(piece)
    return decode(tokens.flatten()[: int(length)].tolist())


@given(values=st.lists(st.integers(-999, 999), min_size=1, max_size=9), kept=st.integers(0, 9))
@settings(max_examples=60)
def test_numbers_are_written_as_python_writes_them(values: list[int], kept: int) -> None:
    kept = min(kept, len(values))
    row = write_list(thousandths(torch.tensor([[values]])), torch.tensor([[[kept]]]))
    assert text_of(row) == shown([value / 1000 for value in values[:kept]])
    whole = write_list(places(torch.tensor([[values]]).abs() % 100), torch.tensor([[[kept]]]), ", ")
    assert text_of(whole) == str([abs(value) % 100 for value in values[:kept]])


@given(text=st.text(ALPHABET))
def test_text_is_its_tokens_and_back(text: str) -> None:
    assert decode(encode(text)) == text
    assert all(token == int(decode([token])) for token in encode(text) if decode([token]).isdigit())


def test_a_character_outside_the_alphabet_is_refused() -> None:
    with pytest.raises(ValueError, match="substring not found"):
        encode("B")


def test_pieces_follow_one_another_for_every_sequence() -> None:
    values = torch.tensor([[[0], [10], [7]]])
    rows = write(["is: ", places(values).flatten(-2), "."], values)
    assert [text_of(row[None, None]) for row in rows[0]] == ["is: 0.", "is: 10.", "is: 7."]


# --- traces, against the textbook's procedures run on lists


def insertion_states(keys: list[float]) -> list[list[float]]:
    states = []
    for j in range(1, len(keys)):
        key, i = keys[j], j - 1
        while i >= 0 and keys[i] > key:
            keys[i + 1] = keys[i]
            i -= 1
        keys[i + 1] = key
        states.append(list(keys))
    return states


def bubble_states(keys: list[float]) -> list[list[float]]:
    states = []
    for i in range(len(keys) - 1):
        for j in range(len(keys) - 1, i, -1):
            if keys[j] < keys[j - 1]:
                keys[j], keys[j - 1] = keys[j - 1], keys[j]
            states.append(list(keys))
    return states


def heap_states(keys: list[float]) -> list[list[float]]:
    states: list[list[float]] = []

    def heapify(i: int, size: int) -> None:
        largest = max([i] + [child for child in (2 * i + 1, 2 * i + 2) if child < size], key=lambda node: keys[node])
        keys[i], keys[largest] = keys[largest], keys[i]
        states.append(list(keys))
        if largest != i:
            heapify(largest, size)

    for i in reversed(range(len(keys))):
        heapify(i, len(keys))
    for last in reversed(range(1, len(keys))):
        keys[0], keys[last] = keys[last], keys[0]
        states.append(list(keys))
        heapify(0, last)
    return states


def quick_states(keys: list[float]) -> list[list[float]]:
    states: list[list[float]] = []

    def sort(p: int, r: int) -> None:
        if p >= r:
            return
        i = p
        for j in range(p, r):
            if keys[j] <= keys[r]:
                keys[i], keys[j] = keys[j], keys[i]
                i += 1
            states.append(list(keys))
        keys[i], keys[r] = keys[r], keys[i]
        states.append(list(keys))
        sort(p, i - 1)
        sort(i + 1, r)

    sort(0, len(keys) - 1)
    return states[1:]


def minimum_states(keys: list[float]) -> list[int]:
    return [keys.index(min(keys[: i + 1])) for i in range(1, len(keys))]


STATES = {
    "insertion_sort": insertion_states,
    "bubble_sort": bubble_states,
    "heapsort": heap_states,
    "quicksort": quick_states,
}


@pytest.mark.parametrize("algorithm", HINTED)
def test_hints_are_the_textbooks_steps(algorithm: str) -> None:
    task = task_of(algorithm, hints=True, largest=8, farthest=9, stride=5)
    solver, asked = SOLVERS[algorithm]
    for split, batch in splits(task, 21, 100).items():
        for question, answer in texts(task, batch):
            keys = key_of(question)
            if algorithm == "minimum":
                start, steps = "0", list(map(str, minimum_states(keys)))
            else:
                start, steps = shown(keys), list(map(shown, STATES[algorithm](list(keys))))
            assert question == f"{algorithm}:\nkey: {shown(keys)}, initial_trace: {start}\ntrace | {asked}:\n"
            assert answer == f"{', '.join(steps[:-1])} | {solver(question)}\n\n", split
            assert steps[-1] == solver(question)


@pytest.mark.parametrize("algorithm", HINTED)
def test_every_text_with_hints_fits_into_the_context(algorithm: str) -> None:
    task = task_of(algorithm, hints=True, largest=6, farthest=6)
    examples = list(texts(task, task.training(streams([1]), 500, FIRST_STEP)))
    assert all(answer.endswith("\n\n") for _, answer in examples)
    assert task.context == task.longest


def test_the_published_trace_of_quicksort() -> None:
    trace = ALGORITHMS["quicksort"].trace(torch.tensor([[[548, 715, 602, 544, 423]]]), torch.tensor([[[5]]]))
    assert text_of(trace.start) == "[0.548 0.715 0.602 0.544 0.423]"
    assert text_of(trace.steps) == ", ".join(
        ["[0.548 0.715 0.602 0.544 0.423]"] * 3
        + ["[0.423 0.715 0.602 0.544 0.548]"] * 3
        + ["[0.423 0.544 0.602 0.715 0.548]"]
        + ["[0.423 0.544 0.548 0.715 0.602]"] * 2
    )


# --- what may not be asked for


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"algorithm": "bogosort"}, "task.algorithm: 'bogosort' must be one of insertion_sort, bubble_sort, "),
        ({"smallest": 3}, r"task.smallest: 3 must be an integer in \[4, 100\]"),
        ({"smallest": 9}, "task.largest: 8 must be at least task.smallest 9 and at most task.farthest 16$"),
        ({"farthest": 7}, "task.largest: 8 must be at least task.smallest 4 and at most task.farthest 7$"),
        (
            {"algorithm": "bfs", "hints": True},
            "task.hints: true, but bfs has none; choose one of insertion_sort, bubble_sort, heapsort, quicksort, min",
        ),
    ],
)
def test_a_mistake_is_one_line_with_value_rule_and_choices(fields: dict, message: str) -> None:
    with pytest.raises(PluginError, match=f"^{message}"):
        plugins.build(Task, {"name": "clrs_text", **fields}, "task")


# --- metrics


def draw_batch(algorithm: str) -> tuple[ClrsText, Batch, Tensor]:
    """Return a small batch of one trial, with logits that get most characters right."""
    task = task_of(algorithm, largest=5, farthest=5)
    batch = {key: tensor[0] for key, tensor in task.validation(streams([3]), 60).items()}
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(*batch["targets"].shape, task.tokens, dtype=torch.float64, generator=generator)
    helped = torch.rand(batch["targets"].shape, generator=generator) < 0.95
    return task, batch, logits + 9 * helped[..., None] * torch.nn.functional.one_hot(batch["targets"], task.tokens)


@pytest.mark.parametrize("algorithm", ["quicksort", "minimum", "bfs"])
def test_accuracy_counts_whole_answers_and_token_accuracy_characters(algorithm: str) -> None:
    task, batch, logits = draw_batch(algorithm)
    metrics = task.metrics(logits, batch)
    rows = zip(logits.argmax(-1).tolist(), batch["targets"].tolist(), batch["wanted"].tolist(), strict=True)
    for row, (guess, target, wanted) in enumerate(rows):
        right = [g == t for g, t, w in zip(guess, target, wanted, strict=True) if w]
        assert float(metrics["accuracy"][row]) == all(right)
        assert float(metrics["token_accuracy"][row]) == pytest.approx(sum(right) / len(right), abs=1e-12)
    assert 0 < float(metrics["accuracy"].mean()) < float(metrics["token_accuracy"].mean()) < 1


def test_logits_that_are_no_numbers_have_no_accuracy() -> None:
    task, batch, logits = draw_batch("minimum")
    logits[0] = math.nan
    for values in task.metrics(logits, batch).values():
        assert values[0].isnan()
        assert not values[1:].isnan().any()


# --- in the engine


@pytest.mark.long
def test_a_trial_reports_the_same_numbers_alone_and_packed() -> None:
    def finished(pack: Pack) -> dict[int, Report]:
        return {report.number: report for report in pack.train(100)}

    task = {"name": "clrs_text", "algorithm": "minimum", "largest": 5, "farthest": 6, "stride": 1}
    settings = config(steps=4, every=4, dtype="float32", width=60, value_width=50) | {"task": task}
    trials = [trial(number, settings) for number in range(3)]
    together, alone = Pack(trials[0], width=3), Pack(trials[2], width=1)
    together.fill(trials)
    alone.fill(trials[2:])
    reports = finished(together)
    assert reports[2] == finished(alone)[2]
    conditions = [metric.condition for metric in reports[2].metrics if metric[:2] == ("accuracy", "raw")]
    assert conditions == ["", "size=4", "size=5", "size=6"]


# --- the packaged spaces


@pytest.mark.long
def test_the_packaged_space_is_the_grid_of_all_algorithms_and_sizes() -> None:
    space = spaces.load("clrs_text", families())
    space.check()
    drawn = {draw.name: draw.choices for draw in space.trial_draws}
    assert drawn == {"task.algorithm": 30, "task.largest": 3, "optimizer.learning_rate": 3}
    assert space.search.trials == math.prod(drawn.values())
    every = {
        space.sample(0, lambda draw, u=u: u).config["task"]["algorithm"] for u in [k / 30 + 0.01 for k in range(30)]
    }
    assert every == set(ALGORITHMS)


def test_the_quick_space_trains_on_the_same_task() -> None:
    space = spaces.load("quick/clrs_text", families())
    space.check()
    assert isinstance(Recipe.of(space.sample(0, lambda draw: 0.5).config).task, ClrsText)

"""CLRS-Text: every text against plain solvers that read it, and against what the published generator writes."""

from __future__ import annotations

import bisect
import math
import re
from collections import Counter
from collections.abc import Iterator
from itertools import combinations

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
from tests.trials import FIRST_STEP, config, trial
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
from workers.data.tasks.clrs_text import ALGORITHMS, ClrsText
from workers.engine.pack import Pack
from workers.numerics.randomness import Purpose, Streams
from workers.training.recipe import Recipe

SORTS = ("insertion_sort", "bubble_sort", "heapsort", "quicksort")
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


# --- solvers that read the text


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d[\d.]*", text)]


def shown(keys: list[float]) -> str:
    return f"[{' '.join(map(str, keys))}]"


def key_of(question: str) -> list[float]:
    [key] = re.findall(r"\nkey: \[(.*?)\]", question)
    assert all(0 <= number < 1 and str(number) in key.split() for number in numbers(key))
    return numbers(key)


def sorted_keys(question: str) -> str:
    return shown(sorted(key_of(question)))


def smallest(question: str) -> str:
    keys = key_of(question)
    return str(keys.index(min(keys)))


def searched(question: str) -> str:
    keys, [target] = key_of(question), numbers(question.split("target: ")[1])
    assert keys == sorted(keys)
    return str(min(bisect.bisect_left(keys, target), len(keys) - 1))


def best_part(question: str) -> str:
    """By trying all parts, in thousandths."""
    keys = [round(1000 * number) for number in numbers(question.split("[")[1].split("]")[0])]
    parts = [(sum(keys[i : j + 1]), -j, j - i) for i in range(len(keys)) for j in range(i, len(keys))]
    total, last, length = max(parts)
    assert -1000 * len(keys) < total
    return f"{-last - length}, {-last}"


def searched_in_breadth(question: str) -> str:
    """With a queue of layers; the matrix must be symmetric."""
    source, matrix = re.fullmatch(r"bfs:\ns: (\d+), A: \[(.*)\]\npi:\n", question).groups()
    rows = [list(map(int, row.split())) for row in re.findall(r"\[(.*?)\]", matrix)]
    assert [list(column) for column in zip(*rows, strict=True)] == rows
    found, layer = {int(source): int(source)}, [int(source)]
    while layer:
        new: dict[int, int] = {}
        for node in sorted(layer):
            for other, linked in enumerate(rows[node]):
                if linked and other not in found:
                    new.setdefault(other, node)
        found |= new
        layer = list(new)
    return f"[{' '.join(str(found.get(node, node)) for node in range(len(rows)))}]"


def directions(question: str) -> str:
    """The textbook's table, with an explicit border of zeros."""
    string, key = re.fullmatch(r"lcs_length:\nstring: \[(.*?)\], key: \[(.*?)\]\nb:\n", question).groups()
    first, letters = string.split().count("0"), key.split()
    assert sorted(string.split()) == string.split()
    assert first - (len(letters) - first) in (0, 1)
    length: Counter[tuple[int, int]] = Counter()
    rows = [["-1"] * len(letters) for _ in letters]
    for i in range(first):
        for j in range(first, len(letters)):
            if letters[i] == letters[j]:
                length[i, j] = length[i - 1, j - 1] + 1
                rows[i][j] = "0"
            else:
                up, left = length[i - 1, j], length[i, j - 1]
                length[i, j], rows[i][j] = (up, "1") if up >= left else (left, "2")
    return f"[{', '.join('[' + ' '.join(row) + ']' for row in rows)}]"


SOLVERS = {
    **dict.fromkeys(SORTS, (sorted_keys, "pred")),
    "minimum": (smallest, "min"),
    "binary_search": (searched, "return"),
    "find_maximum_subarray_kadane": (best_part, "start, end"),
    "bfs": (searched_in_breadth, "pi"),
    "lcs_length": (directions, "b"),
}


def size_of(question: str) -> int:
    """Items of the first list of the text, for graphs of the first row."""
    return len(re.findall(r"\[+([^\[\]]*)\]", question)[0].split())


# --- every algorithm


@pytest.mark.sampled(2)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_plain_solver_agrees_on_a_thousand_texts_of_every_split(algorithm: str) -> None:
    task, (solver, asked) = task_of(algorithm), SOLVERS[algorithm]
    for split, batch in splits(task, 11, 1000).items():
        found = list(texts(task, batch))
        assert len(found) == 1000
        for question, answer in found:
            assert answer == f"{solver(question)}\n\n", (split, question)
            assert question.startswith(f"{algorithm}:\n")
            assert question.endswith(f"\n{asked}:\n")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_sizes_are_uniform_in_training_and_fixed_in_each_condition(algorithm: str) -> None:
    task = task_of(algorithm, smallest=5, largest=9, farthest=11, stride=3)
    found = splits(task, 5, 600)
    assert list(found) == ["training", "validation", "size=5", "size=8", "size=11"]
    for split, batch in found.items():
        counts = Counter(size_of(question) for question, _ in texts(task, batch))
        if split in ("training", "validation"):
            assert counts.keys() == set(range(5, 10))
            assert stats.chisquare(list(counts.values())).pvalue > 1e-3
        else:
            assert {f"size={size}" for size in counts} == {split}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_text_fits_into_the_context(algorithm: str) -> None:
    task = task_of(algorithm, smallest=10, largest=12, farthest=14, stride=1)
    for split, batch in splits(task, 3, 200).items():
        context = task.context if split == "training" else task.longest
        assert batch["inputs"].shape == (1, 200, context)
        assert all(answer.endswith("\n\n") for _, answer in texts(task, batch))
    assert task.tokens == len(ALPHABET) + 2 == 49


LONGEST = {
    **dict.fromkeys((*SORTS, "minimum"), [999] * 11 + [111]),
    "binary_search": [999] + [111] * 12,
    "find_maximum_subarray_kadane": [-999] * 11 + [-111],
    "bfs": [11] + [0] * 66 + [1] * 12,  # a star around the last node
    "lcs_length": [0] * 12,
}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_longest_text_is_as_long_as_the_context_says(algorithm: str) -> None:
    parts = ALGORITHMS[algorithm].parts(torch.tensor([[LONGEST[algorithm]]]), torch.tensor([[[12]]]))
    longest = ALGORITHMS[algorithm].longest(12)
    assert [len(text_of(piece)) for piece in parts] == [len(piece) for piece in longest]
    whole = f"{algorithm}:\n{longest.given}\n{ALGORITHMS[algorithm].asked}:\n{longest.answer}\n\n"
    assert task_of(algorithm, largest=12).context == len(whole) - 1


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


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_held_out_texts_are_never_trained_on(algorithm: str) -> None:
    """At sizes of which many examples are drawn twice, and whatever sizes the task has beside them."""
    seen: dict[str, set[str]] = {}
    for largest, count in {4: 2500, 6: 1000}.items():
        task = task_of(algorithm, largest=largest, farthest=largest)
        for split, batch in splits(task, largest, count).items():
            name = split if split in ("training", "validation") else "test"
            seen.setdefault(name, set()).update(question for question, _ in texts(task, batch))
    for one, other in combinations(seen.values(), 2):
        assert not one & other
    if algorithm == "lcs_length":
        assert Counter(size_of(q) for found in seen.values() for q in found)[4] == 256
        assert [Counter(map(size_of, found))[4] for found in seen.values()] == [224, 16, 16]


DRAWN = {
    # how often each value is drawn, keys in tenths
    "heapsort": (dict.fromkeys(range(10), 1 / 10), lambda q: [int(10 * key) for key in key_of(q)]),
    "binary_search": (dict.fromkeys(range(10), 1 / 10), lambda q: [int(10 * numbers(q)[-1])]),
    "find_maximum_subarray_kadane": (
        {-1: 999 / 1999, 0: 1 / 1999, 1: 999 / 1999},
        lambda q: [(key > 0) - (key < 0) for key in numbers(q)],
    ),
    "lcs_length": (dict.fromkeys(range(4), 1 / 4), lambda q: numbers(q.split("key: ")[1])),
}


@pytest.mark.parametrize("algorithm", DRAWN)
def test_numbers_are_drawn_as_told(algorithm: str) -> None:
    shares, read = DRAWN[algorithm]
    task = task_of(algorithm, smallest=6)
    counts = Counter(n for q, _ in texts(task, task.training(streams([9]), 3000, FIRST_STEP)) for n in read(q))
    assert counts.keys() == shares.keys()
    expected = [share * counts.total() for share in shares.values()]
    assert stats.chisquare([counts[number] for number in shares], expected).pvalue > 1e-3


def test_graphs_have_a_quarter_of_all_links_and_half_of_all_loops() -> None:
    task = task_of("bfs", smallest=6, largest=6)
    links, loops, sources = list[int](), list[int](), Counter[str]()
    for question, _ in texts(task, task.training(streams([4]), 3000, FIRST_STEP)):
        rows = [list(map(int, row.split())) for row in re.findall(r"\[([\d ]+)\]", question)]
        loops += [rows[node][node] for node in range(6)]
        links += [rows[one][other] for one, other in combinations(range(6), 2)]
        sources[question[8]] += 1
    assert stats.binomtest(sum(links), len(links), 1 / 4).pvalue > 1e-3
    assert stats.binomtest(sum(loops), len(loops), 1 / 2).pvalue > 1e-3
    assert sources.keys() == set("012345")
    assert stats.chisquare(list(sources.values())).pvalue > 1e-3


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
        [0, 1, 1, 0, 1, 1, 1, 0, 0, 1, 1, 0, 0, 0, 1, 0],
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
    found = list(texts(task, task.training(streams([1]), 500, FIRST_STEP)))
    assert all(answer.endswith("\n\n") for _, answer in found)
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
    """A small batch of one trial, with logits that get most characters right."""
    task = task_of(algorithm, largest=5, farthest=5)
    batch = {key: tensor[0] for key, tensor in task.validation(streams([3]), 60).items()}
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(*batch["targets"].shape, task.tokens, dtype=torch.float64, generator=generator)
    helped = torch.rand(batch["targets"].shape, generator=generator) < 0.95
    return task, batch, logits + 9 * helped[..., None] * torch.nn.functional.one_hot(batch["targets"], task.tokens)


@pytest.mark.parametrize("algorithm", ["quicksort", "minimum", "bfs"])
def test_accuracy_counts_whole_answers_and_token_accuracy_characters(algorithm: str) -> None:
    task, batch, logits = draw_batch(algorithm)
    found = task.metrics(logits, batch)
    rows = zip(logits.argmax(-1).tolist(), batch["targets"].tolist(), batch["wanted"].tolist(), strict=True)
    for row, (guess, target, wanted) in enumerate(rows):
        right = [g == t for g, t, w in zip(guess, target, wanted, strict=True) if w]
        assert float(found["accuracy"][row]) == all(right)
        assert float(found["token_accuracy"][row]) == pytest.approx(sum(right) / len(right), abs=1e-12)
    assert 0 < float(found["accuracy"].mean()) < float(found["token_accuracy"].mean()) < 1


def test_logits_that_are_no_numbers_have_no_accuracy() -> None:
    task, batch, logits = draw_batch("minimum")
    logits[0] = math.nan
    for values in task.metrics(logits, batch).values():
        assert values[0].isnan()
        assert not values[1:].isnan().any()


# --- in the engine


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


def test_the_packaged_space_is_the_grid_of_all_algorithms_and_sizes() -> None:
    space = spaces.load("clrs_text", families())
    space.check()
    drawn = {draw.name: draw.choices for draw in space.trial_draws}
    assert drawn == {"task.algorithm": 9, "task.largest": 3, "optimizer.learning_rate": 3}
    assert space.search.trials == math.prod(drawn.values())
    every = {space.sample(0, lambda draw, u=u: u).config["task"]["algorithm"] for u in [k / 9 + 0.01 for k in range(9)]}
    assert every == set(ALGORITHMS)


def test_the_quick_space_trains_on_the_same_task() -> None:
    space = spaces.load("quick/clrs_text", families())
    space.check()
    assert isinstance(Recipe.of(space.sample(0, lambda draw: 0.5).config).task, ClrsText)

"""The language tasks: windows, splits, masks, metrics and grammar probes against formulas and counts written apart."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

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
from spaces.plugins.files import find_file
from spaces.records import Metric
from tests.support.trials import config, trial
from workers.data.corpora._tokens import _on, tokens_of
from workers.data.corpora.stories import Stories
from workers.data.splits import Split
from workers.data.tasks import Batch, Task
from workers.data.tasks._language import LanguageTask
from workers.data.tasks._probes import next_token, one_masked, pairs_of, probes_of, told_right, whole
from workers.data.tasks.language import Language
from workers.data.tasks.masked_language import MaskedLanguage
from workers.engine.pack import Pack
from workers.numerics.randomness import Purpose, Streams
from workers.training.recipe import Recipe

ZERO = torch.zeros(1, dtype=torch.int64)


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Yield a cache of these tests' own."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setattr("workers.data.corpora._tokens.cache_folder", lambda: folder)
        yield


STORIES = {"name": "stories", "words": 5000}


def language(**fields: Any) -> Language:
    task = plugins.build(Task, {"name": "language", "corpus": STORIES, "length": 16, "rare": 1, **fields})
    assert isinstance(task, Language)
    return task


def masked(**fields: Any) -> MaskedLanguage:
    task = plugins.build(Task, {"name": "masked_language", "corpus": STORIES, "length": 16, "rare": 1, **fields})
    assert isinstance(task, MaskedLanguage)
    return task


def streams(*seeds: int, purpose: Purpose = Purpose.TRAINING_DATA, step: int = 0) -> Streams:
    return Streams.of(torch.tensor(seeds), purpose, step)


def alone(batch: Batch) -> Batch:
    return {name: tensor[0] for name, tensor in batch.items()}


def windows(batch: Batch) -> list[list[int]]:
    """Of all lanes, input and last target together."""
    return torch.cat([batch["inputs"], batch["targets"][..., -1:]], -1).flatten(0, 1).tolist()


def part(task: LanguageTask, split: Split) -> list[int]:
    return task.tokenised.part(split, torch.device("cpu")).long().tolist()


def written(folder: Path, **files: str) -> str:
    folder.mkdir(exist_ok=True)
    for name, lines in files.items():
        (folder / f"{name}.txt").write_text(lines, encoding="utf-8")
    return str(folder)


def random_logits(task: LanguageTask, *shape: int) -> Tensor:
    return torch.randn(*shape, task.tokens, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


# --- windows


def test_a_window_is_a_stretch_of_its_part_and_targets_are_the_inputs_moved_by_one() -> None:
    task = language()
    sets = {
        Split.TRAINING: task.training(streams(1, 2), 50, ZERO),
        Split.VALIDATION: task.validation(streams(1, 2), 50),
        Split.TEST: task.shifted_sets(streams(1, 2), 50)["test"],
    }
    for split, batch in sets.items():
        text = "".join(map(chr, part(task, split)))
        assert batch["inputs"].shape == batch["targets"].shape == (2, 50, 16)
        assert torch.equal(batch["inputs"][..., 1:], batch["targets"][..., :-1])
        assert all("".join(map(chr, window)) in text for window in windows(batch))


def test_training_starts_at_every_place_of_its_part_and_at_none_beyond(tmp_path: Path) -> None:
    """In a text of ever new characters a window says where it starts."""
    text = "".join(chr(0x4E00 + offset) for offset in range(400))
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    task = language(corpus={"name": "file", "path": str(tmp_path / "text.txt")}, length=4)
    whole_part = part(task, Split.TRAINING)
    counts = Counter(tuple(window) for window in windows(task.training(streams(3), 60_000, ZERO)))
    expected = {tuple(whole_part[start : start + 5]) for start in range(len(whole_part) - 4)}
    assert counts.keys() == expected
    assert stats.chisquare([counts[window] for window in expected]).pvalue > 1e-3


def test_a_trial_draws_its_windows_from_its_own_seed_and_step() -> None:
    task = language()
    together = task.training(streams(5, 6), 8, ZERO)["inputs"]
    assert torch.equal(together[1], task.training(streams(6), 8, ZERO)["inputs"][0])
    assert not torch.equal(together[0], together[1])
    assert not torch.equal(together[0], task.training(streams(5, step=1), 8, ZERO)["inputs"][0])


def test_what_is_held_out_is_the_same_for_all_trials_and_covers_its_part_from_end_to_end() -> None:
    task = language()
    first = task.validation(streams(1, 2, purpose=Purpose.VALIDATION_DATA), 20)
    assert torch.equal(first["inputs"][0], first["inputs"][1])
    assert torch.equal(first["inputs"], task.validation(streams(8, 9), 20)["inputs"])
    tokens = part(task, Split.VALIDATION)
    assert windows(first)[0] == tokens[:17]
    assert windows(first)[19] == tokens[-17:]
    assert windows(task.validation(streams(1), 1)) == [tokens[:17]]


def test_a_part_shorter_than_a_window_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("short text " * 20)
    task = language(corpus={"name": "file", "path": str(tmp_path / "text.txt")}, length=100)
    for use in (task.facts, lambda: task.validation(streams(1), 4)):
        with pytest.raises(
            PluginError, match=r"^task.length: 100 must be below the \d+ tokens of the validation part$"
        ):
            use()


# --- loss, metrics, facts


def test_the_loss_is_over_all_positions_and_metrics_over_the_second_half() -> None:
    for length in (16, 7):
        task = language(length=length)
        batch = alone(task.validation(streams(1), 30))
        logits = random_logits(task, 30, length)
        logits[:20] += 9 * torch.nn.functional.one_hot(batch["targets"][:20], task.tokens)
        table = logits.numpy() - np.log(np.exp(logits.numpy()).sum(-1, keepdims=True))
        targets = batch["targets"].numpy()
        picked = -np.take_along_axis(table, targets[..., None], -1)[..., 0]
        right = table.argmax(-1) == targets
        metrics = task.metrics(logits, batch)
        half = length // 2
        assert float(task.loss(logits, batch)) == pytest.approx(picked.mean(), rel=1e-12)
        np.testing.assert_allclose(metrics["nll"], picked[:, half:].mean(-1), rtol=1e-12)
        np.testing.assert_allclose(metrics["accuracy"], right[:, half:].mean(-1), rtol=1e-12)
        means = {name: float(values.mean()) for name, values in metrics.items()}
        assert task.summary(means) == {**means, "perplexity": pytest.approx(np.exp(picked[:, half:].mean()))}


def test_perplexity_is_infinite_or_no_number_where_the_likelihood_is() -> None:
    assert language().summary({"nll": 1e4, "accuracy": 0.0})["perplexity"] == math.inf
    assert math.isnan(language().summary({"nll": math.nan, "accuracy": 0.0})["perplexity"])
    assert language().summary({"accuracy": 1.0}) == {"accuracy": 1.0}


def test_logits_that_are_no_numbers_have_no_accuracy() -> None:
    task = language()
    batch, logits = alone(task.validation(streams(1), 2)), random_logits(task, 2, 16)
    logits[0, -1, 0] = math.nan
    assert task.metrics(logits, batch)["accuracy"].isnan().tolist() == [True, False]


def test_chance_is_what_the_frequencies_of_the_training_part_give() -> None:
    task = language(rare=30)
    counts = Counter(part(task, Split.TRAINING))
    shares = np.array([*counts.values()]) / counts.total()
    facts = task.facts()
    assert facts["tokens"] == task.tokens == len(counts)
    assert facts["windows"] == counts.total() - 16
    assert facts["chance"] == pytest.approx(max(shares))
    assert facts["unigram_perplexity"] == pytest.approx(np.exp(-(shares * np.log(shares)).sum()))
    assert 0 < float(facts["dropped"]) < 0.05
    assert masked(rare=30).facts() == {**facts, "tokens": task.tokens + 1}


# --- masks


def test_a_masked_window_differs_from_the_text_where_tokens_are_wanted_alone() -> None:
    task = masked(leave_unmasked=0.0, random=0.0, share=0.3)
    batch = task.training(streams(1, 2), 200, ZERO)
    assert torch.equal(batch["inputs"] == task.mask, batch["wanted"])
    assert torch.equal(batch["inputs"][~batch["wanted"]], batch["targets"][~batch["wanted"]])
    text = "".join(map(chr, part(task, Split.TRAINING)))
    assert all("".join(map(chr, window)) in text for window in batch["targets"].flatten(0, 1).tolist())
    assert set(batch["wanted"].sum(-1).flatten().tolist()) == {4, 5}  # 0.3 * 16 = 4.8


@pytest.mark.parametrize(("share", "leave", "random"), [(0.15, 0.1, 0.1), (0.15, 0.0, 0.1), (0.5, 0.3, 0.7)])
def test_masked_kept_and_random_tokens_come_in_the_shares_asked_for(share: float, leave: float, random: float) -> None:
    task = masked(length=40, share=share, leave_unmasked=leave, random=random)
    batch = alone(task.training(streams(4), 4000, ZERO))
    wanted, inputs, targets = (batch[name] for name in ("wanted", "inputs", "targets"))
    count = int(wanted.sum())
    assert count == pytest.approx(share * 160_000, rel=0.01)
    places = wanted.sum(0)
    assert stats.chisquare(places.numpy()).pvalue > 1e-3
    hidden = (inputs == task.mask)[wanted].double().mean()
    assert float(hidden) == pytest.approx(1 - leave - random, abs=0.015)
    others = inputs[wanted & (inputs != task.mask) & (inputs != targets)]
    v = task.tokenised.end
    assert len(others) == pytest.approx(random * count * (1 - 1 / v), abs=5 * math.sqrt(count))
    assert int(others.max()) < v


def test_every_sequence_has_a_hidden_token_however_small_the_share() -> None:
    batch = masked(share=1e-6).training(streams(1), 300, ZERO)
    assert set(batch["wanted"].sum(-1).flatten().tolist()) == {1}


def test_lanes_may_differ_in_how_much_is_hidden() -> None:
    task = masked()
    knobs = {"share": (0.25, 0.5), "leave_unmasked": (0.0, 1.0), "random": (1.0, 0.0)}
    bound = plugins.bind(task, {f"task.{k}": torch.tensor(v, dtype=torch.float64) for k, v in knobs.items()}, "task")
    batch = bound.training(streams(7, 8), 50, ZERO)
    assert [set(lane.flatten().tolist()) for lane in batch["wanted"].sum(-1)] == [{4}, {8}]
    assert torch.equal(batch["inputs"][1], batch["targets"][1])
    single = masked(share=0.5, leave_unmasked=1.0, random=0.0).training(streams(8), 50, ZERO)
    assert all(torch.equal(batch[name][1], single[name][0]) for name in batch)


def test_masks_of_the_validation_set_are_the_trials_own_and_windows_are_not() -> None:
    task = masked()
    batch = task.validation(streams(1, 2), 20)
    assert torch.equal(batch["targets"][0], batch["targets"][1])
    assert not torch.equal(batch["wanted"][0], batch["wanted"][1])


def test_masked_loss_and_metrics_are_over_the_hidden_tokens() -> None:
    task = masked()
    batch = alone(task.validation(streams(1), 30))
    logits = random_logits(task, 30, 16) + 3 * torch.nn.functional.one_hot(batch["targets"], task.tokens)
    targets = batch["targets"].masked_fill(~batch["wanted"], -100)
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)
    torch.testing.assert_close(task.loss(logits, batch), expected)
    metrics = task.metrics(logits, batch)
    for row in range(30):
        chosen = batch["wanted"][row]
        nll = torch.nn.functional.cross_entropy(logits[row][chosen], batch["targets"][row][chosen])
        torch.testing.assert_close(metrics["nll"][row], nll)
        hits = (logits[row].argmax(-1) == batch["targets"][row])[chosen].double().mean()
        torch.testing.assert_close(metrics["accuracy"][row], hits)


def test_shares_above_one_are_told_in_one_line() -> None:
    with pytest.raises(PluginError, match=r"^task.leave_unmasked: 0.7 and task.random 0.4 must be 1 at most together$"):
        masked(leave_unmasked=0.7, random=0.4)


# --- probes

PAIRS = "the dogs is here .\nthe dogs are here .\n\nthis cat are old .\nthis cat is old .\n"


def test_pairs_are_read_in_either_order(tmp_path: Path) -> None:
    folder = written(tmp_path, agreement=PAIRS)
    zorro, unmasked = (pairs_of(folder, good_first=order)["agreement"] for order in (False, True))
    assert zorro == [("the dogs are here .", "the dogs is here ."), ("this cat is old .", "this cat are old .")]
    assert [(bad, good) for good, bad in unmasked] == zorro


@settings(max_examples=40)
@given(pairs=st.lists(st.tuples(*[st.text("abc .", min_size=1).map(str.strip).filter(bool)] * 2), min_size=1))
def test_pairs_written_are_the_pairs_read(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[str, str]]
) -> None:
    folder = written(tmp_path_factory.mktemp("probes"), one="".join(f"{bad}\n{good}\n" for good, bad in pairs))
    assert pairs_of(folder, good_first=False) == {"one": pairs}


def test_probes_that_cannot_be_used_are_told_in_one_line(tmp_path: Path) -> None:
    for folder in (tmp_path / "missing", tmp_path):
        with pytest.raises(PluginError, match=r"must be a folder with .txt files, two lines a pair$"):
            pairs_of(str(folder), good_first=False)
    for number, text in enumerate(("one line\n", "", "a\nb\nc\n")):
        with pytest.raises(PluginError, match=r"p.txt: \d lines must be pairs, two lines each$"):
            pairs_of(written(tmp_path / str(number), p=text), good_first=False)
    task = language(probes=written(tmp_path / "foreign", p="日本\nthe dogs\n"))
    for use in (task.facts, lambda: task.shifted_sets(streams(1), 4)):
        with pytest.raises(PluginError, match=r"^task.probes: p: no token of '日本' is in the vocabulary$"):
            use()


def test_a_sentence_is_put_to_a_model_as_told() -> None:
    assert next_token([4, 5, 6], 9) == [([9, 4, 5], [4, 5, 6], [True] * 3)]
    assert whole([4, 5], 9) == [([9, 4, 5, 9], [9, 4, 5, 9], [False, True, True, False])]
    assert one_masked([4, 5], 9) == [
        ([9, 10, 5, 9], [9, 4, 5, 9], [False, True, False, False]),
        ([9, 4, 10, 9], [9, 4, 5, 9], [False, False, True, False]),
    ]


def scores_by_hand(task: LanguageTask, batch: Batch, logits: Tensor, rows: int) -> list[tuple[float, float]]:
    """Score of the good and the bad sentence of each pair, row by row."""
    picked = logits.log_softmax(-1).gather(-1, batch["targets"][..., None])[..., 0].tolist()
    scored, scores = batch["scored"].tolist(), list[float]()
    for start in range(0, len(logits), rows // 2):
        sentence = range(start, start + rows // 2)
        values = [value for row in sentence for value, counts in zip(picked[row], scored[row], strict=True) if counts]
        scores.append(sum(values) / (len(values) if task.probe_score == "mean" else 1))
    return list(zip(scores[::2], scores[1::2], strict=True))


@pytest.mark.parametrize("score", ["sum", "mean"])
@pytest.mark.parametrize("way", ["language", "one_masked", "whole"])
def test_a_pair_counts_if_its_good_sentence_is_more_likely(tmp_path: Path, way: str, score: str) -> None:
    lines = "".join(f"{'so ' * n}she said no .\nhe said so {'.' * (n % 3)}\n" for n in range(6))
    fields = {"probes": written(tmp_path, one=lines), "probe_score": score}
    task = language(**fields) if way == "language" else masked(**fields, probe_way=way)
    rows = task._probes.rows
    batch = alone(task.shifted_sets(streams(1, 2), 4)["probe=one"])
    assert batch["inputs"].shape == (6 * rows, task._probes.longest) == batch["scored"].shape
    logits = random_logits(task, *batch["inputs"].shape)
    scores = scores_by_hand(task, batch, logits, rows)
    expected = [float(good > bad) for good, bad in scores for _ in range(rows)]
    assert task.metrics(logits, batch) == {"accuracy": pytest.approx(torch.tensor(expected, dtype=torch.float64))}
    assert (sum(expected) == 6 * rows) == (score == "sum")  # bad sentences are longer here, which their mean forgives


def test_probe_rows_hold_the_sentences_and_their_lengths(tmp_path: Path) -> None:
    task = language(probes=written(tmp_path, one=PAIRS, two="a cat\nthe cat sat on the mat\n"))
    text = task.tokenised
    batches = task.shifted_sets(streams(1, 2), 4)
    assert list(batches) == ["test", "probe=one", "probe=two"]
    for name, sentences in {
        "one": ["the dogs are here .", "the dogs is here .", "this cat is old .", "this cat are old ."],
        "two": ["the cat sat on the mat", "a cat"],
    }.items():
        batch = batches[f"probe={name}"]
        assert batch["inputs"].shape == (2, len(sentences), 22)
        assert torch.equal(batch["inputs"][0], batch["inputs"][1])
        assert batch["lengths"][1].tolist() == [len(sentence) for sentence in sentences]
        for row, sentence in zip(batch["targets"][0].tolist(), sentences, strict=True):
            assert text.decode(row[: len(sentence)]) == sentence
        assert batch["scored"][0].sum(-1).tolist() == [len(sentence) for sentence in sentences]
    assert task.longest == 22
    assert task.facts()["probe_pairs"] == 3
    assert language().longest == 16


def test_a_tie_is_wrong_and_what_is_no_number_is_none() -> None:
    losses = torch.tensor([[1.0, 2.0], [2.0, 1.0], [1.0, 1.0], [2.0, 9.0], [math.nan, 1.0], [1.0, 1.0]])
    scored = torch.ones(6, 2, dtype=torch.bool)
    verdicts = told_right(losses, scored, 2, "sum")
    assert verdicts[:4].tolist() == [0, 0, 1, 1]
    assert verdicts[4:].isnan().all()
    shorter = torch.tensor([[True, True], [True, False]])
    uniform = torch.ones(2, 2)
    assert told_right(uniform, shorter, 2, "sum").tolist() == [0, 0]
    assert told_right(uniform, ~shorter | shorter, 2, "mean").tolist() == [0, 0]
    assert told_right(uniform, shorter.flip(0), 2, "sum").tolist() == [1, 1]


@pytest.mark.parametrize("batch", [3, 1, 4])
@pytest.mark.sampled(1)
def test_pairs_are_judged_whole_however_small_the_training_batch_is(batch: int, tmp_path: Path) -> None:
    folder = written(tmp_path, one=PAIRS)

    def accuracy(batch: int) -> float:
        settings = {
            **config(steps=1, every=1, batch=batch, validation_batch=7),
            "task": {"name": "language", "corpus": STORIES, "length": 12, "rare": 1, "probes": folder},
            "model": {"name": "transformer", "width": 8, "depth": 1},
        }
        candidate = trial(0, settings)
        pack = Pack(candidate, width=2)
        pack.fill([candidate])
        [metrics] = pack.evaluate([0]).values()
        values = {(metric.name, metric.variant, metric.condition): metric.value for metric in metrics}
        return values["accuracy", "raw", "probe=one"]

    assert accuracy(batch) == accuracy(16)


def test_probes_are_read_once_for_all_trials(tmp_path: Path) -> None:
    folder = find_file(written(tmp_path, one=PAIRS))
    text = language().tokenised
    assert probes_of(text, folder, False, next_token) is probes_of(text, folder, False, next_token)
    assert probes_of(text, folder, False, next_token) is not probes_of(text, folder, True, next_token)


# --- in the engine


def settings_of(task: Mapping[str, Any], model: str = "transformer", **training: Any) -> dict[str, Any]:
    configuration = config(steps=4, every=4, dtype="float32", batch=8, validation_batch=24) | {"task": dict(task)}
    configuration["model"] = {"name": model, "depth": 1, "heads": 2, "width": 16}
    configuration["training"] |= training
    return configuration


@pytest.mark.parametrize(("name", "model"), [("language", "transformer"), ("masked_language", "encoder")])
def test_a_trial_reports_the_same_numbers_alone_and_packed(tmp_path: Path, name: str, model: str) -> None:
    task = {"name": name, "corpus": STORIES, "length": 12, "rare": 1, "probes": written(tmp_path, one=PAIRS)}
    knobs = [{"share": 0.1 + 0.1 * n} if name == "masked_language" else {} for n in range(3)]
    trials = [trial(n, settings_of({**task, **knob}, model, batch=128)) for n, knob in enumerate(knobs)]
    together, single = Pack(trials[0], width=3), Pack(trials[2], width=1)
    together.fill(trials)
    single.fill(trials[2:])
    reports = {report.number: report for report in together.train(10)}
    assert reports[2] == single.train(10)[0]
    assert {metric.condition for metric in reports[2].metrics} == {"", "test", "probe=one"}
    names = [metric.name for metric in reports[2].metrics if (metric.variant, metric.condition) == ("raw", "")]
    assert names == ["nll", "accuracy", "perplexity", "loss"]
    assert [metric.name for metric in reports[2].metrics if metric.condition == "probe=one"] == ["accuracy"] * 2


def test_a_set_is_judged_whole_whatever_the_batch() -> None:
    candidate = trial(0, settings_of({"name": "language", "corpus": STORIES, "length": 12, "rare": 1}))
    pack = Pack(candidate, width=2)
    pack.fill([candidate])
    values = {metric.name: metric.value for metric in pack.evaluate([0])[0] if metric[1:3] == ("raw", "")}
    recipe = Recipe.of(candidate.config)
    batch = alone(recipe.task.validation(streams(1), 24))
    means = recipe.task.metrics(recipe.model.outputs(pack.parameters(0), batch, {}), batch)
    assert values["nll"] == pytest.approx(float(means["nll"].mean()), rel=1e-5)
    assert values["perplexity"] == pytest.approx(math.exp(float(means["nll"].double().mean())), rel=1e-5)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "model", "steps", "fields"),
    [("language", "transformer", 150, {}), ("masked_language", "encoder", 500, {"share": 0.3})],
)
def test_a_small_model_learns_agreement(tmp_path: Path, name: str, model: str, steps: int, fields: dict) -> None:
    """Of a language of sentences such as `a1x. `, where a and b go with 1, c and d with 2."""
    text = "".join(f"{'abcd'[n % 4]}{1 + n % 4 // 2}{'xyz'[n * n % 7 % 3]}. " for n in range(2000))
    verbs = {"a": 1, "b": 1, "c": 2, "d": 2}
    lines = "".join(f"{noun}{3 - verb}{what}.\n{noun}{verb}{what}.\n" for noun, verb in verbs.items() for what in "xyz")
    corpus = {"name": "file", "path": f"{written(tmp_path / 'texts', text=text)}/text.txt"}
    probes = written(tmp_path / "probes", agreement=lines)
    task = {"name": name, "corpus": corpus, "length": 16, "rare": 1, "probes": probes, **fields}
    changed = settings_of(task, model, steps=steps, validate_every=steps, batch=32)
    changed["model"]["width"] = 32
    changed["optimizer"] = {"name": "adamw", "learning_rate": 0.01, "weight_decay": 0.0}
    candidate = trial(0, changed)
    pack = Pack(candidate, width=2)
    pack.fill([candidate])
    before = {metric[:3]: metric.value for metric in pack.evaluate([0])[0]}
    [report] = pack.train(steps)
    after = {metric[:3]: metric.value for metric in report.metrics}
    assert after["accuracy", "raw", "probe=agreement"] == 1.0 > before["accuracy", "raw", "probe=agreement"]


# --- the packaged spaces


@pytest.mark.parametrize("name", ["shakespeare", "python", "stories"])
def test_the_packaged_baseline_has_the_sizes_of_table_4(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LanguageTask, "facts", lambda _: {})  # the corpus is not needed for this
    space = spaces.load(f"language/{name}", families())
    candidate = space.sample(0, lambda _: 0.5)
    model, optimizer, training, task = (candidate.config[key] for key in ("model", "optimizer", "training", "task"))
    assert (model["depth"], model["heads"], model["width"], model["mlp_multiple"]) == (4, 4, 512, 4)
    assert (model["tied"], model["canon"], model["pre_norm"], model["position"]["name"]) == (
        True,
        "ABCD",
        False,
        "learned",
    )
    assert (training["steps"], training["batch"], space.search.trials) == (3000, 64, 3)
    assert (optimizer["beta1"], optimizer["beta2"], optimizer["weight_decay"]) == (0.9, 0.999, 0)
    assert optimizer["schedule"] == {"name": "warmup_cooldown", "warmup": 0.05, "cooldown": 0.5}
    assert (optimizer["learning_rate"], task["rare"], task["corpus"]["name"]) == (0.001, 200, name)


def test_the_packaged_masked_space_is_babyberta(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LanguageTask, "facts", lambda _: {})
    candidate = spaces.load("language/masked_stories", families()).sample(0, lambda _: 0.5)
    model, task = candidate.config["model"], candidate.config["task"]
    assert (model["name"], model["depth"], model["heads"], model["width"]) == ("encoder", 8, 8, 256)
    assert (task["share"], task["leave_unmasked"], task["random"]) == (0.15, 0, 0.1)


@pytest.mark.long
def test_the_quick_space_trains() -> None:
    candidate = spaces.load("quick/language", families(), {"training.steps": "2"}).sample(0, lambda _: 0.5)
    assert candidate.params["task.tokens"] == Recipe.of(candidate.config).task.facts()["tokens"]
    pack = Pack(candidate, width=2)
    pack.fill([candidate])
    [report] = pack.train(2)
    assert report.state == "finished"
    assert Metric("perplexity", "raw", "", pytest.approx(25, abs=35)) in report.metrics


def test_another_device_gets_the_same_tokens_as_whole_numbers_that_it_can_index() -> None:
    text = language().tokenised
    moved = _on(torch.device("cpu"), text, Split.TEST)
    assert moved.dtype == torch.int32
    assert moved.tolist() == part(language(), Split.TEST)
    assert text.part(Split.TEST, torch.device("meta")).shape == moved.shape


def test_the_tokens_of_a_task_are_made_once() -> None:
    assert language().tokenised is language(length=8).tokenised is masked().tokenised
    assert tokens_of.cache_info().currsize >= 1
    assert isinstance(language().corpus, Stories)

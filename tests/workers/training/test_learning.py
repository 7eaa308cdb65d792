"""Stage one: weights and non-linearities that learn from different data, against plain PyTorch; stage two: frozen."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from spaces import plugins
from spaces.errors import PluginError
from spaces.records import Trial
from tests.support.learning import BATCH, MODELS, SPLINE, STEPS, settings, stage_one
from tests.support.pack import alone, assert_equal_to_the_bit
from tests.support.plug_ins import example
from tests.support.trials import trial
from workers.data.cached_arrays import Stored
from workers.data.corpora._tokens import Tokens, edge_of
from workers.data.corpora.stories import Stories
from workers.data.splits import Split
from workers.data.tasks import Batch, Task
from workers.data.tasks.add_mod import AddMod
from workers.data.tasks.copying import Copying
from workers.data.tasks.language import Language
from workers.data.tasks.set_complement import SetComplement
from workers.engine.pack import Pack
from workers.numerics.randomness import Purpose, Streams
from workers.training.learning._shares import draw_held_out, draw_kept
from workers.training.learning.architecture import Architecture
from workers.training.recipe import Recipe, layout_of


def parameters_after(candidate: Trial, steps: int) -> dict[str, Tensor]:
    pack = Pack(candidate, width=2)
    pack.fill([candidate])
    if steps:
        pack.train(steps)
    return pack.parameters(candidate.number)


def plainly(candidate: Trial, steps: int) -> dict[str, Tensor]:
    """Algorithm 1 with torch's own autograd, optimizers and clipping: a loop over models, two backward passes."""
    recipe = Recipe.of(candidate.config)
    start = parameters_after(candidate, 0)
    form = {name: value.clone().requires_grad_() for name, value in start.items() if not name.startswith("models.")}
    models = [
        {
            name.removeprefix(f"models.{m}."): value.clone().requires_grad_()
            for name, value in start.items()
            if name.startswith(f"models.{m}.")
        }
        for m in range(MODELS)
    ]
    learned = recipe.model.parameters(recipe.task)
    optimizers = [
        torch.optim.AdamW(
            [{"params": [value], "weight_decay": 0.1 * learned[name].decay} for name, value in model.items()],
            lr=0.02,
        )
        for model in models
    ]
    of_form = torch.optim.Adam(form.values(), lr=candidate.config["learning"]["optimizer"]["learning_rate"])
    for step in range(steps):
        batch = recipe.learning.training(recipe.task, torch.tensor([candidate.seed]), BATCH, torch.tensor([step]))
        judging = {name.removeprefix("held_out."): t[0] for name, t in batch.items() if name.startswith("held_out.")}
        for optimizer in (*optimizers, of_form):
            optimizer.zero_grad()
        total = sum(
            (recipe.task.loss(recipe.model.outputs(model | form, judging, {}), judging) for model in models),
            start=torch.zeros(()),
        )
        of_judging = torch.autograd.grad(total, [*form.values()])
        for m, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            examples = {name: t[0, m * BATCH : (m + 1) * BATCH] for name, t in batch.items() if "." not in name}
            loss = recipe.task.loss(recipe.model.outputs(model | form, examples, {}), examples)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.values(), 0.3)
            for group in optimizer.param_groups:
                group["lr"] = 0.02 * float(recipe.optimizer.schedule.factor(torch.tensor(step), torch.tensor(STEPS)))
            optimizer.step()
        for value, gradient in zip(form.values(), of_judging, strict=True):
            value.grad = gradient
        torch.nn.utils.clip_grad_norm_(form.values(), 0.7)
        of_form.step()
    named = {f"models.{m}.{name}": value for m, model in enumerate(models) for name, value in model.items()}
    return {name: value.detach() for name, value in (named | form).items()}


@pytest.mark.long
@pytest.mark.parametrize("part", ["mlp", "attention", "both"])
def test_stage_one_is_algorithm_1_in_plain_pytorch(part: str) -> None:
    kernel = {"name": "spline_kernel", "phi": SPLINE}
    candidate = trial(
        4,
        settings(
            activation=SPLINE if part != "attention" else {"name": "gelu"},
            scorer=kernel if part != "mlp" else None,
            learning=stage_one(),
        ),
    )
    named, expected = parameters_after(candidate, 3), plainly(candidate, 3)
    assert named.keys() == expected.keys()
    assert {name for name in named if "models" not in name} == {
        *(["activation.knots"] if part != "attention" else []),
        *(["scorer.phi.knots"] if part != "mlp" else []),
    }
    for name, value in expected.items():
        torch.testing.assert_close(named[name], value, rtol=1e-7, atol=1e-7, msg=name)  # Adam scales gradients of 1e-15


def gradients(batch: Batch, recipe: Recipe, flat: Tensor) -> dict[str, Tensor]:
    layout = layout_of(recipe)

    def loss(parameters: Any, batch: Batch) -> Tensor:
        return recipe.task.loss(recipe.model.outputs(parameters, batch, {}), batch)

    return layout.split(recipe.learning.gradient(layout, flat, batch, loss)[0])


def test_weights_get_no_gradient_from_held_out_data_and_the_spline_none_from_training_data() -> None:
    candidate = trial(2, settings(learning=stage_one()))
    recipe = Recipe.of(candidate.config)
    flat = layout_of(recipe).initial(torch.tensor([candidate.seed]))[0]
    drawn = [recipe.learning.training(recipe.task, torch.tensor([5]), BATCH, torch.tensor([step])) for step in (0, 1)]
    batch, other = ({name: tensor[0] for name, tensor in whole.items()} for whole in drawn)
    of_held_out = {name: other[name] if name.startswith("held_out.") else tensor for name, tensor in batch.items()}
    of_training = {name: tensor if name.startswith("held_out.") else other[name] for name, tensor in batch.items()}
    base = gradients(batch, recipe, flat)
    for name, changed in gradients(of_held_out, recipe, flat).items():
        assert torch.equal(changed, base[name]) == name.startswith("models."), name
    for name, changed in gradients(of_training, recipe, flat).items():
        assert torch.equal(changed, base[name]) == (name == "activation.knots"), name
    assert all(gradient.any() for gradient in base.values())


@pytest.mark.long
def test_packed_stage_one_equals_alone_to_the_bit_with_knobs_of_its_own() -> None:
    trials = [
        trial(n, settings(learning=stage_one(rate=rate, life=life), dtype="float32", steps=20))
        for n, (rate, life) in enumerate([(0.01, 0), (0.02, 6), (0.05, 9), (0.1, 30)])
    ]
    assert_equal_to_the_bit(trials)


@pytest.mark.long
def test_models_begin_anew_in_turn_and_then_train_like_others_of_their_age() -> None:
    renewed = trial(1, settings(learning=stage_one(life=6), steps=20))  # a turn every 2 steps: model 0 at 2, 8, 14 ...
    pack = Pack(renewed, width=2)
    pack.fill([renewed])
    seen = [{name: value.clone() for name, value in pack.parameters(1).items()}]
    for _ in range(10):
        pack.train(1)
        seen.append({name: value.clone() for name, value in pack.parameters(1).items()})
    layout = layout_of(Recipe.of(settings(activation={"name": "gelu"})))
    for model, begun in [(0, 2), (1, 4), (2, 6), (0, 8)]:
        fresh = layout.split(layout.initial(torch.tensor([renewed.seed]), begun)[0])
        for name, start in fresh.items():
            after = seen[begun + 1][f"models.{model}.{name}"]
            # One step of AdamW moves each entry by at most its rate, 0.02, and the decay.
            assert (after - start).abs().max() <= 0.02 * (1 + 0.1 * start.abs().max()) + 1e-9, name
        before = seen[begun][f"models.{model}.embedding"]
        assert (before - fresh["embedding"]).abs().max() > 0.021
        other = f"models.{(model + 1) % MODELS}.embedding"
        assert (seen[begun + 1][other] - seen[begun][other]).abs().max() < 0.021


def test_no_sequence_is_on_both_sides_and_the_share_is_right() -> None:
    task, seeds = AddMod(modulus=31), torch.tensor([3, 4])

    def drawn(count: int) -> Batch:
        return task.training(Streams.of(seeds, Purpose.TRAINING_DATA, 0), count, torch.zeros(2, dtype=torch.int64))

    ours = {tuple(row) for row in draw_kept(task, drawn, 20_000, 5)["inputs"].flatten(0, 1).tolist()}
    theirs = {tuple(row) for row in draw_held_out(task, drawn, 20_000, 5)["inputs"].flatten(0, 1).tolist()}
    every = {tuple(row) for row in drawn(60_000)["inputs"].flatten(0, 1).tolist()}
    assert not ours & theirs
    assert ours | theirs == every
    share, deviation = len(theirs) / len(every), math.sqrt(0.2 * 0.8 / len(every))
    assert abs(share - 0.2) < 4 * deviation


def example_of(name: str) -> Task:
    return plugins.build(Task, example(Task, name))


def test_a_held_out_batch_of_copying_has_the_lengths_of_validation_and_a_training_batch_its_own() -> None:
    learning, task = Architecture(models=2), Copying(length=4, validation_length=6, test_length=7)
    batch = learning.training(task, torch.tensor([1]), 200, torch.tensor([0]))

    def lengths(wanted: Tensor) -> set[int]:
        return set(wanted.sum(-1).flatten().tolist())

    assert lengths(batch["wanted"]) == {2, 3, 4}
    assert lengths(batch["held_out.wanted"]) == {2, 3, 4, 5, 6}


@pytest.mark.parametrize("name", [name for name in plugins.names(Task) if example_of(name).has_identities])
def test_held_out_sequences_of_every_task_are_apart_from_those_that_the_weights_learn_from(name: str) -> None:
    task = TASKS[name] if name in TASKS else example_of(name)
    batch = Architecture(models=2).training(task, torch.tensor([5]), 300, torch.tensor([0]))
    held = {key.removeprefix("held_out."): tensor for key, tensor in batch.items() if key.startswith("held_out.")}
    ours, theirs = (identities(task, part) for part in (batch, held))
    assert ours
    assert theirs
    assert not ours & theirs


TASKS: dict[str, Task] = {
    "add_mod": AddMod(modulus=13),
    "set_complement": SetComplement(length=4, vocabulary=12),
    "copying": Copying(length=4, validation_length=6, test_length=7),
}


def identities(task: Task, batch: Batch) -> set[tuple[int, ...]]:
    """Return what tells sequences apart, zeros at the end left out."""
    rows = [tuple(row) for row in task.identity(batch)[0].tolist()]
    return {row[: max((index + 1 for index, value in enumerate(row) if value), default=0)] for row in rows}


def test_a_share_of_a_text_is_its_last_documents_and_shares_no_token_with_the_rest() -> None:
    """Places in a text of numbers that are all different: each window says where it is from."""
    task = Language(corpus=Stories(words=20_000), length=8)
    numbers = np.arange(10_000)
    stored = Stored(notes={"kept": list(range(20_000)), "counts": []}, arrays=[numbers, numbers, numbers])
    with pytest.MonkeyPatch.context() as patched:
        tokens = Tokens(source=task.tokenised.source, content="made", stored=stored)
        patched.setattr(Language, "tokenised", property(lambda self: tokens))
        patched.setattr("workers.data.tasks._language.edge_of", lambda tokens, one_in: 8_000)
        batch = Architecture(models=2).training(task, torch.tensor([1, 2]), 300, torch.tensor([0, 5]))
    kept, held = (torch.cat([batch[f"{side}inputs"], batch[f"{side}targets"]], -1) for side in ("", "held_out."))
    assert kept.shape[:2] == (2, 600)
    assert held.shape[:2] == (2, 300)
    assert int(kept.max()) < 8_000 <= int(held.min())
    assert int(kept.max()) > 7_500
    assert int(held.max()) > 9_900


@pytest.mark.parametrize("one_in", [2, 5, 9])
def test_a_text_is_parted_at_the_end_of_a_document(one_in: int) -> None:
    tokens = Language(corpus=Stories(words=20_000), length=8).tokenised
    numbers = tokens.part(Split.TRAINING, torch.device("cpu")).tolist()
    edge = edge_of(tokens, one_in)
    assert numbers[edge - 1] == tokens.end
    wanted = len(numbers) - len(numbers) // one_in
    assert edge <= wanted
    assert tokens.end not in numbers[edge:wanted]


def test_a_part_of_a_text_without_room_for_a_window_is_refused() -> None:
    task = Language(corpus=Stories(words=20_000), length=400)
    with pytest.raises(PluginError, match=r"held_out_one_in: 4000 leaves \d+ tokens of whole documents held out"):
        Architecture(models=1, held_out_one_in=4000).training(task, torch.tensor([1]), 8, torch.tensor([0]))


def test_a_share_without_a_sequence_is_refused() -> None:
    learning = Architecture(models=1, held_out_one_in=100_003)
    with pytest.raises(PluginError, match="holds out no sequence"):
        learning.training(AddMod(modulus=5), torch.tensor([1]), 8, torch.tensor([0]))


@pytest.mark.long
def test_a_frozen_spline_beside_one_that_learns_keeps_its_values_in_stage_one() -> None:
    frozen = {**SPLINE, "start": "given", "values": "1 2 3 4 5 6 7 8 9", "frozen": True}
    candidate = trial(
        1, settings(activation=frozen, scorer={"name": "spline_kernel", "phi": SPLINE}, learning=stage_one())
    )
    named = parameters_after(candidate, 3)
    for model in range(MODELS):
        assert torch.equal(named[f"models.{model}.activation.knots"], torch.arange(1.0, 10.0, dtype=torch.float64))
    assert not torch.equal(named["scorer.phi.knots"], parameters_after(candidate, 0)["scorer.phi.knots"])


def test_without_a_share_both_learn_from_all_training_data() -> None:
    task = AddMod(modulus=5)
    batch = Architecture(models=1, held_out_one_in=0).training(task, torch.tensor([1]), 500, torch.tensor([0]))
    pairs = [{tuple(row) for row in batch[name][0].tolist()} for name in ("inputs", "held_out.inputs")]
    assert pairs[0] == pairs[1]
    assert len(pairs[0]) == 23


@pytest.mark.long
def test_a_frozen_spline_keeps_its_bits_while_another_trial_of_its_pack_has_other_knots() -> None:
    values = [
        "0.1 -0.3 0.25 1e-3 7 0.5 -2 0.3333333 1",
        "1 2 3 4 5 6 7 8 9.1",
        "0 0 0 0 0 1 0 0 0",
        "-1 0 1 2 3 2 1 0 4",
    ]
    trials = [
        trial(n, settings(activation={**SPLINE, "start": "given", "values": text, "frozen": True}, dtype="float32"))
        for n, text in enumerate(values)
    ]
    assert trials[0].structure == trials[1].structure
    pack = Pack(trials[0], width=2)
    pack.fill(trials[:2])
    before = [pack.parameters(n)["activation.knots"].clone() for n in range(2)]
    pack.train(STEPS - 1)
    pack.train(STEPS - 1)
    for number, text in enumerate(values[:2]):
        knots = pack.parameters_by_variant(number, trials[number])["raw"]["activation.knots"]
        assert torch.equal(knots, before[number])
        assert torch.equal(knots, torch.tensor([*map(float, text.split())]))
    assert_equal_to_the_bit(trials)


@pytest.mark.long
def test_a_frozen_spline_trains_the_weights_as_one_whose_knots_are_never_moved() -> None:
    values = "0.1 -0.3 0.25 0.5 0.7 0.5 -0.2 0.3 1"
    given = {**SPLINE, "start": "given", "values": values}
    frozen = trial(1, settings(activation={**given, "frozen": True}))
    recipe = Recipe.of(settings(activation=given))
    start = parameters_after(frozen, 0)
    weights = {name: value.clone().requires_grad_() for name, value in start.items() if name != "activation.knots"}
    learned = recipe.model.parameters(recipe.task)
    groups = [{"params": [value], "weight_decay": 0.1 * learned[name].decay} for name, value in weights.items()]
    optimizer = torch.optim.AdamW(groups, lr=0.02)
    for step in range(3):
        batch = recipe.task.training(
            Streams.of(torch.tensor([frozen.seed]), Purpose.TRAINING_DATA, step), BATCH, torch.tensor([step])
        )
        examples = {name: tensor[0] for name, tensor in batch.items()}
        optimizer.zero_grad()
        knots = {"activation.knots": start["activation.knots"]}
        recipe.task.loss(recipe.model.outputs(weights | knots, examples, {}), examples).backward()
        torch.nn.utils.clip_grad_norm_(weights.values(), 0.3)
        for group in optimizer.param_groups:
            group["lr"] = 0.02 * float(recipe.optimizer.schedule.factor(torch.tensor(step), torch.tensor(STEPS)))
        optimizer.step()
    named = parameters_after(frozen, 3)
    for name, value in weights.items():
        torch.testing.assert_close(named[name], value.detach(), rtol=1e-7, atol=1e-7, msg=name)


def test_metrics_are_means_over_the_models() -> None:
    candidate = trial(3, settings(learning=stage_one()))
    named = parameters_after(candidate, 3)
    recipe = Recipe.of(candidate.config)
    whole = recipe.task.validation(Streams.of(torch.tensor([candidate.seed]), Purpose.VALIDATION_DATA, 0), 16)
    batch = {name: tensor[0] for name, tensor in whole.items()}
    expected = []
    for m in range(MODELS):
        weights = {n.removeprefix(f"models.{m}."): v for n, v in named.items() if n.startswith(f"models.{m}.")}
        outputs = recipe.model.outputs(weights | {"activation.knots": named["activation.knots"]}, batch, {})
        expected.append(float(recipe.task.metrics(outputs, batch)["accuracy"].mean()))
    report = alone(candidate)[candidate.number, 3]
    [accuracy] = [metric.value for metric in report.metrics if metric[:3] == ("accuracy", "raw", "")]
    assert accuracy == pytest.approx(sum(expected) / MODELS, abs=1e-12)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"activation": {"name": "gelu"}}, "set model.activation or model.scorer to one that does"),
        ({"activation": {**SPLINE, "start": "given", "values": "1 2 3 4 5 6 7 8 9", "frozen": True}}, "has none"),
        ({"learning": {"name": "architecture", "held_out_one_in": 1}}, "1 leaves nothing to the weights"),
        ({"learning": {"name": "architecture", "life": 5}}, "5 must be 0 or at least learning.models, 8"),
        ({"activation": {"name": "polynomial", "of": SPLINE}}, "set model.activation or model.scorer.phi to spline"),
    ],
)
def test_what_cannot_be_learned_is_said(changes: dict[str, Any], said: str) -> None:
    learning, activation = changes.get("learning", stage_one()), changes.get("activation")
    with pytest.raises(PluginError, match=said):
        Recipe.of(settings(learning=learning, activation=activation))


def test_dropout_and_padding_are_refused() -> None:
    config = settings(learning=stage_one())
    with pytest.raises(PluginError, match="knows no dropout"):
        Recipe.of({**config, "model": {**config["model"], "mlp_dropout": 0.1}})
    with pytest.raises(PluginError, match="not learned with padding"):
        Recipe.of({**config, "training": {**config["training"], "pad_shapes": True}})


@pytest.mark.long
@pytest.mark.parametrize("learning", [{"name": "weights"}, stage_one()])
def test_tasks_that_differ_in_their_data_alone_train_in_one_pack_and_each_as_alone(learning: dict[str, Any]) -> None:
    configs = [{**settings(learning=learning), "task": {"name": name, "digits": 2}} for name in ("add", "add_reversed")]
    trials = [trial(number, configs[number % 2]) for number in range(6)]
    assert len({candidate.structure for candidate in trials}) == 1
    assert_equal_to_the_bit(trials)
    first, second = (alone(trial(7, config))[7, STEPS].metrics for config in configs)
    assert first != second
    longer = trial(8, {**configs[0], "task": {"name": "add", "digits": 3}})
    assert longer.structure != trials[0].structure

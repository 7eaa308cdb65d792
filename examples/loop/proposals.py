"""Sources of edits: chance, a command that answers (a language model, say), or edits that do nothing."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from random import Random
from typing import Any

from examples.loop.rounds import Edit, Recipe

SCORER = '''"""Softmax of logits that are bent first, by an edit of the loop."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spaces.plugins.fields import knob
from workers.networks.scorers import LogitScorer, masked_softmax
from workers.numerics.parameters import Parameters


@dataclass(frozen=True, kw_only=True)
class Bent(LogitScorer):
    """Weights proportional to exp of the bent, scaled logit."""

    scale: float = knob(1.0)

    def weigh(self, logits: Tensor, visible: Tensor, learned: Parameters) -> Tensor:
        z = self.scale * logits
        return masked_softmax(FORMULA, visible)
'''
ACTIVATION = '''"""A non-linearity, by an edit of the loop."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spaces.plugins.fields import knob
from workers.networks.activations import Activation
from workers.numerics.parameters import Parameters


@dataclass(frozen=True, kw_only=True)
class Bent(Activation):
    """A function of each channel, with a factor before it and one after it."""

    before: float = knob(1.0)
    after: float = knob(1.0)

    def apply(self, values: Tensor, learned: Parameters) -> Tensor:
        x = self.before * values
        return self.after * (FORMULA)
'''
TEMPLATES: Mapping[str, tuple[str, Mapping[str, float], Sequence[str]]] = {
    "scorer": (SCORER, {"scale": 1.0}, ["z", "z + torch.tanh(z)", "2 * torch.tanh(z / 2)", "z * (1 + z.abs())"]),
    "activation": (
        ACTIVATION,
        {"before": 1.0, "after": 1.0},
        ["torch.nn.functional.silu(x)", "torch.tanh(x)", "torch.relu(x)", "x + torch.sin(x)"],
    ),
}
"""Part of the model -> the file of a plug-in, its knobs, and the formulas that an edit chooses from."""
STEPS = (0.5, 0.8, 1.25, 2.0)
"""Factors by which a knob is changed."""
RATE = "optimizer.learning_rate"


def write_part(part: str, formula: str, **knobs: float) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a part of the model as a value of the space, and its plug-in's file, which its text names."""
    template, defaults, _ = TEMPLATES[part]
    text = template.replace("FORMULA", formula)
    name = f"{part}_{sha256(text.encode()).hexdigest()[:8]}"  # equal texts are one plug-in, compiled once
    return {f"model.{part}": {name: {**defaults, **knobs}}}, {name: text}


def start_recipe(rate: float = 0.003) -> Recipe:
    """Return the recipe that the loop begins with: softmax, SiLU, and a learning rate."""
    scorer, scorer_file = write_part("scorer", TEMPLATES["scorer"][2][0])
    activation, activation_file = write_part("activation", TEMPLATES["activation"][2][0])
    return Recipe(set={RATE: rate, **scorer, **activation}, files={**scorer_file, **activation_file})


@dataclass(frozen=True, kw_only=True)
class ByChance:
    """Random edits: another formula for the scorer or the activation, or another value of a knob."""

    random: Random = field(default_factory=lambda: Random(0))
    formulas: float = 0.25
    """The share of edits that write another file; each new formula is compiled once."""

    def __call__(self, history: Mapping[str, Any]) -> Edit:
        """Return an edit of the recipe that the history has."""
        current: dict[str, Any] = history["recipe"]["set"]
        part = self.random.choice([*TEMPLATES])
        [(plugin, knobs)] = current[f"model.{part}"].items()
        if self.random.random() < self.formulas:
            formula = self.random.choice(TEMPLATES[part][2])
            values, files = write_part(part, formula, **knobs)
            return Edit(why=f"{part}: {formula}", kind=part, set=values, files=files)
        factor = self.random.choice(STEPS)
        if self.random.random() < 0.5:
            value = float(f"{current[RATE] * factor:.3g}")
            return Edit(why=f"learning rate {value:g}", kind="learning rate", set={RATE: value})
        name = self.random.choice([*knobs])
        value = float(f"{knobs[name] * factor:.3g}")
        changed = {f"model.{part}": {plugin: {**knobs, name: value}}}
        return Edit(why=f"{part}: {name} {value:g}", kind=f"knob of the {part}", set=changed)


@dataclass(frozen=True, kw_only=True)
class ByCommand:
    """Edits of a command that reads the history as JSON and answers one: {"why", "kind", "set", "files"}.

    A language model is such a command.
    """

    command: Sequence[str]

    def __call__(self, history: Mapping[str, Any]) -> Edit:
        """Return the command's edit; raises ValueError, one line, for an answer that is none."""
        process = subprocess.run(self.command, input=json.dumps(history), capture_output=True, text=True, check=False)
        if process.returncode:
            last = (process.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise ValueError(f"{self.command[0]} ended with status {process.returncode}: {last}")
        try:
            return Edit(**json.loads(process.stdout))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{self.command[0]} must answer {{why, kind, set, files}} as JSON: {error}") from None


def null_edits(recipe: Recipe) -> list[Edit]:
    """Return seven edits that change nothing but which numbers a seed draws.

    Weights are drawn symmetrically around 0. So a model whose logits, or whose activation's input or output, has the
    other sign is the model that the mirrored draw of its weights would have been: equal in distribution, and different
    for a given seed.
    """
    edits = list[Edit]()
    for bits in range(1, 8):
        signs = [-1.0 if bits >> index & 1 else 1.0 for index in range(3)]
        edits.append(Edit(why=f"signs {signs}", kind="does nothing", set=_mirror(recipe, *signs)))
    return edits


def known_edit(recipe: Recipe, rate: float) -> Edit:
    """Return an edit whose effect is that of another learning rate, seen through other draws of a seed."""
    return Edit(
        why=f"learning rate {rate:g}", kind="known effect", set={**_mirror(recipe, -1.0, -1.0, -1.0), RATE: rate}
    )


def _mirror(recipe: Recipe, scale: float, before: float, after: float) -> dict[str, Any]:
    [(scorer, knobs)] = recipe.set["model.scorer"].items()
    [(activation, others)] = recipe.set["model.activation"].items()
    return {
        "model.scorer": {scorer: {**knobs, "scale": scale * knobs["scale"]}},
        "model.activation": {activation: {"before": before * others["before"], "after": after * others["after"]}},
    }

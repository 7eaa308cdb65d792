"""How the native steps name scorers, and the numbers that these take (workers/numerics/native/scores.hpp)."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from workers.networks.scorers import Scorer
from workers.networks.scorers import relu as relu_scorer
from workers.networks.scorers import tanh as tanh_scorer
from workers.networks.scorers.adaptive_temperature import AdaptiveTemperature
from workers.networks.scorers.average import Average
from workers.networks.scorers.length_scaled_softmax import LengthScaledSoftmax
from workers.networks.scorers.linear import Linear
from workers.networks.scorers.linearised_softmax import LinearisedSoftmax
from workers.networks.scorers.mixed import Mixed
from workers.networks.scorers.norm_softmax import NormSoftmax
from workers.networks.scorers.polynomial import Polynomial
from workers.networks.scorers.sa_softmax import SelfAdjustingSoftmax
from workers.networks.scorers.sigmoid import Sigmoid
from workers.networks.scorers.softmax import Softmax
from workers.networks.scorers.softmax_evaluation import EvaluationSoftmax
from workers.networks.scorers.softmax_learned import LearnedSoftmax
from workers.networks.scorers.square import Square
from workers.networks.scorers.ssa import SignedAveraging
from workers.networks.scorers.ssa_fixed import FixedSignedAveraging

Number = float | Tensor

SCORES = (
    *("softmax", "signed_power", "average", "norm_softmax", "self_adjusting", "linear", "linearised"),
    *("relu", "square", "tanh", "sigmoid", "polynomial"),
)


class Kind(NamedTuple):
    """How the native step names a scorer, and the numbers it takes; those that are learned it reads itself."""

    name: str
    factor: Number = 1.0
    b: Number = 1.0
    n: Number = 1.0
    by_count: bool = False
    power: int = 1
    all_keys: bool = False


def parts_of(scorer: Scorer) -> list[Scorer]:
    """The scorers that a mixed one mixes."""
    return [*parts_of(scorer.first), *parts_of(scorer.second)] if isinstance(scorer, Mixed) else [scorer]


def kind_of(scorer: Scorer) -> Kind | None:
    match scorer:
        case Softmax():
            return Kind("softmax", factor=1 / scorer.temperature)
        case EvaluationSoftmax() | LearnedSoftmax():
            return Kind("softmax")
        case AdaptiveTemperature() if scorer.phase == "evaluation":
            return Kind("softmax")
        case LengthScaledSoftmax():
            return Kind("softmax", factor=scorer.scale, by_count=True)
        case SignedAveraging():
            return Kind("signed_power")
        case FixedSignedAveraging():
            return Kind("signed_power", b=scorer.b, n=scorer.n)
        case Linear():
            return Kind("linear", factor=1 / scorer.temperature)
        case LinearisedSoftmax():
            return Kind("linearised", factor=1 / scorer.temperature)
        case Polynomial():
            return Kind("polynomial", power=scorer.power, all_keys=scorer.keys == "all")
        case _:
            name = _PLAIN_KINDS.get(type(scorer))
            return Kind(name) if name else None


_PLAIN_KINDS: dict[type[Scorer], str] = {
    Average: "average",
    NormSoftmax: "norm_softmax",
    SelfAdjustingSoftmax: "self_adjusting",
    relu_scorer.Relu: "relu",
    Square: "square",
    tanh_scorer.Tanh: "tanh",
    Sigmoid: "sigmoid",
}


def kinds_of(scorer: Scorer, heads: int) -> list[Kind]:
    """Of each head."""
    if isinstance(scorer, Mixed):
        first = scorer.split(heads)
        return kinds_of(scorer.first, first) + kinds_of(scorer.second, heads - first)
    kind = kind_of(scorer)
    assert kind, "obstacle() knows all others"
    return [kind] * heads


def learned_by(scorer: Scorer, heads: int, prefix: str = "scorer") -> list[list[tuple[str, int]]]:
    """Of each head what its scorer learns: the parameter's name, and the head's number in it."""
    if isinstance(scorer, Mixed):
        first = scorer.split(heads)
        return learned_by(scorer.first, first, f"{prefix}.first") + learned_by(
            scorer.second, heads - first, f"{prefix}.second"
        )
    names = scorer.parameters(heads)
    return [[(f"{prefix}.{name}", head) for name in names] for head in range(heads)]

"""Models: functions of (parameters, batch, dropout masks) of ONE trial; the engine stacks lanes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar

from torch import Tensor

from spaces import plugins
from spaces.errors import PluginError
from spaces.records import LearnedSpline
from workers.data.tasks import Batch, SetTask, Task, TokenTask, VectorTask
from workers.networks.frozen_splines import FORMS, with_frozen_splines
from workers.networks.scorers import LogitScorer, Scorer
from workers.numerics.parameters import Parameter, Parameters

HIGHEST_RATE = 0.99
"""The largest dropout rate: one byte decides an element, and tells rates up to 255/256 apart."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """A place where dropout acts: the shape of its mask for one trial, and the trial's rate."""

    shape: tuple[int, ...]
    rate: float | Tensor
    actual: tuple[int | Tensor, ...] = ()
    """The shape without padding, of the trial's own mask; empty if nothing is padded."""


class Affine(NamedTuple):
    """Vectors x that heads map to their queries, or keys, x W + b."""

    vectors: Tensor  # [N, s, d]
    matrices: Tensor  # [h, d, c]
    biases: Tensor  # [h, c]


class Attention(NamedTuple):
    """The attention of one layer for a batch."""

    query: Tensor  # [N, h, q, c]
    key: Tensor  # [N, h, k, c]
    weights: Tensor  # [N, h, q, k]
    visible: Tensor  # [..., q, k] bool, to meet the weights
    query_from: Affine | None = None
    """The source of queries, before a rotation; None if norms or convolutions intervene."""
    key_from: Affine | None = None
    bias: Tensor | None = None  # [h, q, k]
    """The numbers that positions add to scaled logits; None if they add none."""


class Model(ABC):
    """A model's configuration, a frozen dataclass; sizes and parts are structural, rates knobs."""

    spline_forms: ClassVar[Sequence[str]] = FORMS
    """The forms in which another trial may use a learned spline; first the spline itself."""

    @staticmethod
    def with_splines(config: Mapping[str, Any], learned: Sequence[LearnedSpline], form: str) -> Mapping[str, Any]:
        """Return a configuration with a trial's learned splines, frozen, in one of the forms."""
        return with_frozen_splines(config, learned, form)

    @property
    def padding_obstacle(self) -> str | None:
        """The reason why padding by zeros would change the model's numbers, or None."""
        return "its layers do not tell padding from content"

    @property
    def causal(self) -> bool:
        """True if the outputs at a position depend on the inputs up to that position alone."""
        return False

    @abstractmethod
    def check(self, task: Task) -> None:
        """Raise PluginError if the model cannot be trained on this task."""

    @abstractmethod
    def parameters(self, task: Task) -> Mapping[str, Parameter]:
        """Return the parameters in a fixed order."""

    @abstractmethod
    def dropout_sites(self, task: Task, batch: int, length: int) -> Mapping[str, Site]:
        """Return all sites, for inputs [batch, length, ...]; their rates are switches."""

    @abstractmethod
    def outputs(self, parameters: Parameters, batch: Batch, keep: Mapping[str, Tensor]) -> Tensor:
        """Return logits [N, s, v], numbers [N, s, o] or logits [N, c], as the task asks.

        `keep`: a bool mask per site in use; none to evaluate.
        """

    def attention(self, parameters: Parameters, batch: Batch) -> Sequence[Attention]:
        """Return what each layer's attention does with a batch in evaluation; empty for nothing."""
        return ()

    def evaluations(self) -> Mapping[str, Model]:
        """Return label -> model to validate, of the same parameters; the label "" counts."""
        for field in plugins.rules(type(self)):
            scorer = getattr(self, field)
            if isinstance(scorer, Scorer):
                scorers = scorer.evaluations().items()
                return {label: plugins.replace(self, {field: other}) for label, other in scorers}
        return {"": self}

    def sketch(self) -> Model:
        """Return a model of the same kind and metrics that computes less, for checks."""
        return self


Kind = TypeVar("Kind", TokenTask, VectorTask, SetTask)

_READS: Mapping[type[Task], str] = {TokenTask: "tokens", VectorTask: "vectors", SetTask: "sets"}


def require_task(kind: type[Kind], task: Task, model: Model) -> Kind:
    """Return the task; raises PluginError if the model does not read its kind."""
    if isinstance(task, kind):
        return task
    given = next(word for other, word in _READS.items() if isinstance(task, other))
    name, model_name = plugins.name_of(task), plugins.name_of(model)
    raise PluginError(f"model.name: {model_name!r} reads {_READS[kind]}, but the task {name!r} gives {given}")


def check_causality(task: TokenTask, model: Model, *, causal: bool) -> None:
    """Raise PluginError if the model sees the answer in its input, or not all that it needs."""
    if task.causal == causal:
        return
    name, model_name = plugins.name_of(task), plugins.name_of(model)
    problem = f"sees the tokens that {name!r} asks for" if task.causal else f"sees no later token, which {name!r} needs"
    choices = sorted({example["name"] for example in plugins.examples(Model) if _suits(example, task)})
    raise PluginError(f"model.name: {model_name!r} {problem}; choose one of {', '.join(choices)}")


def check_padding(scorer: Scorer, model: Model) -> None:
    """Raise PluginError if a scorer counts the keys that fill up a batch's shorter sequences."""
    if isinstance(scorer, LogitScorer) and scorer.counts_all_keys:
        name, model_name = plugins.name_of(scorer), plugins.name_of(model)
        raise PluginError(
            f"model.scorer: {name!r} counts all keys, and in {model_name!r} those, too, that fill up this task's "
            "shorter sequences; let it count the visible ones, as polynomial does with keys: visible"
        )


def _suits(example: Mapping[str, Any], task: TokenTask) -> bool:
    """Return whether an example's model reads this task's tokens, and as many as it should."""
    model = plugins.build(Model, example, "model")
    try:
        model.parameters(task)
    except PluginError:  # it reads something else
        return False
    return model.causal == task.causal


def drop(values: Tensor, keep: Tensor) -> Tensor:
    """Return values with the dropped ones zero.

    The factor 1 / (1 - rate) of inverted dropout (Srivastava et al. 2014) is best multiplied into
    the small matrix that makes the values: `dropout_scale`.
    """
    return values * keep.to(values.dtype)


def dropout_scale(rate: float | Tensor, like: Tensor) -> float | Tensor:
    """Return 1 / (1 - rate) in the type of `like`."""
    return (1 / (1 - rate)).to(like.dtype) if isinstance(rate, Tensor) else 1 / (1 - rate)


def in_use(switch: float | Tensor) -> bool:
    """Return whether a switch is on: in the engine a tensor, otherwise not the number 0."""
    return isinstance(switch, Tensor) or switch != 0

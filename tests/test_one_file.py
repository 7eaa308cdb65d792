"""A plug-in touches exactly one file: one of each family is added in a folder of its own, and all else takes it up."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from spaces import plugins
from tests.plug_ins import FAMILIES
from tests.search_spaces import PLAIN, bowl, search_once, space
from tests.test_pack import assert_equal_to_the_bit
from tests.trials import config, trial

pytestmark = pytest.mark.long

NAME = "newcomer"
HEAD = """
from __future__ import annotations
from dataclasses import dataclass
from typing import ClassVar, final
import torch
from torch import Tensor
"""
SOURCES = {
    "Task": '''
from spaces.plugins import Examples
from spaces.plugins.fields import size
from workers.data.tasks import NextToken
from workers.numerics.tensors import cross_entropy

@final
@dataclass(frozen=True, kw_only=True)
class Echo(NextToken):
    """Each token of a random sequence is to be said again."""

    EXAMPLES: ClassVar[Examples] = ({"length": 4},)
    length: int = size()
    tokens = 5

    @property
    def context(self):
        return self.length

    def training(self, streams, batch, step):
        drawn = (streams.uniform(batch, self.length) * self.tokens).long()
        return {"inputs": drawn, "targets": drawn}

    def validation(self, streams, batch):
        return self.training(streams, batch, torch.zeros_like(streams.state))

    def metrics(self, outputs, batch):
        return {"nll": cross_entropy(outputs, batch["targets"]).mean(-1)}

    def facts(self):
        return {"chance": 1 / self.tokens}
''',
    "Corpus": '''
from workers.data.corpora import Corpus

@final
@dataclass(frozen=True, kw_only=True)
class Counting(Corpus):
    """Numbers, a few to a line."""

    def documents(self):
        for first in range(50):
            yield f"{first} {first + 1} {first + 2}\\n"
''',
    "Tokenizer": '''
from workers.data.tokenizers import Encoder, Tokenizer

class Bytes(Encoder):
    size = 256

    def encode(self, text):
        return list(text.encode())

    def decode(self, tokens):
        return bytes(tokens).decode()

@final
@dataclass(frozen=True, kw_only=True)
class ByteTokenizer(Tokenizer):
    """Each byte is a token."""

    def learn(self, documents):
        return ""

    def encoder(self, learned):
        return Bytes()
''',
    "Model": '''
from workers.data.tasks import TokenTask
from workers.networks.models import Model, check_causality, require_task
from workers.numerics.parameters import Parameter

@final
@dataclass(frozen=True, kw_only=True)
class Bigram(Model):
    """The logits are a row of a table for the token that is read."""

    causal = True

    def check(self, task):
        check_causality(require_task(TokenTask, task, self), self, causal=True)

    def parameters(self, task):
        return {"table": Parameter(shape=(task.tokens, task.tokens))}

    def dropout_sites(self, task, batch, length):
        return {}

    def outputs(self, parameters, batch, keep):
        return torch.nn.functional.embedding(batch["inputs"], parameters["table"])
''',
    "Scorer": '''
from workers.networks.scorers import LogitScorer, masked_softmax

@final
@dataclass(frozen=True, kw_only=True)
class Lukewarm(LogitScorer):
    """Softmax at temperature 2."""

    def score(self, logits, visible, learned):
        return masked_softmax(logits / 2, visible)
''',
    "Activation": '''
from workers.networks.activations import Activation

@final
@dataclass(frozen=True, kw_only=True)
class SignedSquare(Activation):
    """x |x|."""

    def apply(self, values, learned):
        return values * values.abs()
''',
    "Position": '''
from workers.networks.positions import Position

@final
@dataclass(frozen=True, kw_only=True)
class Ramp(Position):
    """Add a tenth of the position to every channel."""

    def add_to(self, stream, learned):
        return stream + 0.1 * torch.arange(stream.shape[-2], dtype=stream.dtype, device=stream.device)[:, None]
''',
    "Diagnostic": '''
from workers.networks.diagnostics import Diagnostic

@final
@dataclass(frozen=True, kw_only=True)
class LargestWeight(Diagnostic):
    """The largest weight of a query, mean over queries and heads of the first layer."""

    def values(self, layers, batch, outputs):
        return {"": layers[0].weights.amax(-1).mean((-1, -2))} if layers else {}
''',
    "Optimizer": '''
from workers.training.optimizers import Optimizer

@final
@dataclass(frozen=True, kw_only=True)
class SignDescent(Optimizer):
    """Move each parameter by the rate, against the sign of its gradient."""

    def start(self, parameters, layout):
        return {}

    def update(self, parameters, gradient, moments, rate, step, layout):
        return parameters - rate.to(parameters.dtype) * gradient.sign(), moments
''',
    "Schedule": '''
from workers.training.schedules import Schedule

@final
@dataclass(frozen=True, kw_only=True)
class Harmonic(Schedule):
    """1 / (n + 1)."""

    def factor(self, step, steps):
        return 1 / (step + 1).double()
''',
    "Averaging": '''
from workers.training.averaging import Averaging, Variant

@final
@dataclass(frozen=True, kw_only=True)
class Halfway(Averaging):
    """The mean of the last parameters and the average before."""

    variants = (Variant("halfway"),)

    def start(self, parameters):
        return {"mean": parameters}

    def update(self, shadow, parameters, step):
        return {"mean": (shadow["mean"] + parameters) / 2}

    def average(self, shadow, parameters, step, index):
        return shadow["mean"]
''',
    "Learning": '''
from torch.func import grad_and_value
from workers.numerics.randomness import Purpose, Streams
from workers.training.learning import Learning

@final
@dataclass(frozen=True, kw_only=True)
class Timid(Learning):
    """Weights descend a tenth of the loss."""

    def parameters(self, model):
        return model

    def training(self, task, seeds, batch, step):
        return task.training(Streams.of(seeds, Purpose.TRAINING_DATA, step), batch, step)

    def gradient(self, layout, flat, batch, loss):
        named, value = grad_and_value(lambda named: 0.1 * loss(named, batch))(layout.split(flat))
        return layout.join(named), value

    def start(self, optimizer, layout, flat):
        return optimizer.start(flat, layout)

    def update(self, optimizer, layout, descent):
        return optimizer.descend(descent, layout)

    def evaluate(self, layout, flat, evaluate_model):
        return evaluate_model(layout.split(flat))
''',
    "Sampler": '''
from search.samplers import Sampler
from search.samplers._points import PointStrategy, RandomPoints

@final
@dataclass(frozen=True, kw_only=True)
class OtherRandom(Sampler):
    """Random points of another seed."""

    learns = False

    def begin(self, space, history):
        seed = space.search.seed + 1
        return PointStrategy(space, RandomPoints(seed, space.group_draws), RandomPoints(seed, space.trial_draws))
''',
    "Stopping": '''
from search.stopping import Monitor, Stopping
from search.stopping._measures import metric

class NothingStops(Monitor):
    def observe(self, reports, groups):
        return set()

    def forget(self, number):
        pass

    def state(self, number):
        return None

    def restore(self, number, group, state):
        pass

@final
@dataclass(frozen=True, kw_only=True)
class Never(Stopping):
    """Stop nothing."""

    metric: str = metric()

    def begin(self, objective):
        return NothingStops()
''',
}
"""Family -> the one file of a new member."""
CONTRACTS = [
    "contracts", "tasks", "corpora", "models", "scorers", "activations", "positions", "diagnostics", "optimizers",
    "schedules", "samplers", "stopping",
]  # fmt: skip


@contextmanager
def newcomers(folder: Path) -> Iterator[None]:
    """While it is open, each family has one more member, in a folder of its own."""
    packages = {family: sys.modules[family.__module__] for family in FAMILIES}
    for family, package in packages.items():
        own = folder / family.__name__
        own.mkdir(exist_ok=True)
        (own / f"{NAME}.py").write_text(HEAD + SOURCES[family.__name__])
        package.__path__.append(str(own))
    forget()
    try:
        yield
    finally:
        for package in packages.values():
            package.__path__.pop()
            sys.modules.pop(f"{package.__name__}.{NAME}", None)
        forget()


def forget() -> None:
    """What was read of the folders is read again."""
    plugins.names.cache_clear()
    plugins._member.cache_clear()  # pyright: ignore[reportPrivateUsage]


@pytest.fixture(autouse=True)
def added(tmp_path: Path) -> Iterator[None]:
    with newcomers(tmp_path):
        yield


def test_there_is_a_newcomer_for_each_family() -> None:
    assert SOURCES.keys() == {family.__name__ for family in FAMILIES}


@pytest.mark.parametrize("family", FAMILIES)
def test_one_file_is_enough_to_be_listed_and_built(family: type) -> None:
    assert NAME in plugins.names(family)
    [configuration] = [found for found in plugins.examples(family) if found["name"] == NAME]
    assert plugins.name_of(plugins.build(family, configuration)) == NAME


SMALL = config(steps=2, every=2, batch=4, validation_batch=8, dtype="float32")
TRANSFORMER = {"name": "transformer", "width": 8, "depth": 1, "heads": 2, "mlp_multiple": 1}
LANGUAGE = {"name": "language", "corpus": {"name": NAME}, "tokenizer": {"name": NAME}, "length": 8, "rare": 1}


@pytest.mark.parametrize(
    "sections",
    [
        {"task": {"name": NAME, "length": 4}},
        {"task": LANGUAGE, "model": TRANSFORMER},
        {"model": {"name": NAME}},
        {"model": {**TRANSFORMER, "scorer": {"name": NAME}}},
        {"model": {**TRANSFORMER, "activation": {"name": NAME}}},
        {"model": {**TRANSFORMER, "position": {"name": NAME}}},
        {"optimizer": {"name": NAME}},
        {"optimizer": {"name": "adamw", "schedule": {"name": NAME}}},
        {"averaging": {"name": NAME}},
        {"learning": {"name": NAME}},
        {"model": TRANSFORMER, "training": {**SMALL["training"], "diagnostics": True}},
    ],
    ids=["task", "corpus and tokenizer", "model", "scorer", "activation", "position", "optimizer", "schedule",
         "averaging", "learning", "diagnostic"],
)  # fmt: skip
def test_one_file_is_enough_to_train_in_a_pack_as_alone(
    sections: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.data.corpora._tokens.cache_folder", lambda: tmp_path / "cache")
    assert_equal_to_the_bit([trial(number, {**SMALL, **sections}) for number in range(2)])


def test_one_file_is_enough_to_search() -> None:
    here = space(PLAIN, sampler=NAME, stopping=NAME, trials=8)
    assert len(search_once(here, bowl)) == 8
    assert [plugins.name_of(policy) for policy in here.search.stopping] == [NAME]


def run_contracts(folder: Path, arguments: Sequence[str]) -> int:
    """Run the contract tests of all families on the newcomers; pytest's exit status."""
    with newcomers(folder):
        return pytest.main([*arguments, "-k", NAME])


def test_one_file_is_enough_for_the_contract_tests(tmp_path: Path) -> None:
    """In another process, which collects the contract tests with the newcomers among the members."""
    files = [f"tests/test_{name}.py" for name in CONTRACTS]
    code = (
        "import sys; from pathlib import Path; from tests.test_one_file import run_contracts; "
        "sys.exit(run_contracts(Path(sys.argv[1]), sys.argv[2:]))"
    )
    command = [sys.executable, "-c", code, str(tmp_path), "-q", "-rA", "-p", "no:cacheprovider", *files]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:]
    passed = [line for line in done.stdout.splitlines() if line.startswith("PASSED")]
    for family in SOURCES:
        assert any(f"{family.lower()} {NAME}" in line for line in passed), family
    for name in CONTRACTS:
        assert any(f"tests/test_{name}.py" in line for line in passed), name

"""Operations as kernels that are generated for them, emulated on a CPU: what they give is what the operations give.

On a GPU `pytest -m gpu` compares them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.support.emulated_fusion import emulated_fusion, launch
from tests.support.fusion import numbers, of_function
from tests.support.pretended_gpu import step_cases
from tests.support.trials import traced_step, trial
from workers.engine.pack import Pack
from workers.numerics.cuda.compiler import CompilerError, compile_cubin, compiler_version
from workers.numerics.fusion import fusions, kernels
from workers.numerics.fusion.cuts import Cut
from workers.numerics.fusion.fusions import Fusion
from workers.numerics.fusion.rules import Product
from workers.numerics.tracing import tree_leaves

CASES = {name: case for name, case in step_cases() if "entmax" not in name and "sparsemax" not in name}
MANY_BLOCKS = patch.object(kernels, "THREADS", 1)
"""A block may have as little work as one element."""


def steps(name: str, lanes: int = 3, count: int = 2) -> list[Tensor]:
    """Return what is left of a pack of a case after some traced steps."""
    # An epsilon so large that a gradient of nothing but rounding, that of a key's bias, moves nothing.
    case = CASES[name]
    calm = {"epsilon": 1e-4} if "adam" in case["optimizer"]["name"] else {}
    candidate = trial(3, {**case, "optimizer": {**case["optimizer"], **calm}})
    with patch("workers.engine.pack.step_of", traced_step):
        pack = Pack(candidate, width=lanes, device="cpu")
        pack.fill([candidate])
        pack.train(count)
    return tree_leaves(pack._tensors.state)


def compare(fusion: Fusion, given: Sequence[Tensor]) -> list[Tensor]:
    """Return what its operations give; the kernel gives that too, in either order of its threads and blocks."""
    expected = fusion.operate(given)
    forwards, backwards = launch(fusion, given), launch(fusion, given, backwards=True)
    is_single = torch.float32 in {fusion._kinds[slot].dtype for slot in fusion._part.rules}
    relative, absolute = (1e-5, 1e-6) if is_single else (1e-10, 1e-14)
    largest = max([0.0, *(fusions._largest(tensor) for tensor in given if tensor.dtype.is_floating_point)])
    for forward, backward, right in zip(forwards, backwards, expected, strict=True):
        assert torch.equal(forward.nan_to_num(), backward.nan_to_num())
        assert forward.stride() == right.stride()
        allowed = relative * fusions._largest(right) + absolute * largest if forward.dtype.is_floating_point else 0.0
        torch.testing.assert_close(forward, right, rtol=0, atol=allowed, equal_nan=True)
    return expected


# -- steps -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(1, 8)
def test_each_kernel_of_a_step_gives_what_its_operations_give(name: str):
    with MANY_BLOCKS, emulated_fusion(compare) as ran:
        steps(name)
    assert any(fusion.program.blocks > 3 for fusion in ran), "some lanes are shared out among blocks"


@pytest.mark.long
@pytest.mark.parametrize("name", ["minimal with dropout in float32", "gpt with every dropout in float32"])
def test_steps_by_kernels_are_the_traced_ones(name: str):
    expected = steps(name, count=4)
    with emulated_fusion() as ran:
        actual = steps(name, count=4)
    assert ran
    for tensor, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(tensor, other, rtol=1e-5, atol=1e-5)


def test_a_kernel_says_nothing_of_how_many_lanes_there_are_so_that_bits_do_not_depend_on_them():
    texts: list[list[str]] = []
    for lanes in (2, 3, 7):
        with MANY_BLOCKS, emulated_fusion(Fusion.operate) as ran:
            steps("minimal with dropout in float32", lanes, count=1)
        texts.append([fusion.program.text for fusion in ran])
    assert texts[0] == texts[1] == texts[2]


def loops_of(text: str) -> list[list[str]]:
    """Return the loops of each level."""
    body = text.partition("KERNEL {")[2].rpartition("}")[0]
    return [["EACH(" + loop for loop in level.split("EACH(")[1:]] for level in body.split("MEET;")]


def find_races(text: str) -> list[str]:
    """Return what a loop reads that another one of its level writes, or that is written twice."""
    races: list[str] = []
    written: set[str] = set()
    for level in loops_of(text):
        stores = [set(re.findall(r"^\s+([so]\d+)\[[^]]*\] = ", loop, re.MULTILINE)) for loop in level]
        for number, loop in enumerate(level):
            reads = set(re.findall(r"[^\w\n]([so]\d+)\[", loop)) - stores[number]
            reads |= {name for name in stores[number] if re.search(rf"\({name}\[", loop)}
            others = set().union(*stores[:number], *stores[number + 1 :], stores[number])
            races += sorted(reads & others)
            assert reads <= written | others, "what is read was written before"
        for names in stores:
            races += sorted(names & written)
            written |= names
    return races


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(1, 6)
def test_no_loop_of_a_kernel_reads_what_its_level_writes(name: str):
    with emulated_fusion(Fusion.operate) as ran:
        steps(name, count=1)
    assert not any(find_races(fusion.program.text) for fusion in ran)
    assert any(len(loops_of(fusion.program.text)) > 1 for fusion in ran)


def test_a_level_too_few_is_found():
    def softmax(x: Tensor) -> Tensor:
        grown = (x * 2).exp()
        return grown / grown.sum(-1, keepdim=True)

    x = torch.linspace(-1, 1, 2 * 5 * 8).view(2, 5, 8)
    with emulated_fusion() as ran:
        of_function(softmax, x)
    assert not any(find_races(fusion.program.text) for fusion in ran)
    planted = patch.object(kernels._Layout, "_note", lambda self, key, stored: self._stored.__setitem__(key, stored))
    with planted, emulated_fusion() as ran:
        of_function(softmax, x)
    assert all(find_races(fusion.program.text) for fusion in ran)


# -- single functions ------------------------------------------------------------------------------------------------

NUMBERS = torch.Generator().manual_seed(5)
EXACT: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mul": lambda x, y: x * y + 2.5,
    "div": lambda x, y: (x - y) / (y.abs() + 1),
    "rsub": lambda x, y: 3 - x * (1 - y),
    "where": lambda x, y: torch.where(x > y, x, -y),
    "masked": lambda x, y: (x + y).masked_fill(x < 0, -torch.inf),
    "clamp": lambda x, y: (x * 3).clamp(-1, 1) + y.clamp(min=0.25),
    "casts": lambda x, y: x.double() * (y > 0).int() + x.long(),
    "compare": lambda x, y: (x == y) | (x >= 0.5) & ~(y < 0),
    "amax": lambda x, y: (x + y).amax(-1, keepdim=True) - x,
    "amin": lambda x, y: (x * y).amin(-1),
    "relu": lambda x, y: (x + y).relu() - x.floor(),
    "nan": lambda x, y: (x / (y * 0)).nan_to_num(1.0, 2.0, -3.0),
    "remainder": lambda x, y: (x * 5).remainder(1.5) + (y * 9).long().remainder(4),
    "transposed": lambda x, y: (x + 1).transpose(-1, -2) * (y + 1).transpose(-1, -2),
    "contiguous": lambda x, y: (x * 2).transpose(-1, -2).contiguous().view(len(x), -1) + 1,
    "slices": lambda x, y: (x + y)[..., 1:] * (x - y)[..., :-1],
    "steps": lambda x, y: (x + y)[..., ::2] * 2,
    "cat": lambda x, y: torch.cat([x + 1, y * 2, x], -1) * 2,
    "stack": lambda x, y: torch.stack([x, y * 2], 1) + 1,
    "pad": lambda x, y: torch.nn.functional.pad(x + y, (2, 1)) * 3,
    "split": lambda x, y: (x * y).split([1, x.shape[-1] - 1], -1)[1] + 1,
    "bytes": lambda x, y: (x + y).view(torch.uint8)[..., :3] + 1,
    "gather": lambda x, y: (x + y).gather(-1, (y > 0).long()) + 1,
    "scatter": lambda x, y: (x * 0).scatter_add(-1, (y > 0).long()[..., :1], y[..., :1]) + x,
    "expand": lambda x, y: (x[..., :1] + 1).expand(x.shape) * y,
}
"""Of numbers [L, n, m]; all that they do is exact, or rounded as C++ rounds it."""
CLOSE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "small products": lambda x, y: (pairs := torch.stack([x, y], -1).flatten(0, 1)).bmm(pairs.transpose(1, 2)) + 1,
    "softmax": lambda x, y: (
        (x - x.amax(-1, keepdim=True)).exp() / (x - x.amax(-1, keepdim=True)).exp().sum(-1, keepdim=True)
    ),
    "norm": lambda x, y: (x - x.mean(-1, keepdim=True)) * (x.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt() * y,
    "sums": lambda x, y: (x * y).sum((1, 2)) + x.sum((1, 2)),
    "columns": lambda x, y: (x * y).sum(1) * 2,
    "gelu": lambda x, y: torch.nn.functional.gelu(x) * y.tanh() * y.sigmoid(),
    "powers": lambda x, y: x.abs().pow(0.5) + y.pow(3) + x.abs().pow(y) + (x.abs() + 1).pow(-2),
    "logs": lambda x, y: x.abs().log1p() + y.expm1() + x.sin() * y.cos() + x.erf() + (x.abs() + 1).reciprocal().sqrt(),
}
"""The same up to rounding: sums come in another order, and exp is another one."""


@settings(max_examples=5, deadline=None, derandomize=True)
@given(
    shape=st.tuples(st.integers(1, 4), st.integers(1, 6), st.sampled_from([2, 3, 8, 70])),
    ways=st.tuples(*[st.sampled_from(["plain", "transposed", "broadcast", "sliced"])] * 2),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    backwards=st.booleans(),
    least=st.sampled_from([1, kernels.THREADS]),
)
@pytest.mark.parametrize("name", [*EXACT, *CLOSE])
@pytest.mark.sampled(2, 12)
def test_a_function_by_a_kernel_is_the_function(
    name: str, shape: tuple[int, int, int], ways: tuple[str, str], dtype: torch.dtype, backwards: bool, least: int
):
    function = (EXACT | CLOSE)[name]
    x, y = (numbers(shape, way, dtype) for way in ways)
    expected = function(x, y)
    with patch.object(kernels, "THREADS", least), emulated_fusion(partial(launch, backwards=backwards)) as ran:
        actual = of_function(function, x, y)
    assert ran
    assert actual.dtype == expected.dtype
    if name in EXACT:
        assert torch.equal(actual.nan_to_num(), expected.nan_to_num())
    else:
        close = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-12, "atol": 1e-12}
        torch.testing.assert_close(actual, expected, **close)


def test_small_products_of_a_lane_are_part_of_a_kernel_and_others_are_not():
    def attended(x: Tensor) -> Tensor:
        return (x + 1).flatten(0, 1).exp().bmm((x * 2).flatten(0, 1).transpose(1, 2)).tanh()

    def products(x: Tensor) -> list[Product]:
        with emulated_fusion() as ran:
            assert torch.allclose(of_function(attended, x), attended(x))
        rules = [rule for fusion in {*ran} for rule in fusion._part.rules.values()]
        return [rule for rule in rules if isinstance(rule, Product)]

    assert [product.terms for product in products(torch.linspace(-1, 1, 2 * 3 * 4 * 5).view(2, 3, 4, 5))] == [5]
    assert not products(torch.linspace(-1, 1, 2 * 1 * 4 * 5).view(2, 1, 4, 5)), "one a lane"
    with patch("workers.numerics.fusion.operations.SMALL_PRODUCT", 79):
        assert not products(torch.linspace(-1, 1, 2 * 3 * 4 * 5).view(2, 3, 4, 5)), "80 multiplications"


def test_flops_of_a_small_product_are_two_for_each_term():
    x = torch.linspace(-1, 1, 2 * 3 * 4 * 5).view(2, 3, 4, 5)
    with emulated_fusion() as ran:
        of_function(lambda x: x.flatten(0, 1).bmm(x.flatten(0, 1).transpose(1, 2)) + 1, x)
    assert sum(fusion.flops for fusion in {*ran}) == 2 * (2 * 3 * 4 * 4 * 5) + 2 * 3 * 4 * 4


def test_what_a_product_reads_is_computed_once():
    x = torch.linspace(-1, 1, 2 * 3 * 4 * 5).view(2, 3, 4, 5)
    with emulated_fusion() as ran:
        of_function(lambda x: (x.exp() * 3).tanh().flatten(0, 1).bmm(x.flatten(0, 1).transpose(1, 2)), x)
    [text] = {fusion.program.text for fusion in ran}
    kernel = text[text.index("KERNEL {") :]
    assert "exp" in kernel[: kernel.index("for (int")]
    assert "exp" not in kernel[kernel.index("for (int") :]


def test_lanes_that_read_one_another_are_two_kernels():
    def mixed(x: Tensor) -> Tensor:
        grown = (x * 2).exp().sum(-1, keepdim=True) * x
        return grown.transpose(0, 1) * 3

    x = torch.linspace(-1, 1, 16).view(4, 4)
    with emulated_fusion() as ran:
        assert torch.allclose(of_function(mixed, x), mixed(x))
    assert len(set(ran)) == 2
    with (
        patch.object(Cut, "keeps", lambda *given, **named: True),
        emulated_fusion(partial(launch, backwards=True)) as ran,
    ):
        actual = of_function(mixed, x)
    assert len(set(ran)) == 1
    assert not torch.allclose(actual, mixed(x)), "a block read what another one had not written yet"


def test_what_is_written_into_keeps_its_order():
    def writing(x: Tensor, y: Tensor) -> Tensor:
        kept = x * 2 + y
        early = kept * (x @ y)  # which waits for the product
        kept.add_(y.exp())
        return kept.transpose(1, 2) * x.sum(-1, keepdim=True) - early

    x, y = (numbers((2, 4, 4), "plain", torch.float64) for _ in range(2))
    with emulated_fusion():
        assert torch.allclose(of_function(writing, x, y), writing(x, y))


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_kernels_compile_for_gpus_of_several_generations(architecture: str, tmp_path: Any):
    try:
        compiler_version()
    except CompilerError as error:
        pytest.skip(str(error))
    with emulated_fusion(Fusion.operate) as ran:
        steps("minimal with dropout in float32", count=1)
    for number, fusion in enumerate(ran):
        source = tmp_path / f"{number}.cu"
        source.write_text(fusion.program.text)
        assert b"fused" in compile_cubin(source, architecture)

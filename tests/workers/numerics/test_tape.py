"""A recording of a function does to other tensors what the function does."""

from __future__ import annotations

import _thread
import gc
import time
import weakref
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor
from torch.func import grad, vmap
from torch.utils._python_dispatch import TorchDispatchMode

from spaces.plugins.bundles import PREFIX
from workers.numerics import tracing
from workers.numerics.tape import CannotRecord, Tape
from workers.numerics.tracing import Traced

pytestmark = pytest.mark.fast

CONSTANT = torch.tensor([2.0, 0.5, -1.0])


def written_in_place(values: Tensor, other: Tensor) -> dict[str, Tensor]:
    """Write into what it made, through a view too; has a constant, a list of tensors, and passes its argument on."""
    made = values.clone()
    made[1:].mul_(3)
    total = torch.zeros(3, dtype=values.dtype)
    for part in torch.unbind(torch.stack([made, other * CONSTANT])):
        total += part
    return {"total": total, "same": other, "constant": CONSTANT}


def gradients(values: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    both = vmap(grad(lambda first, second: (first.sin() * second**2).cumsum(0)[-1], argnums=(0, 1)))
    return both(values[None].expand(2, -1).contiguous(), torch.stack([other, other * 2]))


@pytest.mark.parametrize("function", [written_in_place, gradients])
def test_a_recording_gives_for_other_tensors_what_the_function_gives(function: object) -> None:
    numbers = torch.Generator().manual_seed(0)
    same = torch.randn(3, generator=numbers)
    traced = Traced(("tape", function), function)
    for values, other in [(same, same), (torch.randn(3, generator=numbers), torch.randn(3, generator=numbers))] * 2:
        expected, actual = function(values.clone(), other.clone()), traced(values, other)
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)


@pytest.mark.long
def test_a_recording_that_is_dropped_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "_KEPT", 0)
    constant = torch.rand(1000, generator=torch.Generator().manual_seed(2))
    gone, expected = weakref.ref(constant), constant + 1
    traced = Traced("adds a constant", lambda values, constant=constant: values + constant)
    assert torch.equal(traced(torch.ones(1000)), expected)
    del traced, constant
    gc.collect()
    assert gone() is None


Made = list[Tensor]
ACTS: list[Callable[[Made, int, int], Tensor]] = [
    lambda made, first, second: made[first] + made[second],
    lambda made, first, second: made[first] * made[second],
    lambda made, first, second: made[first] * CONSTANT,
    lambda made, first, second: made[first] - 2.0,
    lambda made, first, second: torch.zeros_like(made[first]),
    lambda made, first, second: made[first].new_full((3,), 1.5),
    lambda made, first, second: torch.arange(3.0),
    lambda made, first, second: torch.tensor([4.0, 5.0, 6.0]),
    lambda made, first, second: made[first].view(3),
    lambda made, first, second: torch.stack([made[first], made[second]]).unbind()[1],
    lambda made, first, second: made[first].clone(),
    lambda made, first, second: made[max(first, 2)].add_(made[second]),  # not into what was given
    lambda made, first, second: made[max(first, 2)].view(1, 3)[0].mul_(CONSTANT),
]
CALLS = st.lists(st.tuples(st.sampled_from(ACTS), st.integers(0, 99), st.integers(0, 99)), max_size=12)


@pytest.mark.long
@settings(max_examples=300)
@given(calls=CALLS, returned=st.lists(st.integers(0, 99), min_size=1, max_size=4))
def test_what_is_left_out_of_a_recording_changes_no_number(
    calls: list[tuple[Callable[[Made, int, int], Tensor], int, int]], returned: list[int]
) -> None:
    """Nor does it matter what a caller writes into what it was given."""

    def function(values: Tensor, factors: Tensor) -> list[Tensor]:
        made = [values, factors, values * factors]
        for act, first, second in calls:
            made.append(act(made, first % len(made), second % len(made)))
        return [made[number % len(made)] for number in returned]

    given = [torch.tensor([1.0, -2.0, 3.0]), torch.tensor([0.5, 0.25, -4.0])]
    with Tape([leaf := given[0].clone(), other := given[1].clone()]) as tape:
        results = function(leaf, other)
    replay = tape.replayer(tape.slots(results))
    for _ in range(2):
        actual, expected = (
            replay(*(tensor.clone() for tensor in given)),
            function(*(tensor.clone() for tensor in given)),
        )
        for tensor, right in zip(actual, expected, strict=True):
            torch.testing.assert_close(tensor, right, rtol=0, atol=0)
        for tensor in {id(tensor): tensor for tensor in actual}.values():
            tensor.add_(7.0)
        for right in {id(right): right for right in expected}.values():
            right.add_(7.0)
        for tensor, right in zip(actual, expected, strict=True):  # two results share memory where they did before
            torch.testing.assert_close(tensor, right, rtol=0, atol=0)


HELD = torch.tensor([1.0, 2.0, 3.0])


def written_after_a_product(values: Tensor) -> list[Tensor]:
    """Of three axes by two: torch makes a matrix, and shows it in the other shape."""
    made = values.expand(2, 2, 3) @ torch.eye(3)
    made += 1
    return [made * 1, values.expand(2, 2, 3) @ torch.eye(3) * 1]


def constant_product(values: Tensor) -> list[Tensor]:
    return [torch.ones(2, 2, 3) @ torch.eye(3), values * 1]


def written_into_what_is_held(values: Tensor) -> list[Tensor]:
    before = HELD * 2
    HELD.view(1, 3).add_(values)
    after = HELD * 2
    HELD.view(1, 3).sub_(values)
    return [before + values, after + values]


def partly_empty(values: Tensor) -> list[Tensor]:
    """Return an operation on constants one of whose results is none."""
    ones = torch.ones(1)
    norm = torch.ops.aten.native_layer_norm_backward
    return [values + norm(HELD, HELD, [3], ones, ones, None, None, [True, False, False])[0]]


@pytest.mark.parametrize(
    "function", [written_after_a_product, constant_product, written_into_what_is_held, partly_empty]
)
def test_what_shares_memory_unsaid_is_neither_shared_nor_kept(function: Callable[[Tensor], list[Tensor]]) -> None:
    values = torch.tensor([1.0, -2.0, 4.0])
    expected = [tensor.clone() for tensor in function(values)]
    with Tape([leaf := values.clone()]) as tape:
        results = function(leaf)
    replay = tape.replayer(tape.slots(results))
    for _ in range(2):
        actual = replay(values.clone())
        for tensor, right in zip(actual, expected, strict=True):
            torch.testing.assert_close(tensor, right, rtol=0, atol=0)
            tensor.add_(7.0)


CUTS: list[tuple[str, Callable[[Tensor], Tensor], bool]] = [
    ("select", lambda x: x[:, 0] * x[:, 1].sin() * x[:, 2].exp(), True),
    ("some_selected", lambda x: x[:, 0] * x[:, 2].exp(), False),
    ("one_selected_twice", lambda x: x[:, 0] * x[:, 1] * x[:, 0].sin(), False),
    ("slices", lambda x: x[:, :1] * x[:, 1:].sin(), True),
    ("slices_that_overlap", lambda x: x[:, :2] * x[:, 1:].sin(), False),
    ("slices_with_a_gap", lambda x: x[:, :1] * x[:, 2:].sin(), False),
    ("used_between", lambda x: x[:, 0] * x[:, 1].sin() * x[:, 2] * x.sum(1), False),
]


@pytest.mark.parametrize(("cut", "is_joined"), [case[1:] for case in CUTS], ids=[case[0] for case in CUTS])
def test_gradients_of_parts_that_make_a_tensor_whole_are_joined(
    cut: Callable[[Tensor], Tensor], is_joined: bool
) -> None:
    """In place of a sum of tensors of zeros; of others, and of the same part twice, the sum stays."""
    names: list[str] = []

    class Listed(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            names.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    def function(x: Tensor) -> Tensor:
        return grad(lambda tensor: cut(tensor).sum())(x)

    numbers = torch.Generator().manual_seed(0)
    leaf, other = (torch.randn(2, 3, 4, generator=numbers, dtype=torch.float64) for _ in range(2))
    with Tape([leaf]) as tape:
        results = [function(leaf)]
    replay = tape.replayer(tape.slots(results))
    with Listed():
        [gradient] = replay(other)
    torch.testing.assert_close(gradient, function(other), rtol=0, atol=0)
    assert bool({"stack", "cat"} & {*names}) == is_joined, names


def test_constants_repetitions_and_what_nobody_needs_are_left_out() -> None:
    replayed: list[str] = []

    class Listed(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            replayed.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    def function(values: Tensor) -> Tensor:
        mask = torch.ones(3, 3, dtype=torch.bool).tril().logical_not()
        _ = values.exp().sum()
        sine, other = values.sin(), values.sin()
        return (sine + other).expand(3, 3).masked_fill(mask, 0.0)

    leaf = torch.arange(3.0)
    with Tape([leaf]) as tape:
        result = function(leaf)
    replay = tape.replayer(tape.slots([result]))
    with Listed():
        replay(leaf)
    assert replayed == ["sin", "add", "expand", "masked_fill"]


def test_what_takes_a_number_out_of_a_tensor_is_not_recorded() -> None:
    with (
        pytest.raises(CannotRecord, match=r"_local_scalar_dense.* takes a number out of a tensor"),
        Tape([leaf := torch.ones(3)]),
    ):
        float(leaf.sum())


def test_the_line_that_takes_a_number_out_of_a_tensor_is_the_last_that_did() -> None:
    """Line 2 takes a number of a constant, which may be recorded; line 5 one of the function's tensors."""
    source = """def function(values):
    one = float(torch.ones(3).sum())
    values = values * one
    values = values + 1
    return values * float(values.sum())
"""
    names: dict[str, Any] = {"__name__": f"{PREFIX}0123", "torch": torch}
    exec(compile(source, "mine.py", "exec"), names)
    leaf = torch.ones(3)
    with (
        pytest.raises(CannotRecord, match=r"^mine\.py:5: aten\._local_scalar_dense\.default takes a number out"),
        Tape([leaf]) as tape,
    ):
        names["function"](leaf)
    assert tape.describe_last() == "mine.py:5, in the gradient of what follows from _local_scalar_dense"


def test_neither_recording_nor_replaying_keeps_tensors_that_are_no_longer_needed() -> None:
    living: list[weakref.ref[Tensor]] = []

    def function(values: Tensor) -> Tensor:
        for _ in range(20):
            values = values + 1
            living.append(weakref.ref(values))
            assert sum(tensor() is not None for tensor in living) <= 2
        return values

    leaf = torch.zeros(3)
    with Tape([leaf]) as tape:
        result = function(leaf)
    replay = tape.replayer(tape.slots([result]))
    del result
    gc.collect()
    assert not any(tensor() is not None for tensor in living)
    assert replay(torch.ones(3))[0].tolist() == [21.0] * 3


def test_a_thread_whose_stack_ends_at_a_recorded_operation_records_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU's gradients are computed in a thread of autograd's, which no Python code started."""
    leaf, faults = torch.ones(3), []
    tape = Tape([leaf])
    monkeypatch.setattr("sys.unraisablehook", faults.append)
    _thread.start_new_thread(tape.__torch_dispatch__, (torch.ops.aten.neg.default, (Tensor,), (leaf,)))
    ends_at = time.monotonic() + 60
    while not (tape.operations or faults) and time.monotonic() < ends_at:
        time.sleep(0.001)
    assert tape.operations
    assert not faults

"""A recording of a function does to other tensors what the function does."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

from workers.numerics.tape import Tape
from workers.numerics.tracing import Traced

pytestmark = pytest.mark.fast

CONSTANT = torch.tensor([2.0, 0.5, -1.0])


def written_in_place(values: Tensor, other: Tensor) -> dict[str, Tensor]:
    """Writes into what it made, through a view too; has a constant, a list of tensors, and passes its argument on."""
    made = values.clone()
    made[1:].mul_(3)
    total = torch.zeros(3, dtype=values.dtype)
    for part in torch.unbind(torch.stack([made, other * CONSTANT])):
        total += part
    return {"total": total, "same": other, "constant": CONSTANT}


def gradients(values: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    both = vmap(grad(lambda one, two: (one.sin() * two**2).cumsum(0)[-1], argnums=(0, 1)))
    return both(values[None].expand(2, -1).contiguous(), torch.stack([other, other * 2]))


@pytest.mark.parametrize("function", [written_in_place, gradients])
def test_a_recording_gives_for_other_tensors_what_the_function_gives(function: object) -> None:
    numbers = torch.Generator().manual_seed(0)
    same = torch.randn(3, generator=numbers)
    traced = Traced(("tape", function), function)
    for values, other in [(same, same), (torch.randn(3, generator=numbers), torch.randn(3, generator=numbers))] * 2:
        expected, found = function(values.clone(), other.clone()), traced(values, other)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_what_takes_a_number_out_of_a_tensor_is_not_recorded() -> None:
    with pytest.raises(TypeError, match=r"_local_scalar_dense.* takes a number out of a tensor"):
        Traced("number", lambda values: values * float(values.sum()))(torch.ones(3))


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

"""Random numbers by kernels, emulated on a CPU: those of torch's operations and of the native code, to the bit.

On a GPU `pytest -m gpu` compares them.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import emulated_kernels  # noqa: F401 - registers what is tested
from workers.numerics import randomness, stream_kernels
from workers.numerics.cuda.compiler import CompilerError, compile_cubin, compiler_version
from workers.numerics.randomness import Purpose, Streams, keep_mask
from workers.numerics.stream_kernels import find_fault

CPU = torch.device("cpu")
SEEDS = torch.tensor([0, -1, 2**62, 12345])
STEPS = torch.tensor([0, 7, 10**12, 1])


@pytest.mark.parametrize("native", [False, True])
@settings(max_examples=12, deadline=None)
@given(rows=st.integers(1, 9), size=st.integers(1, 20), site=st.integers(0, 5), data=st.data())
def test_kernels_draw_what_torch_and_the_native_code_draw(
    native: bool, rows: int, size: int, site: int, data: Any
) -> None:
    length = data.draw(st.integers(1, size))
    lanes = st.lists(st.integers(1, length), min_size=4, max_size=4)
    lengths = torch.tensor(data.draw(lanes))
    sizes = torch.maximum(lengths, torch.tensor(data.draw(lanes)))
    rates = torch.tensor(data.draw(st.lists(st.floats(0, 0.99), min_size=4, max_size=4)), dtype=torch.float64)

    def drawn() -> list[torch.Tensor]:
        streams = Streams.of(SEEDS, Purpose.DROPOUT, STEPS, site)
        return [
            streams.state,
            streams.words(rows * size),
            streams.permutations(rows, size, length),
            streams.padded_permutations(rows, sizes, lengths, size, length),
            keep_mask(streams, rates, rows, size),
        ]

    with pytest.MonkeyPatch.context() as patch:
        if not native:
            patch.setattr(randomness, "library", lambda _: None)
        expected = drawn()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(randomness, "library", lambda _: None)
        patch.setattr(stream_kernels, "draws_on", lambda device: True)
        actual = drawn()
    assert all(torch.equal(tensor, other) for tensor, other in zip(actual, expected, strict=True))


@pytest.mark.parametrize("name", ["stream_states", "stream_words", "stream_mask", "stream_permutations"])
def test_a_kernel_that_draws_other_numbers_is_not_used(name: str, monkeypatch: Any, caplog: Any) -> None:
    assert find_fault(CPU) == ""
    right = getattr(stream_kernels, name)

    def wrong(*arguments: Any) -> torch.Tensor:
        drawn = right(*arguments).clone()
        drawn.view(-1)[-1].bitwise_not_()
        return drawn

    monkeypatch.setattr(stream_kernels, name, wrong)
    stream_kernels._can_draw.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert not stream_kernels._can_draw(CPU)
    stream_kernels._can_draw.cache_clear()
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith("random numbers are drawn by torch's operations, not by one kernel each: stream_")


def test_on_a_cpu_nothing_changes() -> None:
    assert not stream_kernels.draws_on(CPU)


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
def test_they_compile_for_gpus_of_several_generations(architecture: str) -> None:
    try:
        compiler_version()
    except CompilerError as error:
        pytest.skip(str(error))
    assert compile_cubin(stream_kernels.SOURCE, architecture).startswith(b"\x7fELF")

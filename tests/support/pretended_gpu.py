"""A GPU that is pretended: tensors that say another device, hold their numbers on the CPU, and refuse what a GPU would.

While `pretended_gpu` is entered, the device `meta` is one that computes. Operations on its tensors count as kernels
unless they are views; a tensor of the CPU among them is an error, as with CUDA, unless it is a single number in a
pointwise operation. What would make the processor wait for a GPU, or send something there, is kept with its file and
line. Everything else (what a kernel costs, how it rounds, whether memory suffices) only a GPU can tell.

    python -m tests.support.pretended_gpu  # lowers the budgets of kernel_budgets.json to what is counted now
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from tests.support import emulated_kernels  # noqa: F401 - the kernels of ours that a pretended GPU runs
from tests.support.alone import cases
from tests.support.trials import trial
from workers.engine.pack import Pack
from workers.engine.speed.operations import implementation, is_kernel
from workers.numerics.tensors import constant

DEVICE = "meta"
"""A device of torch's own, so that autograd knows it; torch's tensors of it have no numbers, these have."""
BUDGETS = Path(__file__).with_name("kernel_budgets.json")
ROOT = Path(__file__).parents[2]
_WAITS = {"_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "_unique2", "unique_dim"}
"""Operations whose result has a size, or is a number, that the processor has to wait for."""


class Fault(NamedTuple):
    """What a step on a GPU must not do."""

    kind: str
    """`wait` for the device, or `copy` to it."""
    operation: str
    place: str
    """File and line of ours, `workers/networks/scorers/_entmax.py:49`."""


class PretendedTensor(torch.Tensor):
    """Says that it is on the pretended device; `numbers` has what it holds."""

    numbers: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, numbers: Tensor) -> PretendedTensor:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            numbers.shape,
            strides=numbers.stride(),
            storage_offset=numbers.storage_offset(),
            dtype=numbers.dtype,
            device=torch.device(DEVICE),
        )
        made.numbers = numbers
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{func} outside of the pretended GPU")


class PretendedGpu(TorchDispatchMode):
    """Runs operations of pretended tensors on their numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: Counter[str] = Counter()
        self.faults: list[Fault] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        keywords = dict(kwargs or {})
        if (ours := implementation(func)) is not None:  # what an operation of ours is made of is kernels, too
            with self:
                return ours(*args, **keywords)
        given = pytree.tree_leaves((args, keywords))
        pretended = [leaf for leaf in given if isinstance(leaf, PretendedTensor)]
        real = [leaf for leaf in given if isinstance(leaf, Tensor) and not isinstance(leaf, PretendedTensor)]
        target = keywords.get("device")
        arrives = target is not None and torch.device(target).type == DEVICE
        leaves = pretended and target is not None and not arrives
        if arrives:
            keywords["device"] = torch.device("cpu")
        if pretended or arrives:
            self._note(func, args, pretended, real, leaves=bool(leaves))
        arguments, plain = pytree.tree_map_only(PretendedTensor, lambda leaf: leaf.numbers, (args, keywords))
        results = func(*arguments, **plain)
        if leaves or not (pretended or arrives):
            return results
        known = {id(leaf.numbers): leaf for leaf in pretended}  # an operation in place returns what it was given

        def pretend(tensor: Tensor) -> PretendedTensor:
            return known[id(tensor)] if id(tensor) in known else PretendedTensor(tensor)

        return pytree.tree_map_only(Tensor, pretend, results)

    def _note(self, func: Any, args: Any, pretended: list[Any], real: list[Tensor], *, leaves: bool) -> None:
        name = func.overloadpacket.__name__
        if leaves or name in _WAITS or (name == "copy_" and not isinstance(args[0], PretendedTensor)):
            self._fault("wait", func)
        elif name in ("_to_copy", "copy_", "lift_fresh_copy") and real:
            self._fault("copy", func)
        elif name in ("index", "index_put", "index_put_", "_index_put_impl_"):
            indices = [index for index in args[1] if index is not None]
            if any(index.dtype in (torch.bool, torch.uint8) for index in indices):
                self._fault("wait", func)
            elif any(not isinstance(index, PretendedTensor) for index in indices):
                self._fault("copy", func)
        elif any(tensor.dim() or torch.Tag.pointwise not in func.tags for tensor in real) and pretended:
            raise RuntimeError(f"{func} has tensors of the GPU and of the CPU at {_place()}")
        if is_kernel(func):
            self.kernels[str(func)] += 1

    def _fault(self, kind: str, operation: Any) -> None:
        self.faults.append(Fault(kind, str(operation), _place()))


class _Constructors(TorchFunctionMode):
    """What torch makes of Python's numbers is made on the CPU first, and what is listed goes there."""

    def __init__(self, gpu: PretendedGpu) -> None:
        super().__init__()
        self._gpu = gpu

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        keywords = dict(kwargs or {})
        if func in (torch.tensor, torch.as_tensor):
            target = keywords.pop("device", None)
            if isinstance(args[0], Tensor):
                return args[0].to(device=target, dtype=keywords.get("dtype")) if (target or keywords) else args[0]
            if target is None or torch.device(target).type != DEVICE:
                return func(*args, **kwargs or {})
            self._gpu._fault("copy", func.__name__)
            with (
                _disable_current_modes(),
                torch._C._DisableFuncTorch(),
            ):  # as torch does: only what arrives on the device is seen
                made = PretendedTensor(func(*args, **keywords))
            return torch.ops.aten.lift_fresh.default(made)
        if func is Tensor.tolist and isinstance(args[0], PretendedTensor):
            self._gpu._fault("wait", "tolist")
            return args[0].numbers.tolist()
        return func(*args, **keywords)


@contextmanager
def pretended_gpu() -> Iterator[PretendedGpu]:
    """Tensors of the device `meta` are on a GPU, and have numbers, meanwhile.

    Recordings are replayed by Python: torch's interpreter hands numbers to a mode as if they were tensors.
    """
    gpu = PretendedGpu()
    by_python = patch("workers.numerics.tracing._off_python", lambda replay, leaves: replay)
    _forget_tensors()
    try:
        with by_python, patch("workers.numerics.tracing._RECORDINGS", {}), _Constructors(gpu), gpu:
            yield gpu
    finally:
        _forget_tensors()


def _forget_tensors() -> None:
    """Empty what keeps tensors by their device: those of an estimate are on torch's own `meta`, without numbers."""
    constant.cache_clear()
    for name, module in [*sys.modules.items()]:
        if name.startswith("workers.data.tasks"):
            for member in vars(module).values():
                if hasattr(member, "cache_clear"):
                    member.cache_clear()


def _place() -> str:
    """Return the innermost line of the product, or of a test's plug-in, that is at work."""
    frame: Any = sys._getframe(1)
    while frame:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(ROOT) and path != Path(__file__) and "numerics/tape" not in str(path):
            return f"{path.relative_to(ROOT)}:{frame.f_lineno}"
        frame = frame.f_back
    return "torch"


class Counted(NamedTuple):
    """What optimizer steps on the pretended GPU did."""

    kernels: int
    """Of one step: its data, masks and update."""
    faults: list[Fault]
    operations: Counter[str]


def count_step(gpu: PretendedGpu, pack: Pack) -> Counted:
    """Of one step of a pack that has trained before; what each call of `train` does once is left out."""

    def counts(steps: int) -> tuple[Counter[str], Counter[Fault]]:
        gpu.kernels, gpu.faults = Counter(), []
        pack.train(steps)
        return gpu.kernels, Counter(gpu.faults)

    one, three = counts(1), counts(3)
    twice, faults = three[0] - one[0], three[1] - one[1]
    assert all(number % 2 == 0 for number in twice.values()), "two steps do the same"
    return Counted(twice.total() // 2, [*faults], Counter({name: number // 2 for name, number in twice.items()}))


def lower_budgets() -> None:
    """Write what is counted now where it is less than the budget, or where there is none."""
    known = json.loads(BUDGETS.read_text()) if BUDGETS.exists() else {}
    counted: dict[str, int] = {}
    for name, configuration in step_cases():
        with pretended_gpu() as gpu:
            counted[name] = min(known.get(name, sys.maxsize), count_step(gpu, pack_of(configuration)).kernels)
        print(f"{counted[name]:6,}  {name}")
    BUDGETS.write_text(json.dumps(counted, indent=0) + "\n")


def step_cases() -> Iterator[tuple[str, dict[str, Any]]]:
    """Name -> configuration of trials whose steps are counted, which neither end nor validate meanwhile."""
    for name, configuration in cases():
        yield name, {**configuration, "training": {**configuration["training"], "steps": 1000, "validate_every": 1000}}


def pack_of(configuration: dict[str, Any], width: int = 2) -> Pack:
    """Return a pack on the pretended GPU, with a trial in its first lane; it has trained a step."""
    first = trial(3, configuration)
    pack = Pack(first, width=width, device=DEVICE)
    pack.fill([first])
    pack.train(1)
    return pack


if __name__ == "__main__":
    lower_budgets()

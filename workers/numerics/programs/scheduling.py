"""The joining of loops over the same rows into kernels, and the kernels in C++.

The innermost loop goes through a row. A kernel does all its loops for each row, so that a loop
reads what another has just stored. Elements that no other kernel needs are kept for one row.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from workers.numerics.codegen.formulas import FUNCTIONS
from workers.numerics.codegen.values import TYPES
from workers.numerics.programs.indices import Index, Variable
from workers.numerics.programs.values import Body, Buffer, Call, Loops

_MOST = 48
"""The most loops of a kernel: a compiler takes long for larger ones."""
_VECTOR, _LONG = 16, 256
"""The most elements of a vector, and the length of a row whose last few elements cost little."""
_EXTREME = "an extreme"
_DEAR = (" / ", "exp(", "log(", "log1p(", "tanh(", "erf(", "pow(", _EXTREME)
"""Expressions that cost more for the last few elements, one by one, than for a whole vector."""

Axes = tuple[int, ...]


@dataclass(eq=False)
class Kernel:
    """Loops over the same rows."""

    rows: Axes
    """The number of iterations of each outer loop."""
    loops: list[Loops]
    bodies: list[_Written] = field(default_factory=list)
    text: str = ""
    buffers: list[Buffer] = field(default_factory=list)


@dataclass
class _Written:
    """The statements of loops for one row of a kernel."""

    body: Body
    value: str
    place: Index
    inner: int | None
    """The number of iterations of the innermost loop; None if there is none."""
    scanned: str
    """The index along the axis of a scan."""
    adds_up: bool
    """True if results are added to what is there, which is initialised before the first row."""


def schedule(steps: Sequence[Loops | Call], results: Sequence[Buffer]) -> list[Kernel | Call]:
    """Return kernels and calls in the order in which they run."""
    schedule = _Schedule()
    for step in steps:
        schedule.add(step)
    kept = {id(buffer) for buffer in results}
    for number, kernel in enumerate(schedule.done):
        if isinstance(kernel, Kernel):
            made = {id(loops.buffer) for loops in kernel.loops}
            read = {key for key, last in schedule.last_read.items() if key in made and last > number}
            write_kernel(kernel, made - read - kept)
    return schedule.done


class _Schedule:
    def __init__(self) -> None:
        self.done: list[Kernel | Call] = []
        self.last_read: dict[int, int] = {}
        """Id of a buffer -> the last kernel or call that reads it."""
        self._made: dict[int, int] = {}
        """Id of a buffer -> the last kernel or call that writes it."""
        self._writers: dict[int, list[Loops]] = {}

    def add(self, step: Loops | Call) -> None:
        if isinstance(step, Call):
            read = [stored.buffer for stored in step.read if stored]
            self.done.append(step)
            for stored in step.written:
                self._note(len(self.done) - 1, read, stored.buffer)
            return
        body = write_loops(step, step.axes[:-1])
        assert body, "loops have rows of their own"
        read = [buffer for buffer, _ in body.body.loads]
        first = max([0, *(self._made.get(id(buffer), 0) for buffer in read)])
        last = len(self.done) - 1
        for number in dict.fromkeys(index for index in (first, last) if first <= index):
            kernel = self.done[number] if self.done else None
            if isinstance(kernel, Kernel) and self._joins(kernel, number, step):
                break
        else:
            number = len(self.done)
            self.done.append(Kernel(step.axes[:-1], [step], [body]))
        self._note(number, read, step.buffer)
        self._writers.setdefault(id(step.buffer), []).append(step)

    def _note(self, number: int, read: Sequence[Buffer], made: Buffer) -> None:
        for buffer in read:
            self.last_read[id(buffer)] = max(number, self.last_read.get(id(buffer), 0))
        self._made[id(made)] = max(number, self._made.get(id(made), 0))

    def _joins(self, kernel: Kernel, number: int, step: Loops) -> bool:
        """Add loops to a kernel if they share its rows and read only what it stores for a row."""
        rows = _rows_for(kernel.rows, step.axes)
        if rows is None or len(kernel.loops) >= _MOST:
            return False
        written = write_loops(step, rows)
        if written is None:
            return False
        bodies = kernel.bodies if rows == kernel.rows else [write_loops(loops, rows) for loops in kernel.loops]
        if None in bodies:
            return False
        names = frozenset(f"o{axis}" for axis in range(len(rows)))
        for buffer, index in written.body.loads:
            if self._made.get(id(buffer)) != number:
                continue
            [writer, *others] = self._writers[id(buffer)]
            if writer not in kernel.loops or others:
                return False
            body = bodies[kernel.loops.index(writer)]
            if body is None or body.adds_up or body.place.part(names) != index.part(names):
                return False
            stored, read = body.place.without(names), index.without(names)
            if read.least < stored.least or stored.most < read.most:  # not stored for this row
                return False
        kernel.rows, kernel.bodies = rows, [body for body in [*bodies, written] if body]
        kernel.loops.append(step)
        return True


def _rows_for(rows: Axes, axes: Axes) -> Axes | None:
    """Return a kernel's rows, cut finer if need be so that loops over `axes` go through them."""
    count, depth = math.prod(rows), 0
    while math.prod(axes[:depth]) < count and depth < len(axes):
        depth += 1
    if math.prod(axes[:depth]) != count or len(axes) - depth > 1:
        return None
    ends = [math.prod(some[at:]) for some in (rows, axes[:depth]) for at in range(len(some) + 1)]
    cuts = sorted({*ends}, reverse=True)
    if any(cut % other for cut, other in itertools.pairwise(cuts)):
        return None
    return tuple(cut // other for cut, other in itertools.pairwise(cuts))


# -- text ------------------------------------------------------------------------------------------


def write_loops(
    loops: Loops,
    rows: Axes,
    locate: Callable[[Buffer, Index], str] = lambda buffer, index: f"b{id(buffer)}[{index.write()}]",
) -> _Written | None:
    """Return the statements of loops for one row; None if their axes are no products of rows."""
    variables = [Variable(f"o{axis}", size) for axis, size in enumerate(rows)]
    indices: list[Index] = []
    at = 0
    for size in loops.axes:
        if at == len(rows):
            break
        index, done = Index(), 1
        while done < size and at < len(rows):
            terms = {variable: factor * rows[at] for variable, factor in index.terms.items()}
            index = Index(0, terms).plus(Index.of(variables[at]))
            done *= rows[at]
            at += 1
        if done != size:
            return None
        indices.append(index)
    left = loops.axes[len(indices) :]
    if at != len(rows) or len(left) > 1:
        return None
    indices += [Index.of(Variable("c", size)) for size in left]
    body = Body(frozenset(variable.name for variable in variables), locate)
    value = loops.value(body, indices)
    place = loops.place(body, indices)
    scanned = indices[loops.scanned[0]].write() if loops.how == "scan" else ""
    outer = len(loops.axes) - len(left)
    adds_up = loops.is_scattered or any(axis < outer for axis in loops.reduced)
    return _Written(body, value, place, left[0] if left else None, scanned, adds_up)


def write_kernel(kernel: Kernel, unneeded: set[int]) -> None:
    """Write a kernel's text and arguments; `unneeded`: ids of buffers that no other reads."""
    names: dict[int, str] = {}
    local: dict[int, str] = {}
    rows = frozenset(f"o{axis}" for axis in range(len(kernel.rows)))
    lines: list[str] = []
    first: list[str] = []
    for loops, body in zip(kernel.loops, kernel.bodies, strict=True):
        key, left = id(loops.buffer), body.place.without(rows)
        writers = [writer for writer in kernel.loops if writer.buffer is loops.buffer]
        is_whole = loops.how != "scan" and not body.adds_up
        is_short = left.least >= 0 and left.most < 4096
        if key in unneeded and len(writers) == 1 and is_whole and is_short:
            local[key] = f"l{len(local)}"
            lines.append(f"alignas(64) {TYPES[loops.buffer.kept_as]} {local[key]}[{left.most + 1}];")

    def locate(buffer: Buffer, index: Index) -> str:
        if name := local.get(id(buffer)):
            return f"{name}[{index.without(rows).write()}]"
        if id(buffer) not in names:
            names[id(buffer)] = f"b{len(names)}"
            kernel.buffers.append(buffer)
        return f"{names[id(buffer)]}[{index.write()}]"

    for loops in kernel.loops:
        written = write_loops(loops, kernel.rows, locate)
        assert written, "it has these rows"
        to = locate(loops.buffer, written.place)
        if written.adds_up:
            head = f"for (Long n = 0; n < {loops.buffer.numel}; n++)"
            first.append(f"{head} {names[id(loops.buffer)]}[n] = {_start(loops)};")
        lines += ["{", *(f"    {line}" for line in _write_row(loops, written, to)), "}"]
    for axis in reversed(range(len(kernel.rows))):
        lines = [
            f"for (long o{axis} = 0; o{axis} < {kernel.rows[axis]}; o{axis}++) {{",
            *(f"    {line}" for line in lines),
            "}",
        ]
    types = [TYPES[buffer.kept_as] for buffer in kernel.buffers]
    parameters = ", ".join(f"{kind} *__restrict b{number}" for number, kind in enumerate(types))
    given = ", ".join(f"({kind} *)at[{number}]" for number, kind in enumerate([*types, "Long"]))
    kernel.text = "\n".join(
        [
            f"__attribute__((noinline)) static void work({parameters}, Long *fault) {{",
            *(f"    {line}" for line in [*first, *lines]),
            "}",
            f'extern "C" void NAME(void *const *at, const std::int64_t *) {{ work({given}); }}',
        ]
    )


def _start(loops: Loops) -> str:
    kind = TYPES[loops.dtype]
    return {
        "sum": f"{kind}(0)",
        "amax": f"-std::numeric_limits<{kind}>::infinity()",
        "amin": f"std::numeric_limits<{kind}>::infinity()",
        "all": f"{kind}(1)",
        "any": f"{kind}(0)",
    }[loops.how]


_JOINED = {
    "sum": "{0} + {1}",
    "amax": "larger({1}, {0})",
    "amin": "smaller({1}, {0})",
    "all": "{0} & {1}",
    "any": "{0} | {1}",
}


def _write_row(loops: Loops, written: _Written, to: str) -> list[str]:
    body, value, kind = written.body, written.value, TYPES[loops.dtype]
    inner = [*body.inside]
    head = f"for (long c = 0; c < {written.inner}; c++) {{"
    has_loop = written.inner is not None
    is_reduced = has_loop and len(loops.axes) - 1 in loops.reduced
    if is_reduced and not loops.is_scattered:
        reduced = _reduce(loops, inner, value, written.inner or 1, to, written.adds_up)
        return [*body.outside, *reduced]
    if loops.how == "scan":
        stride, sum_type = loops.scanned[1], "double" if loops.dtype.is_floating_point else kind
        before = to.replace("[", "[-" + str(stride) + " + ", 1)
        if has_loop and loops.scanned[0] == len(loops.axes) - 1:
            summed = [f"total += {value};", f"{to} = total;"]
            return [*body.outside, f"{sum_type} total = 0;", head, *inner, *summed, "}"]
        stored = f"{to} = {written.scanned} ? {before} + {value} : {value};"
        if not has_loop:
            return [*body.outside, *inner, stored]
        plain = [head, *inner, f"{to} = {value};", "}"]
        added = [head, *inner, f"{to} = {before} + {value};", "}"]
        added = [f"if ({written.scanned}) {{", "#pragma GCC ivdep", *added]
        return [*body.outside, *added, "} else {", *plain, "}"]
    stored = f"{to} = {value if loops.how == 'store' else _JOINED[loops.how].format(to, value)};"
    if not has_loop:
        return [*body.outside, *inner, stored]
    # Several elements of a scattered row may be added at one place: they cannot be vectors.
    if is_reduced:
        return [*body.outside, head, *inner, stored, "}"]
    is_own = loops.how == "store" and all(buffer is not loops.buffer for buffer, _ in body.loads)
    lines = [*body.outside]
    whole = f"long c = 0; c < {written.inner}"
    for span in _spans(written.inner or 1, inner) if is_own else [whole]:
        lines += ["#pragma GCC ivdep", f"for ({span}; c++) {{", *inner, stored, "}"]
    return lines


def _spans(count: int, inner: Sequence[str]) -> list[str]:
    """Return the starts and ends of loops through so many elements, some of them twice.

    Elements after whole vectors are computed one by one or, if dear, in an overlapping vector.
    """
    left = count % _VECTOR
    is_dear = any(mark in line for line in inner for mark in _DEAR)
    if not left or not _VECTOR < count < _LONG or not is_dear:
        return [f"long c = 0; c < {count}"]
    return [f"long c = 0; c < {count - left}", f"long c = {count - _VECTOR}; c < {count}"]


def _reduce(loops: Loops, inner: list[str], value: str, count: int, to: str, adds_up: bool) -> list[str]:
    """Return the statements that reduce a row to a number, in an order that the compiler fixes."""
    kind, how = TYPES[loops.dtype], loops.how
    start, term, total = f"{kind} total = {_start(loops)};", value, "total"
    if how in ("all", "any"):
        start, total = f"int total = {int(how == 'all')};", "bool(total)"
        term = f"int(bool({value}))"
    joined = f"{to} = {_JOINED[how].format(to, total) if adds_up else total};"
    if how in ("sum", "all", "any"):
        mark = {"sum": "+", "all": "&", "any": "|"}[how]
        head = f"#pragma omp simd reduction({mark} : total)"
        loop = f"for (long c = 0; c < {count}; c++) {{"
        return [start, head, loop, *inner, f"total {mark}= {term};", "}", joined]
    name, sign = ("max", ">") if how == "amax" else ("min", "<")
    lines = [start, "int odd = 0;"]  # a NaN stays one
    for span in _spans(count, [*inner, _EXTREME]):
        lines += [
            f"#pragma omp simd reduction({name} : total) reduction(| : odd)",
            f"for ({span}; c++) {{",
            *inner,
            f"total = {value} {sign} total ? {value} : total;",
            f"odd |= {value} != {value};",
            "}",
        ]
    return [*lines, f"if (odd) total = std::numeric_limits<{kind}>::quiet_NaN();", joined]


PREAMBLE = f'#define __device__\n#include "programs.hpp"\nnamespace programs {{\n{FUNCTIONS}\n'

"""Values of a space's expressions."""

from __future__ import annotations

from collections.abc import Mapping

from spaces.grammar.declarations import Context, Declarations
from spaces.grammar.expressions import compile_expression
from spaces.grammar.formulas import Scope, constant


def a_site(block: str | None = "trial", names: Mapping[str, float] | None = None) -> Context:
    declarations = Declarations(dict.fromkeys(names or {}, "trial"))
    declarations.values.update({name: constant(value) for name, value in (names or {}).items()})
    return Context(declarations=declarations, path="a.b", block=block)  # type: ignore[arg-type]


def value(text: str, u: float | Mapping[str, float] = 0.5, **names: float) -> float:
    term = compile_expression(text, a_site(names=names))
    return term.evaluate(Scope(lambda draw: u[draw.name] if isinstance(u, Mapping) else u, {}))

"""The expressions of a space: their arithmetic, their draws, their errors, and the seeds."""

from __future__ import annotations

import math
import operator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spaces.grammar.distributions import RANGES
from spaces.grammar.expressions import compile_expression
from spaces.grammar.formulas import Draw, LanguageError, Level, Scope
from spaces.seeds import GAMMA, mix64, trial_seed
from tests.support.expressions import a_site, value

pytestmark = pytest.mark.fast

LAST = 1 - 2**-53


def fault(text: str, block: str | None = "trial", **names: float) -> str:
    with pytest.raises(LanguageError) as error:
        compile_expression(text, a_site(block, names))
    return str(error.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 + 2 * 3 ** 2", 19),
        ("(1 + 2) * 3", 9),
        ("-2 ** 2", -4),
        ("2 ** -1", 0.5),
        ("2 ** 3 ** 2", 512),
        ("7 // 2 + 7 % 3", 4),
        ("-7 // 2", -4),
        ("7 / 2", 3.5),
        ("1e-5 * 10_000_000", 100),
        ("floor(2.7) + ceil(2.1) + round(2.6)", 8),
        ("abs(-3) + min(4, 2, 9) + max(1, 5)", 10),
        ("relu(-3) + relu(2)", 2),
        ("sqrt(16) + exp(0) + log(e) + log2(8) + log10(1000)", 12),
        ("2 * pi", math.tau),
        ("$width - 1", 11),
        ("1 +\n   2", 3),
    ],
)
def test_an_expression_computes_as_on_paper(text: str, expected: float) -> None:
    assert value(text, width=12) == pytest.approx(expected, rel=1e-15)


def combined(parts: tuple[tuple[str, int], str, tuple[str, int]]) -> tuple[str, int]:
    (left, first), sign, (right, second) = parts
    compute = {"+": operator.add, "-": operator.sub, "*": operator.mul}[sign]
    return f"({left} {sign} {right})", compute(first, second)


LITERALS = st.integers(0, 99).map(lambda number: (str(number), number))


@given(st.recursive(LITERALS, lambda i: st.tuples(i, st.sampled_from("+-*"), i).map(combined), max_leaves=12))
def test_arithmetic_agrees_with_exact_integers(text_and_value: tuple[str, int]) -> None:
    text, exact = text_and_value
    assert value(text) == pytest.approx(exact, rel=1e-12, abs=1e-3)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "not an expression"),
        ("1 +", "not an expression"),
        ("(1", "not an expression"),
        ("1 / 0", "division by zero"),
        ("1 % 0", "division by zero"),
        ("10 ** 999", "too large"),
        ("9 ** 9 ** 9 ** 9", "too large"),
        ("1e999", "too large"),
        ("1e308 * 10", "too large"),
        ("exp(1000)", "too large"),
        ("(-8) ** 0.5", "not a real number"),
        ("sqrt(-1)", "not a real number"),
        ("log(0)", "not a real number"),
        ("0 ** -1", "not a real number"),
        ("width", "write $width"),
        ("floor", "'floor' is no number"),
        ("$widht", "'$widht' is no named value, did you mean '$width'? choose one of $width"),
        ("$", "is no named value"),
        ("flor(2)", "did you mean 'floor'? choose one of floor, ceil"),
        ("floor(1, 2)", "floor takes 1 argument, but got 2"),
        ("min(1)", "min takes at least 2 arguments, but got 1"),
        ("uniform(1)", "uniform takes 2 arguments, but got 1"),
        ("choice(1)", "choice takes at least 2 arguments, but got 1"),
        ("uniform(-1, -8)", "write uniform(-8, -1)"),
        ("uniform(2, 2)", "leaves nothing to draw, write 2"),
        ("log_uniform(0, 1)", "must be positive"),
        ("log_int(0, 4)", "must be positive"),
        ("int(0.5, 4)", "whole numbers"),
        ("int(0, 1e17)", "whole numbers"),
        ("uniform(-1e308, 1e308)", "wider than a number can be"),
        ("__import__('os')", "cannot stand in an expression"),
        ("[1][0]", "cannot stand in an expression"),
        ("1; 2", "cannot stand in an expression"),
        ("a.b", "'a.b' is not part of the language"),
        ("$width.bit", "'$width.bit' is not part of the language"),
        ("1 if 2 else 3", "not part of the language"),
        ("lambda x", "not an expression"),
        ("True", "not part of the language"),
        ("1j", "not part of the language"),
        ("+1", "not part of the language"),
        ("1 and 2", "not part of the language"),
        ("max(*3, 4)", "not part of the language"),
        ("1if 2else 3", "not an expression"),
        ("1 + " * 126 + "1", "may have 500 characters"),
        ("-" * 400 + "1", "nested 64 deep"),
        ("(" * 240 + "1" + ")" * 240, "not an expression"),
        ("ð", "cannot stand in an expression"),
    ],
)
def test_what_is_not_in_the_language_is_refused_with_a_reason(text: str, problem: str) -> None:
    assert problem in fault(text, width=12)


def test_a_draw_has_the_path_of_its_leaf_and_further_ones_a_number() -> None:
    site = a_site()
    compile_expression("uniform(0, 1) + choice(int(1, 2), uniform(0, 3))", site)
    assert [draw.name for draw in site.declarations.draws] == ["a.b", "a.b#2", "a.b#3", "a.b#4"]
    assert [draw.condition for draw in site.declarations.draws] == [
        None,
        None,
        "a.b#2=int(1, 2)",
        "a.b#2=uniform(0, 3)",
    ]
    assert [draw.bounds for draw in site.declarations.draws] == [
        "[0, 1)",
        "int(1, 2) | uniform(0, 3)",
        "[1, 2]",
        "[0, 3)",
    ]


def test_only_the_chosen_option_is_drawn() -> None:
    asked: list[str] = []

    def source(draw: Draw) -> float:
        asked.append(draw.name)
        return 0.75

    term = compile_expression("choice(uniform(0, 1), uniform(4, 8))", a_site())
    assert term.evaluate(Scope(source, {})) == 7
    assert asked == ["a.b", "a.b#3"]


def test_bounds_may_be_drawn_and_may_then_be_equal() -> None:
    assert value("uniform(1, int(1, 5))", {"a.b": 0.5, "a.b#2": 0.9}) == 3
    assert value("uniform(1, int(1, 5))", {"a.b": 0.5, "a.b#2": 0.0}) == 1
    with pytest.raises(LanguageError, match=r"write uniform\(1, 2\)"):
        value("uniform(2, int(1, 5))", {"a.b": 0.5, "a.b#2": 0.0})


def test_a_computation_that_fails_only_for_some_draws_fails_only_for_them() -> None:
    assert value("1 / uniform(0, 1)", 0.5) == 2
    with pytest.raises(ZeroDivisionError):
        value("1 / uniform(0, 1)", 0.0)


def test_nothing_is_drawn_where_a_constant_must_stand() -> None:
    assert "must be a constant" in fault("uniform(0, 1)", block=None)
    assert "must be a constant" in fault("$width", block=None, width=3)


def test_an_expression_without_draws_is_a_constant() -> None:
    assert compile_expression("2 ** 3 + $width", a_site(names={"width": 4})).level is Level.CONSTANT


NAMES = ("uniform(", "choice(", "floor(", "log(", "$a", "$", "a", "if", "lambda", "_", "é")
SIGNS = (")", "(", ",", "**", "*", "+", "-", "/", "//", "%", " ", ".", "'", "\n", "\x00")
NUMBERS = ("1", "0", "1e9", "0x", "5e-324", "1e308")


@pytest.mark.long
@settings(max_examples=600)
@given(
    st.text(max_size=40) | st.lists(st.sampled_from(NAMES + SIGNS + NUMBERS), max_size=14).map("".join),
    st.floats(0, LAST),
)
def test_random_text_gives_a_finite_number_or_a_language_error(text: str, u: float) -> None:
    try:
        term = compile_expression(text, a_site(names={"a": 3}))
    except LanguageError:
        return
    try:
        result = term.evaluate(Scope(lambda _: u, {}))
    except (LanguageError, ArithmeticError, ValueError):
        return
    assert math.isfinite(result)


@given(low=st.floats(-1e6, 1e6), width=st.floats(1e-6, 1e6), u=st.floats(0, LAST))
def test_uniform_keeps_its_half_open_interval(low: float, width: float, u: float) -> None:
    high = low + width
    if low < high:
        assert low <= RANGES["uniform"].value(low, high, u) < high


@given(
    low=st.integers(1, 1000), width=st.integers(0, 1000), u=st.floats(0, LAST), kind=st.sampled_from(["int", "log_int"])
)
def test_integers_keep_both_ends(low: int, width: int, u: float, kind: str) -> None:
    drawn = RANGES[kind].value(float(low), float(low + width), u)
    assert drawn == int(drawn)
    assert low <= drawn <= low + width
    assert RANGES[kind].value(float(low), float(low + width), 0.0) == low
    assert RANGES[kind].value(float(low), float(low + width), LAST) == low + width


def test_log_uniform_is_uniform_in_the_logarithm() -> None:
    assert value("log_uniform(1e-4, 1)", 0.0) == pytest.approx(1e-4, rel=1e-14)
    assert value("log_uniform(1e-4, 1)", 0.25) == pytest.approx(1e-3)
    assert value("log_uniform(1e-4, 1)", LAST) < 1


def test_log_int_gives_k_the_share_log_k_plus_1_over_k() -> None:
    points = [(i + 0.5) / 100_000 for i in range(100_000)]
    drawn = [RANGES["log_int"].value(1.0, 4.0, u) for u in points]
    for k in range(1, 5):
        assert drawn.count(k) / len(points) == pytest.approx(math.log((k + 1) / k) / math.log(5), abs=2e-5)


def test_mix64_is_the_finalizer_of_splitmix64() -> None:
    stream = [mix64(1234567 + k * GAMMA) for k in range(1, 6)]
    assert stream == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_trial_seeds_are_63_bits_and_differ_between_trials_and_searches() -> None:
    seeds = [trial_seed(seed, number) for seed in range(20) for number in range(1000)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert max(seeds) > 2**62

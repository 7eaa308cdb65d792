"""Command-line options of the benchmarks that take a list."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection


def words_of(choices: Collection[str]) -> Callable[[str], list[str]]:
    """For argparse's `type`: `a,b` out of the choices."""

    def parse(text: str) -> list[str]:
        words = text.split(",")
        for word in words:
            if word not in choices:
                raise argparse.ArgumentTypeError(f"{word!r} must be one of {', '.join(choices)}")
        return words

    return parse


def numbers(text: str) -> list[int]:
    """For argparse's `type`: `2,8,32`."""
    return [int(word) for word in text.split(",")]

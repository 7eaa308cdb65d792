"""`--steps` on any space: what has to be set so that its trials train for so many steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from graft.families import families
from spaces import load
from spaces.grammar.nodes import compose, read
from spaces.reading import catalogue
from spaces.reading.transfer_section import is_transfer_text
from spaces.transfer import TransferSpace

_COUNTS = ("training.validate_every", "learning.life", "optimizer.schedule.warmup")
"""What else counts steps in a trial of a transfer, where it is more than one."""


def cut_steps(origin: str, steps: int, overrides: Mapping[str, str]) -> dict[str, str]:
    """Paths and values that give a space's trials so many steps; `overrides` are set as well.

    A transfer trains each task for as long as it says: its longest gets `steps`, and everything else that counts steps,
    in both stages, is cut in proportion.
    """
    if steps < 1 or not is_transfer_text(catalogue.read_text(origin)):
        return {"training.steps": str(steps)}
    space = load(origin, families(), overrides)
    assert isinstance(space, TransferSpace), "that is what its text says"
    configs = {domain.name: _config(domain.baseline) for domain in space.domains}
    share = steps / max(config["training"]["steps"] for config in configs.values())
    named = _spaces_by_name(origin)
    cut: dict[str, str] = {}
    for domain in space.domains:
        here = f"transfer.tasks.{domain.name}"
        parts = {"set": dict(_scale(configs[domain.name], share))}
        if domain.searched:
            parts["learn"] = dict(_scale(_config(domain.searched), share))
        if domain.name in named:
            fields = ", ".join(f"{part}: {{{_join(values)}}}" for part, values in parts.items())
            cut[here] = f"{{space: {named[domain.name]}, {fields}}}"
        else:
            cut |= {f"{here}.{part}.{path}": value for part, values in parts.items() for path, value in values.items()}
    return cut


def _spaces_by_name(origin: str) -> dict[str, str]:
    """The tasks of a transfer that are a space's name alone."""
    root: Any = read(compose(catalogue.read_text(origin), origin))
    tasks = root.content["transfer"].content["tasks"].content
    return {name: task.word for name, task in tasks.items() if isinstance(task.content, str)}


def _join(values: Mapping[str, str]) -> str:
    return ", ".join(f"{path}: {value}" for path, value in values.items())


def _config(space: Any) -> Mapping[str, Any]:
    return space.sample(0, lambda _: 0.5).config


def _scale(config: Mapping[str, Any], share: float) -> Iterator[tuple[str, str]]:
    for path in ("training.steps", *_COUNTS):
        value: Any = config
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if isinstance(value, int) and value > 1:
            yield path, str(max(1, round(value * share)))

"""Entropy of attention by layer and head as inputs grow (paper 001, sections 3 and 4)."""

from __future__ import annotations

import re
from typing import final

import polars as pl

from graft.report.sections._lines import Lines

_HEAD = re.compile(r"attention_entropy layer=(\d+) head=(\d+)")


@final
class AttentionEntropy(Lines):
    """A line for each layer and head over the size of the inputs, by `training.diagnostics`.

    Entropy that grows as the logarithm of the size is attention that disperses.
    """

    after = "temperature_curves"
    most = 3
    label, label_all = "entropy", True
    caption = (
        "Entropy of attention in nats, by layer and head: means over trials, raw parameters, each with its last "
        "validation, with Student's 95 % intervals. Attention that is even over n items has log n."
    )

    def read_lines(self) -> pl.DataFrame:
        matches = {name: _HEAD.fullmatch(name) for name, _, _ in self.data.summaries}
        parts: dict[str, tuple[pl.DataFrame, pl.DataFrame]] = {}
        heads = ((int(head[1]), int(head[2]), name) for name, head in matches.items() if head)
        for layer, head, name in sorted(heads):
            label, scores = f"layer {layer}, head {head}", self.data.scores.of_name(name)
            parts[label] = (scores, scores.select("number", series=pl.lit(label)).unique())
        return self.trace(parts)

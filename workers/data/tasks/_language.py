"""The base of language tasks. Legend: L lanes, N sequences, s positions, v tokens that are kept."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from spaces import plugins
from spaces.errors import PluginError
from spaces.plugins import Examples
from spaces.plugins.fields import file, flag, option, part, size
from spaces.plugins.files import FilePath, files_read, note_content
from spaces.records import Params
from workers.data.corpora import Corpus
from workers.data.corpora._tokens import Source, Tokens, edge_of, tokens_of
from workers.data.splits import Split, below, fractions
from workers.data.tasks import Batch, Task, TokenTask
from workers.data.tasks._probes import Ask, Probes, probes_of, told_right
from workers.data.tokenizers import Tokenizer
from workers.numerics.randomness import Streams, mix
from workers.numerics.tensors import cross_entropy, nan_if_not_finite

_LARGEST = 700.0
"""The largest mean negative log likelihood whose perplexity is finite."""


@dataclass(frozen=True, kw_only=True)
class LanguageTask(TokenTask):
    """Windows of a corpus, which is cut into training, validation and test once for all trials.

    Tokens are 0 .. v - 1, and v after each document and stretch of a long one (`corpora._parts`).
    """

    EXAMPLES: ClassVar[Examples] = ({"corpus": {"name": "stories", "words": 20_000}, "length": 16},)

    corpus: Corpus = part(Corpus, "stories")
    tokenizer: Tokenizer = part(Tokenizer, "character")
    length: int = size(128, low=2)
    """Positions of a window."""
    rare: int = size(200)
    """Fewest occurrences in the training part of a token that is kept (paper 002, App. B)."""
    lower_case: bool = flag(False)
    probes: FilePath = file(".txt", optional=True)
    """Folder of minimal pairs as Zorro's, a condition `probe=<file>` each; empty: none."""
    good_first: bool = flag(False)
    """True if the grammatical sentence of a pair comes first, as in UnMasked; in Zorro second."""
    probe_score: str = option("sum", ("sum", "mean"))
    """A sentence's score: the sum of its tokens' log-probabilities, as in BLiMP, or their mean."""

    @property
    @abstractmethod
    def ask(self) -> Ask:
        """The function that puts a sentence of a probe to the model."""

    @abstractmethod
    def examples(self, windows: Tensor, streams: Streams) -> Batch:
        """Return the batch of windows [L, N, s + 1] of tokens; `streams` are for other draws."""

    @abstractmethod
    def metric_positions(self, batch: Batch) -> Tensor:
        """Return True at the positions of `metrics`, [N, s], at least one of each sequence."""

    @property
    def context(self) -> int:
        return self.length

    @property
    def longest(self) -> int:
        return max(self.length, self._probes.longest) if self.probes else self.length

    @property
    def tokenised(self) -> Tokens:
        """The corpus as tokens; the first use on a machine may take long."""
        source = Source(
            corpus=self.corpus,
            tokenizer=self.tokenizer,
            rare=self.rare,
            lower_case=self.lower_case,
            installed=tuple(file.digest for file in files_read(self.corpus)),
        )
        return tokens_of(source)

    def contents(self) -> Iterator[FilePath]:
        """Yield the tokens of a network's corpus; raises PluginError if the study has others."""
        if self.corpus.needs_network:
            tokens = self.tokenised
            yield note_content(f"{plugins.name_of(self.corpus)} {self.corpus} {tokens.content[:12]}", tokens.data)

    @property
    def has_identities(self) -> bool:
        return False

    def sketch(self) -> Task:
        """Return the same with a few made-up stories, so that no document is fetched."""
        words = max(5_000, 20 * self.length)  # of which the smallest part has to hold a window
        return replace(self, corpus=plugins.build(Corpus, {"name": "stories", "words": words}), rare=1)

    def training(self, streams: Streams, batch: int, step: Tensor) -> Batch:
        """Return windows that start anywhere in the training part, each place equally likely."""
        starts = below(fractions(streams, batch), self._places(Split.TRAINING))
        return self._examples(Split.TRAINING, starts, streams)

    @property
    def has_documents(self) -> bool:
        return True

    def training_part(self, streams: Streams, batch: int, one_in: int, *, held_out: bool) -> Batch:
        """Return windows of the part; each stretch of a long document is on one side."""
        edge, end = edge_of(self.tokenised, one_in), self.tokenised.sizes[Split.TRAINING]
        first, last = (edge, end) if held_out else (0, edge)
        if last - first <= self.length:
            side = "held out" if held_out else "kept"
            raise PluginError(
                f"learning.held_out_one_in: {one_in} leaves {last - first} tokens of whole documents {side}, and "
                f"task.length {self.length} needs more"
            )
        starts = first + below(fractions(streams, batch), last - first - self.length)
        return self._examples(Split.TRAINING, starts, streams)

    def validation(self, streams: Streams, batch: int) -> Batch:
        return self._held_out(Split.VALIDATION, streams, batch)

    def shifted_sets(self, streams: Streams, batch: int) -> Mapping[str, Batch]:
        """Return the test part and each probe."""
        sets = {"test": self._held_out(Split.TEST, streams, batch)}
        for name, rows in self._probes.sets.items() if self.probes else ():
            here = {key: tensor.to(streams.state.device) for key, tensor in rows.items()}
            lanes = {key: tensor.expand(streams.lanes, *tensor.shape) for key, tensor in here.items()}
            sets[f"probe={name}"] = lanes
        return sets

    def metrics(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return `nll` and `accuracy`; of a probe `accuracy`, the share of pairs told right."""
        losses = cross_entropy(outputs, batch["targets"])
        if "scored" in batch:
            return {"accuracy": told_right(losses, batch["scored"], self._probes.rows, self.probe_score)}
        counts = self.metric_positions(batch).to(losses.dtype)
        right = (outputs.argmax(-1) == batch["targets"]).to(losses.dtype) + nan_if_not_finite(outputs)
        means = (torch.stack([losses, right]) * counts).sum(-1) / counts.sum(-1)
        return {"nll": means[0], "accuracy": means[1]}

    @property
    def evaluated_together(self) -> int:
        return self._probes.rows if self.probes else 1

    def summary(self, means: Mapping[str, float]) -> Mapping[str, float]:
        """Return the means, and `perplexity`, exp(nll)."""
        if "nll" not in means:
            return means
        return {**means, "perplexity": math.inf if means["nll"] > _LARGEST else math.exp(means["nll"])}

    def facts(self) -> Params:
        """Return facts about the text, and the scores of guesses by tokens' frequencies.

        `chance` is an accuracy, `dropped` the share of tokens that were too rare. Raises
        PluginError if the corpus or the probes are missing, or a part is shorter than a window.
        """
        list(self.contents())
        known, places = self.tokenised, {split: self._places(split) for split in Split}
        return {
            "tokens": self.tokens,
            "windows": places[Split.TRAINING],
            "chance": known.most_frequent,
            "unigram_perplexity": known.unigram_perplexity,
            "dropped": known.dropped,
            "content": known.content[:12],
            **({"probe_pairs": self._probes.pairs} if self.probes else {}),
        }

    @property
    def _probes(self) -> Probes:
        return probes_of(self.tokenised, self.probes, self.good_first, self.ask)

    def _held_out(self, split: Split, streams: Streams, batch: int) -> Batch:
        """Return windows spread evenly over a part, the same for every trial."""
        last = self._places(split) - 1
        starts = torch.arange(batch, device=streams.state.device) * last // max(batch - 1, 1)
        return self._examples(split, starts.expand(streams.lanes, -1), streams)

    def _examples(self, split: Split, starts: Tensor, streams: Streams) -> Batch:
        places = starts[..., None] + torch.arange(self.length + 1, device=starts.device)
        windows = self.tokenised.part(split, starts.device)[places].long()
        return self.examples(windows, Streams(state=mix(streams.state + 1)))

    def _places(self, split: Split) -> int:
        """Return the number of places in a part where a window can start."""
        tokens = self.tokenised.sizes[split]
        if tokens <= self.length:
            raise PluginError(f"task.length: {self.length} must be below the {tokens} tokens of the {split.value} part")
        return tokens - self.length

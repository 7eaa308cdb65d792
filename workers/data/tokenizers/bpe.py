"""Byte-pair encoding, learned from the corpus."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from spaces.plugins.fields import size
from workers.data.tokenizers._byte_pairs import BytePairTokenizer, check_text, library


@dataclass(frozen=True, kw_only=True)
class BytePairEncoding(BytePairTokenizer):
    """The 256 bytes, then the most frequent pairs, up to `vocabulary` tokens, as in GPT-2.

    Gage 1994; Sennrich et al. 2016; Radford et al. 2019, section 2.2. Needs the package tokenizers.
    """

    vocabulary: int = size(4096, low=256)

    def learn(self, documents: Iterable[str]) -> str:
        package = library()
        tokenizer = package.Tokenizer(package.models.BPE())
        tokenizer.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = package.decoders.ByteLevel()
        trainer = package.trainers.BpeTrainer(
            vocab_size=self.vocabulary,
            initial_alphabet=package.pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator(map(check_text, documents), trainer)
        return tokenizer.to_str()

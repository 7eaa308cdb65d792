"""A pretrained model of Llama's kind: perplexity under other scorers, entropies and spreads of its attention.

    python -m benchmarks.papers.pretrained FOLDER TEXTS.jsonl [--texts 48] [--tokens 192]

Nothing is trained. Every scorer reads the same first tokens of the same texts, so that differences from softmax at
temperature 1 are paired by text. docs/experiments/papers.md has what was planned and what came out.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from search.analysis.statistics.corrections import adjust_p
from search.analysis.statistics.paired import summarize_differences
from workers.networks.pretrained import head_entropies, load_pretrained, logit_spreads

SCORERS: Mapping[str, Mapping[str, Any]] = {
    "softmax": {"name": "softmax"},
    "softmax, temperature 0.8": {"name": "softmax", "temperature": 0.8},
    "softmax, temperature 1.2": {"name": "softmax", "temperature": 1.2},
    "softmax, temperature 1.4": {"name": "softmax", "temperature": 1.4},
    "adaptive temperature": {"name": "adaptive_temperature", "phase": "always"},
    "SSA, b 1 and n 1.5, not trained": {"name": "ssa"},
}
"""Scorers by name; the first is the baseline."""
NUMBERS = (2, 4, 8, 16, 32, 64)
"""Items of the prompts that ask for a maximum, as in paper 001's Figure 3."""
SEED = 5
CODE_TOKENS = 1024
CODE = Path(torch.nn.modules.activation.__file__)
"""The file of code whose spreads are measured; the paper took one of Gemma's."""


def read_texts(path: Path, tokenizer: Any, texts: int, tokens: int) -> list[Tensor]:
    """Return the first tokens, [1, tokens], of the first texts of a .jsonl that are as long."""
    starts = list[Tensor]()
    for line in path.open(encoding="utf-8"):
        ids = tokenizer(json.loads(line)["text"], return_tensors="pt")["input_ids"]
        if ids.shape[1] >= tokens:
            starts.append(ids[:, :tokens])
        if len(starts) == texts:
            return starts
    raise SystemExit(f"{path}: {len(starts)} texts have {tokens} tokens, and {texts} were asked for")


@torch.no_grad()
def losses(model: Any, texts: Sequence[Tensor]) -> NDArray[np.float64]:
    """Return the mean cross entropy in nats of each text, [N]."""
    return np.array([float(model(text, labels=text, use_cache=False).loss) for text in texts])


def entropies_of_maxima(model: Any, tokenizer: Any, prompts: int) -> Mapping[int, float]:
    """Return for each number of items the mean entropy in nats of the first layer's heads, from the last token on."""
    chance = np.random.default_rng(SEED)
    entropies = dict[int, float]()
    for count in NUMBERS:
        drawn = [", ".join(map(str, chance.integers(0, 100, count))) for _ in range(prompts)]
        asked = [tokenizer(f"The maximum of {items} is", return_tensors="pt")["input_ids"] for items in drawn]
        entropies[count] = float(np.mean([head_entropies(model, prompt)[0, 0, :, -1].mean() for prompt in asked]))
    return entropies


def spreads_of_code(model: Any, tokenizer: Any, path: Path) -> NDArray[np.float64]:
    """Return the spread of every head's logits, by layer and head, from the last token of the start of a file."""
    tokens = tokenizer(path.read_text(encoding="utf-8"), return_tensors="pt")["input_ids"][:, :CODE_TOKENS]
    return logit_spreads(model, tokens)[:, 0, :, -1].numpy()


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("texts_file", metavar="TEXTS.jsonl", type=Path)
    parser.add_argument("--texts", type=int, default=48)
    parser.add_argument("--tokens", type=int, default=192)
    options = parser.parse_args()
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(options.folder, local_files_only=True)
    texts = read_texts(options.texts_file, tokenizer, options.texts, options.tokens)
    scored = dict[str, NDArray[np.float64]]()
    for name, scorer in SCORERS.items():
        scored[name] = losses(load_pretrained(options.folder, scorer), texts)
        print(f"{name}: perplexity {np.exp(scored[name].mean()):.2f}", flush=True)
    (baseline, base), *others = scored.items()
    differences = [summarize_differences(nats - base) for _, nats in others]
    adjusted = adjust_p(np.array([gap.p for gap in differences]))
    print(f"\n| scorer | perplexity | nats over {baseline} (95 %) | adjusted p |\n|---|---|---|---|")
    print(f"| {baseline} | {np.exp(base.mean()):.2f} | | |")
    for (name, nats), gap, p in zip(others, differences, adjusted, strict=True):
        print(f"| {name} | {np.exp(nats.mean()):.2f} | {gap.mean:+.3f} ({gap.low:+.3f} to {gap.high:+.3f}) | {p:.2g} |")
    print("\n| items | mean entropy of the first layer's heads, nats |\n|---|---|")
    model = load_pretrained(options.folder)
    for count, entropy in entropies_of_maxima(model, tokenizer, 8).items():
        print(f"| {count} | {entropy:.2f} |")
    spreads = spreads_of_code(model, tokenizer, CODE)
    print(f"\nspread of logits over {spreads.size} heads on {CODE_TOKENS} tokens of {CODE.name}:", end=" ")
    print(f"{spreads.min():.2f} to {spreads.max():.2f}, mean {spreads.mean():.2f}, deviation {spreads.std(ddof=1):.2f}")


if __name__ == "__main__":
    main()

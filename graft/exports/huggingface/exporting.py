"""A stored trial as a folder that Hugging Face transformers loads, with the code of its model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graft.exports.cutting.loading import open_file
from graft.exports.cutting.plans import TAIL, list_parts, plan_of
from graft.exports.cutting.shaking import Shaken, shake
from graft.exports.huggingface.card import write_card
from graft.files import OutputError, writing
from graft.retraining.restored import RestoredTrial
from graft.retraining.weights import check_weights, restore_trained
from spaces import plugins
from spaces.errors import StudyError
from spaces.plugins.active import using

if TYPE_CHECKING:
    from workers.engine.trained_model import TrainedModel
    from workers.training.recipe import Recipe

_FILES = Path(__file__).parent / "files"
_NETWORK = "network_graft.py"


@dataclass(frozen=True, kw_only=True)
class Export:
    """A trial that is to be written, checked before anything is trained for it."""

    restored: RestoredTrial
    study: str
    folder: Path
    variant: str
    device: str


@dataclass(frozen=True, kw_only=True)
class Exported:
    """The model that was written."""

    parameters: int
    steps: int
    variant: str
    difference: float
    """Largest difference between logits of the written code and the trial's own; 0 if equal."""

    def __str__(self) -> str:
        same = "logits equal to the bit" if self.difference == 0 else f"logits equal within {self.difference:.1e}"
        return f"{self.parameters:,} parameters after step {self.steps:,}, {self.variant}; {same}"


def begin_export(
    url: str,
    study: str,
    number: int,
    folder: Path,
    *,
    variant: str | None = None,
    device: str | None = None,
    accept_changes: bool = False,
) -> Export:
    """Return a stored trial that can be written as a model of Hugging Face to a folder.

    `variant`: raw, ema, bema ..., by default the objective's. Raises OutputError for a folder that
    is not empty, and StudyError for a trial that is no causal model over tokens.
    """
    from workers.engine.exporting import variant_of

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OutputError(f"{folder} exists and is not empty; name another folder")
    restored = restore_trained(url, study, number, device, accept_changes=accept_changes)
    with using(restored.outside):
        variant = variant or variant_of(restored.objective, restored.trial.config)
    check_weights(restored, variant, "safetensors")
    with using(restored.outside):
        check_model(restored)
    return Export(restored=restored, study=study, folder=folder, variant=variant, device=restored.device(device))


def finish_export(export: Export, watch: Callable[[int], None]) -> Exported:
    """Train the trial again and write it; an error leaves no folder. `watch` gets its steps."""
    from workers.engine.retraining import weights
    from workers.engine.trained_model import trained_model

    restored, folder = export.restored, export.folder
    with restored.as_it_was_trained():
        learned = weights(
            restored.trial, variant=export.variant, steps=restored.steps, device=export.device, watch=watch
        )
        trained = trained_model(restored.trial, learned)
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            try:
                difference, needed = _write(folder, trained, learned)
                written = Exported(
                    parameters=sum(array.size for array in learned.values()),
                    steps=restored.steps,
                    variant=export.variant,
                    difference=difference,
                )
                write_card(folder, restored, export.study, export.variant, written, needed)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
    return written


def check_model(restored: RestoredTrial) -> None:
    """Raise StudyError if a trial is no single causal model over tokens that can stand alone."""
    from workers.data.tasks import TokenTask
    from workers.engine.retraining import check_single_model
    from workers.networks.modules import ModuleModel
    from workers.training.recipe import Recipe

    recipe, number = Recipe.of(restored.trial.config), restored.trial.number
    check_single_model(recipe, number)
    if not recipe.model.causal or not isinstance(recipe.task, TokenTask):
        model, task = plugins.name_of(recipe.model), plugins.name_of(recipe.task)
        raise StudyError(
            f"trial {number} is no language model for Hugging Face: its model {model} on the task {task} does not go"
            " from tokens to the next one; choose a trial of a transformer or a minimal over tokens"
        )
    reason = None
    if isinstance(recipe.model, ModuleModel):
        reason = f"{plugins.name_of(recipe.model)!r} builds a torch.nn.Module for a task, which the folder lacks"
    for part in list_parts(recipe.model):
        if plugins.code_of(part) is not None and any(plugins.files_of(part)):
            reason = f"{plugins.name_of(part)!r} from outside reads a file"
    if reason:
        raise StudyError(f"trial {number} cannot be a model for Hugging Face: {reason}")


def _write(folder: Path, trained: TrainedModel, learned: Mapping[str, Any]) -> tuple[float, str]:
    """Write everything but the card; return the largest difference of logits, and the packages needed."""
    import numpy as np

    from workers.engine.exporting import largest_difference, write_safetensors

    recipe = trained.recipe
    model = recipe.model.evaluations()[""]
    shaken = shake(dict.fromkeys(map(type, list_parts(model))), ["outputs"])
    for path in sorted(_FILES.glob("*.py")):
        shutil.copyfile(path, folder / path.name)
    head = '"""The network of a trained trial, in plain PyTorch: what of Graft computes it, taken out by Graft."""'
    tail = TAIL.format(classes=", ".join(shaken.names.values()))
    (folder / _NETWORK).write_text(f"{head}\n\n{shaken.text}\n{tail}", encoding="utf-8")
    settings = _settings(recipe, model, learned, shaken)
    tensors = {f"network.{name}": array for name, array in learned.items()}
    end: dict[str, int] = {}
    if (tokens := write_tokenizer(folder, recipe)) is not None:
        vocabulary = settings["vocab_size"]
        places = np.full(tokens.count, vocabulary, dtype=np.int64)
        places[[*tokens.kept, tokens.count - 1]] = np.arange(vocabulary)
        tensors["own_tokens"] = places
        end = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), tokens.count - 1)
        settings |= {"vocab_size": tokens.count, "own_vocabulary": vocabulary, **end}
    _write_json(folder / "config.json", settings)
    _write_json(folder / "generation_config.json", {"use_cache": False, **end})
    write_safetensors(folder / "model.safetensors", tensors, {"format": "pt"})
    with open_file(folder / _NETWORK) as network:
        difference = largest_difference(trained, network.build(settings["network"]))
    return difference, shaken.needed("torch", "transformers")


def _settings(recipe: Recipe, model: Any, learned: Mapping[str, Any], shaken: Shaken) -> dict[str, Any]:
    """Return the content of config.json; `vocab_size` is the network's own."""
    from workers.data.tasks import TokenTask
    from workers.networks.scorers import Scorer

    assert isinstance(recipe.task, TokenTask), "it was checked"
    table = learned.get("position.table")
    counts = any(isinstance(part, Scorer) and part.counts_all_keys for part in list_parts(model))
    return {
        "model_type": "graft",
        "architectures": ["GraftForCausalLM"],
        "auto_map": {
            "AutoConfig": "configuration_graft.GraftConfig",
            "AutoModelForCausalLM": "modeling_graft.GraftForCausalLM",
        },
        "dtype": recipe.training.dtype,
        "vocab_size": recipe.task.tokens,
        "hidden_size": model.width,
        "num_hidden_layers": getattr(model, "depth", 1),
        "num_attention_heads": getattr(model, "heads", 1),
        "max_position_embeddings": recipe.task.longest if table is None else len(table),
        **({} if table is None else {"learned_positions": len(table)}),
        **({"counts_all_keys": True} if counts else {}),
        "network": plan_of(model, shaken.names),
        "shapes": {name: list(array.shape) for name, array in learned.items()},
        "tie_word_embeddings": False,
        "use_cache": False,
    }


# ------------------------------------------------------------------------------------- tokenizers


@dataclass(frozen=True, kw_only=True)
class WrittenTokens:
    """The tokens of a tokenizer's file."""

    count: int
    """Number of tokens; the last one is the end of a text."""
    kept: list[int]
    """The tokens that the trial has, in its own order."""


def write_tokenizer(folder: Path, recipe: Recipe) -> WrittenTokens | None:
    """Write the files of a language task's tokenizer; return None where the task has none."""
    from workers.data.tasks.language import Language

    if not isinstance(recipe.task, Language):
        return None
    known = recipe.task.tokenised
    if (file := known.file()) is None:
        return None
    text, end = file
    (folder / "tokenizer.json").write_text(text, encoding="utf-8")
    longest = recipe.task.longest
    described = {"eos_token": end, "bos_token": end, "pad_token": end, "model_max_length": longest}
    kind = {"tokenizer_class": "PreTrainedTokenizerFast"}
    _write_json(folder / "tokenizer_config.json", {**kind, **described})
    return WrittenTokens(count=known.encoder.size + 1, kept=[*known.kept])


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")

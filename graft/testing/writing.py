"""A short working file of a plug-in of any family, to begin with."""

from __future__ import annotations

import re
import sys
from importlib import resources
from pathlib import Path

from graft.files import OutputError, writing
from graft.plugins.families import FAMILIES, packaged_names
from spaces.errors import PluginError
from spaces.messages import no_such, shorten
from spaces.plugins.indexing import OURS, PLUGIN_NAME

_IN_A_SPACE = {
    "task": "task: {name}",
    "model": "model: {name}",
    "scorer": "model: {{name: transformer, scorer: {name}}}",
    "activation": "model: {{name: transformer, activation: {name}}}",
    "position": "model: {{name: transformer, position: {name}}}",
    "diagnostic": "training: {{diagnostics: true}}",
    "optimizer": "optimizer: {name}",
    "schedule": "optimizer: {{name: adamw, schedule: {name}}}",
    "averaging": "averaging: {name}",
    "learning": "learning: {name}",
    "corpus": "task: {{name: language, corpus: {name}}}",
    "tokenizer": "task: {{name: language, tokenizer: {name}}}",
    "sampler": "search: {{sampler: {name}}}",
    "stopping": "search: {{stopping: {name}}}",
    "section": "nothing more: `search report study` shows it",
}


def write_template(family: str, path: Path, *, force: bool = False, from_module: bool = False) -> str:
    """Write a working plug-in of a family to a new file; return how a space names it.

    `from_module`: a model that is a torch.nn.Module. Raises PluginError or OutputError before
    anything is written: for an unknown family, a bad or taken name, a file that exists (unless
    `force`), or a folder that does not.
    """
    if family not in FAMILIES:
        raise PluginError(no_such("family", family, FAMILIES))
    if from_module and family != "model":
        raise PluginError(f"--from-module: a {family} is no torch.nn.Module; it goes with `search plugin new model`")
    name = path.stem
    if path.suffix != ".py" or not PLUGIN_NAME.fullmatch(name):
        raise PluginError(f"{shorten(str(path))}: the file's name is the plug-in's: letters, digits and _, then .py")
    if name in packaged_names(family):
        raise PluginError(f"{path}: Graft has a {family} {name!r}; choose another name")
    if name in sys.stdlib_module_names or name in OURS:
        raise PluginError(f"{path}: Python or Graft has a module {name!r} of its own; choose another name")
    if path.exists() and not force:
        raise OutputError(f"{path} exists; name another file or add --force")
    if not path.absolute().parent.is_dir():
        raise OutputError(f"{path}: there is no folder {path.parent}")
    template = f"{family}_from_module.py" if from_module else f"{family}.py"
    folder = resources.files("graft.testing").joinpath("templates")
    text = folder.joinpath(template).read_text(encoding="utf-8")
    title = "".join(word.capitalize() for word in name.split("_"))
    with writing(path):
        path.write_text(re.sub(r"\bExample\b", title, text), encoding="utf-8")
    return _IN_A_SPACE[family].format(name=name)

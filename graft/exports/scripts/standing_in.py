"""Stand-ins of scripts for code that asks for plug-ins' rules, padding, or data on a disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from graft.exports.cutting.modules import Symbol
from graft.exports.cutting.shaking import StandIns

_PLUGINS, _GAMES = "spaces.plugins", "workers.data.othello.games"
_LANGUAGE, _TOKENS = "workers.data.tasks._language", "workers.data.corpora._tokens"
_CLRS, _OTHELLO = "workers.data.tasks.clrs_text", "workers.data.tasks.othello"
_PLAIN = "workers.training.plain"
_DRAWS = ("training", "training_part", "held_out")
_SETS = ("validation", "shifted_sets")

ALWAYS: StandIns = {
    Symbol(_PLUGINS, "rules"): (
        "def rules(member):\n"
        '    """The fields of a plug-in, by name."""\n'
        "    return {one.name: None for one in dataclasses.fields(member)}"
    ),
    Symbol(_PLUGINS, "name_of"): "def name_of(plugin):\n    return type(plugin).__name__",
    Symbol(_PLUGINS, "structure_of"): "def structure_of(plugin):\n    return repr(plugin)",
    Symbol("workers.data.tasks.linear_regression", "_values"): (
        "def _values(shift):\n"
        '    """Field -> value of `input_scale=3 noise=2`."""\n'
        '    kinds, given = LinearRegression.__annotations__, (item.split("=") for item in shift.split())\n'
        '    return {name: int(float(value)) if kinds[name] == "int" else float(value) for name, value in given}'
    ),
    Symbol("workers.networks.models", "require_task"): "def require_task(kind, task, model):\n    return task",
    Symbol("workers.training.recipe", "Recipe.of"): "",
}

_READ: StandIns = {
    Symbol(_PLAIN, "draw_sets"): (
        "def draw_sets(stage, seed):\n"
        '    """Return the sets that the trial is evaluated on, out of the file beside the script."""\n'
        "    return read_sets(DATA)"
    ),
    Symbol(_TOKENS, "tokens_of"): (
        "@cache\n"
        "def tokens_of():\n"
        '    """Return the tokens of the corpus, out of the file beside the script."""\n'
        '    stored = Stored({"kept": range(int(DATA["end"]))}, [DATA[split.value] for split in Split])\n'
        '    return Tokens(source=None, content="", stored=stored)'
    ),
    Symbol(_LANGUAGE, "LanguageTask.tokenised"): (
        "    @property\n"
        "    def tokenised(self) -> Tokens:\n"
        '        """The corpus as tokens."""\n'
        "        return tokens_of()"
    ),
    Symbol(_LANGUAGE, "LanguageTask._probes"): (
        "    @property\n"
        "    def _probes(self) -> Probes:\n"
        '        longest = max(batch["inputs"].shape[1] for batch in read_sets(DATA).values())\n'
        '        return Probes({}, rows=int(DATA["rows of a pair"]), pairs=0, longest=longest)'
    ),
    Symbol(_CLRS, "ClrsText.longest"): (
        '    @property\n    def longest(self) -> int:\n        return DATA["validation/inputs"].shape[1]'
    ),
    Symbol(_CLRS, "ClrsText.context"): (
        '    @property\n    def context(self) -> int:\n        return DATA["batches/inputs"].shape[2]'
    ),
    Symbol(_GAMES, "pool"): 'def pool():\n    return torch.from_numpy(DATA["pool"])',
    Symbol(_OTHELLO, "Othello._moves"): (
        "    def _moves(self, streams: Streams, batch: int) -> Tensor:\n"
        '        """[1, N, 60] uint8, out of the pool of games in the file beside the script."""\n'
        "        return pool()[below(fractions(streams, batch), self.games)]"
    ),
}
_BATCHES: StandIns = {
    Symbol(_PLAIN, "draw_batch"): (
        "def draw_batch(stage, step):\n"
        '    """Return the batch of a step, out of the file beside the script."""\n'
        "    return read_batch(DATA, step)"
    )
}


def stand_ins(task: type, data: Mapping[str, object]) -> StandIns:
    """Return the stand-ins for a trial of this task with this `data` beside its script, if any."""
    if not data:
        return ALWAYS
    if any(name.startswith("batches/") for name in data):
        methods = dict.fromkeys(_list_methods(task, (*_DRAWS, *_SETS)), "")
        return {**ALWAYS, **_READ, **_BATCHES, **methods}
    return {**ALWAYS, **_READ, **dict.fromkeys(_list_methods(task, _SETS), "")}


def _list_methods(task: type, names: tuple[str, ...]) -> Iterator[Symbol]:
    """Yield the methods of these names of a task and of the classes that it derives from."""
    for member in task.__mro__:
        yield from (Symbol(member.__module__, f"{member.__name__}.{name}") for name in names if name in vars(member))

"""`import graft`: what a notebook or a script can do, against what the commands and the database say."""

from __future__ import annotations

import inspect
import linecache
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import polars as pl
import pytest
import torch
from safetensors.torch import load_file

import graft
from graft.api import running
from graft.launching.planning.warm_start import warm_start
from graft.plugins.families import families
from spaces import load
from spaces.errors import GraftError
from spaces.plugins.active import current
from spaces.progress import Progress
from tests.support.databases import raw
from tests.support.launches import ROOT, SPACE

QUIET = graft.Run(workers=1, device="cpu", pack=4, progress=False)
TINY = graft.Space(SPACE).set("search.group", 2).set("search.trials", 4).set("training.steps", 60)
OUTSIDE = Path(__file__).parents[1] / "data" / "outside"


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("api") / "graft.db"


@pytest.fixture(scope="module")
def study(database: Path) -> graft.Study:
    """Return a study launched with 4 trials and extended by 2 and by two of a person's choice, as in a notebook."""
    launched = graft.launch(TINY, database=database, run=QUIET)
    launched.extend(2, QUIET)
    assert launched.enqueue({"averaging.eta": 0.25}, {"optimizer.learning_rate": 0.05}) == [6, 7]
    return launched.resume(run=QUIET)


def test_a_study_is_launched_extended_and_given_trials(study: graft.Study):
    trials = study.trials()
    assert trials["number"].to_list() == list(range(8))
    assert set(trials["state"]) == {"finished"}
    config = study.show(7).config
    assert config["optimizer"]["learning_rate"] == pytest.approx(0.05, rel=1e-12)
    assert repr(study) == "<study tiny: finished, 8 of 8 trials>"
    assert study.resume(run=QUIET) == study


@pytest.mark.long
def test_a_launch_starts_warm_as_the_command_does(
    study: graft.Study, database: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """The space that is stored is that of `search launch --warm-start`, and the first trial is the best one of old."""
    best = study.trials(top=1)
    loud = replace(QUIET, progress=True)
    warm = graft.launch(TINY, study="warm", database=database, run=loud, warm_start=["tiny"])
    assert "warm: warm start: 1 candidate and " in capsys.readouterr().err
    first = warm.trials().sort("number")
    column = "params.optimizer.learning_rate"
    assert first[column][0] == pytest.approx(best[column][0], rel=1e-4), "coordinates are kept in millionths"
    with TINY.load() as loaded:
        expected = warm_start(study.database, "other", loaded, "tiny").space.text
    assert raw(study.database, "SELECT space FROM studies WHERE name = 'warm'") == [(expected,)]
    assert graft.launch(TINY, study="warm", database=database, run=QUIET, warm_start="auto") == warm, "it stays so"
    for space, earlier, words in (
        (TINY, "tine", "study 'tine' does not exist; there are tiny, warm"),
        (graft.Space("quick/transfer"), "auto", "warm start: a transfer compares what is found on each task"),
        (TINY.set("search.sampler", "grid"), "auto", "grid tries each of its points once"),
    ):
        with pytest.raises(GraftError, match=words):
            graft.launch(space, study="bad", database=database, run=QUIET, warm_start=earlier)
    assert raw(study.database, "SELECT name FROM studies ORDER BY id") == [("tiny",), ("warm",)]


def test_frames_have_types(study: graft.Study):
    schema = study.trials().schema
    assert (schema["number"], schema["objective"], schema["started_at"]) == (
        pl.Int64, pl.Float64, pl.Datetime("us", "UTC"),
    )  # fmt: skip
    assert schema["params.optimizer.learning_rate"] == pl.Float64
    assert study.metrics().schema == {
        "number": pl.Int64, "step": pl.Int64, "name": pl.String, "variant": pl.String, "condition": pl.String,
        "value": pl.Float64,
    }  # fmt: skip
    assert study.architectures().schema["knots"] == pl.List(pl.Float64)
    assert set(study.metrics(["tvd"])["name"]) == {"tvd"}


def test_the_best_trial_is_the_best_row(study: graft.Study):
    best = study.best
    assert best
    trials = study.trials()
    assert best.objective == trials["objective"].min()
    assert trials.filter(pl.col("number") == best.number)["objective"].item() == best.objective
    assert study.trials(top=1)["number"].item() == best.number
    assert study.show(best.number).config == best.config


def test_a_trained_model_gives_the_stored_metrics(study: graft.Study):
    """The module is called on the batch as any torch module is; the metrics are the task's, of the answers."""
    best = study.best
    assert best
    model = study.model(best.number)
    batch = model.batch()
    metrics = model.recipe.task.metrics(model(batch), batch)
    stored = dict(best.metrics.filter(step=best.steps, variant="bema", condition="")["name", "value"].iter_rows())
    assert stored.keys() == metrics.keys()
    for name, value in stored.items():
        assert metrics[name].double().mean().item() == pytest.approx(value, rel=1e-6)
        assert model.metrics()[name] == pytest.approx(value, rel=1e-6)
    assert torch.equal(model(batch["inputs"]), model(batch))


AVERAGED = """
study: averaged
transfer:
  tasks:
    five: {space: quick/add_mod, set: {task.modulus: 5, training.steps: 4, training.validate_every: 2, averaging: ema}}
    complement:
      space: quick/set_complement
      set:
        training.steps: 30
        training.validate_every: 15
        optimizer: {adamw: {learning_rate: 0.01}}
        averaging: {bema_grid: {kappas: 2, etas: 2}}
      objective: {minimize: "tvd/bema/kappa=0.5 eta=0.5", at: last}
      role: target
  architecture:
    model.scorer: {choice: [softmax, ssa]}
  pairs: 1
search: {trials: 1, objective: {maximize: accuracy/ema, at: last}}
"""


@pytest.mark.long
def test_a_model_has_the_variant_of_its_own_task_s_objective(tmp_path: Path):
    """Of a grid of averages it is the one that the objective's condition names."""
    (tmp_path / "averaged.yaml").write_text(AVERAGED)
    study = graft.launch(graft.Space(str(tmp_path / "averaged.yaml")), database=tmp_path / "graft.db", run=QUIET)
    trials = study.trials()
    for task, variant in (("add_mod", "ema"), ("set_complement", "bema kappa=0.5 eta=0.5")):
        number = trials.filter(task=task)["number"].max()
        assert isinstance(number, int)
        models = [study.model(number, variant=asked).state_dict() for asked in (None, variant, "raw")]
        assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])
        assert any(not torch.equal(models[0][name], models[2][name]) for name in models[0])


@pytest.mark.long
def test_a_study_is_launched_extended_by_a_half_and_gives_its_best_model(tmp_path: Path):
    study = graft.launch(TINY.set("search.trials", 64), database=tmp_path / "graft.db", run=QUIET)
    study.extend(32, QUIET)
    assert study.enqueue({"averaging.eta": 0.25}, {"optimizer.learning_rate": 0.05}) == [96, 97]
    study.resume(run=QUIET)
    assert study.trials()["state"].to_list() == ["finished"] * 98
    test_the_best_trial_is_the_best_row(study)
    test_a_trained_model_gives_the_stored_metrics(study)


def test_a_model_as_it_was_at_an_earlier_step_gives_the_objective(study: graft.Study):
    """The best validation counts, which need not be the last one."""
    best = study.best
    assert best
    values = best.metrics.filter(name="tvd", variant="bema", condition="").sort("value")
    step = values["step"][0]
    assert study.model(best.number, step=step).metrics()["tvd"] == pytest.approx(best.objective, rel=1e-6)


def test_weights_are_a_state_dict_and_a_file(study: graft.Study, tmp_path: Path):
    count = study.save_weights(1, tmp_path / "one.safetensors", variant="bema")
    learned = study.model(1).state_dict()
    saved = load_file(tmp_path / "one.safetensors")
    assert saved.keys() == learned.keys()
    assert all(torch.equal(saved[name], learned[name]) for name in saved)
    assert count == sum(tensor.numel() for tensor in learned.values())
    with pytest.raises(graft.GraftError, match=r"one\.safetensors exists"):
        study.save_weights(1, tmp_path / "one.safetensors")


def test_the_raw_model_can_be_trained_further(study: graft.Study):
    model = study.model(1, variant="raw")
    batch = model.batch()
    before = model(batch).square().mean()
    before.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter -= 1e-3 * parameter.grad
    assert model(batch).square().mean() < before


def test_a_trial_is_replayed(study: graft.Study):
    comparison = study.replay(2)
    assert comparison.reproduced
    assert comparison.verdict.endswith("metrics equal to the bit")


@pytest.mark.long
def test_figures_reports_and_displays(study: graft.Study, tmp_path: Path):
    figures = study.figure("best_per_group")
    assert figures._repr_html_().count("<svg") == len(figures.pictures) > 0
    for ending, start in {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF", "html": b"<!DOCTYPE html>"}.items():
        figures.save(tmp_path / f"groups.{ending}")
        files = [*tmp_path.glob(f"groups*.{ending}")]
        assert len(files) == (1 if ending == "html" else len(figures.pictures))
        assert all(path.read_bytes().startswith(start) for path in files)
    study.report(tmp_path / "report.html")
    assert "Study tiny" in (tmp_path / "report.html").read_text()
    assert "finished" in study._repr_html_()
    assert "optimizer.learning_rate" in study.show(0)._repr_html_()
    assert "tiny" in graft.open(study.database)._repr_html_()


def test_a_database_is_a_mapping_of_its_studies(tmp_path: Path):
    database = tmp_path / "graft.db"
    graft.launch(TINY, trials=1, database=database, study="one", run=QUIET)
    mapping = graft.open(database)
    assert (list(mapping), len(mapping), "one" in mapping, "two" in mapping) == (["one"], 1, True, False)
    mapping.note("one", "kept")
    assert mapping.tag("one", ["a", "b"], []) == ["a", "b"]
    renamed = mapping.rename("one", "two")
    assert (renamed.status().note, renamed.status().tags) == ("kept", ("a", "b"))
    mapping.archive("two")
    assert mapping.studies(archived=False).is_empty()
    assert mapping.studies(tag="a")["name"].to_list() == ["two"]
    assert mapping.query("SELECT name FROM studies").rows() == [("two",)]
    mapping.delete("two")
    assert len(mapping) == 0


# -- spaces ----------------------------------------------------------------------------------------------------------


def test_a_space_is_a_file_a_text_or_a_dictionary():
    import yaml

    text = Path(SPACE).read_text()
    expected = load(SPACE, families()).hash
    for source in (SPACE, Path(SPACE), text, yaml.safe_load(text)):
        with graft.Space(source).load() as space:
            assert space.hash == expected
    with graft.Space("quick/set_complement").load() as space:
        assert space.name == "quick-set-complement"


def test_a_space_is_changed_as_set_changes_it():
    changed = TINY.set("model.scorer", {"softmax": {"temperature": "log_uniform(0.5, 2)"}}).set("training.batch", 4)
    overrides = {
        "search.group": "2", "search.trials": "4", "training.steps": "60", "training.batch": "4",
        "model.scorer": "{softmax: {temperature: 'log_uniform(0.5, 2)'}}",
    }  # fmt: skip
    with changed.load() as space:
        assert space.hash == load(SPACE, families(), overrides).hash
    assert TINY.changes.keys() == {"search.group", "search.trials", "training.steps"}
    assert "model.scorer.temperature" in changed.describe()["path"].to_list()
    assert changed.sample(3).height == 3
    with graft.Space(changed.yaml).load() as again:
        assert again.hash == load(SPACE, families(), overrides).hash
    assert "log_uniform" in changed._repr_html_()
    changed.check()


def test_a_value_that_is_set_again_counts_last():
    with TINY.set("model.scorer", "ssa").set("model.scorer.n", 2).set("model.scorer", "softmax").load() as space:
        assert space.sample(0, lambda _: 0.5).config["model"]["scorer"]["name"] == "softmax"


# -- plug-ins of a notebook ------------------------------------------------------------------------------------------

CELL = '''
from __future__ import annotations
from dataclasses import dataclass
import torch
from torch import Tensor
from workers.networks.scorers import LogitScorer, masked_softmax
from workers.numerics.parameters import Parameters
from spaces.plugins.fields import knob

FLOOR = 0.25
ran.append("the cell")          # what a cell does beside it is not part of the plug-in


def floor_of(value: float) -> float:
    return value


@dataclass(frozen=True, kw_only=True)
class WarmSoftmax(LogitScorer):
    """Softmax at a temperature that is never low."""

    floor: float = knob(FLOOR, low=0, open_low=True)

    def weigh(self, logits: Tensor, visible: Tensor, learned: Parameters) -> Tensor:
        return masked_softmax(logits * floor_of(self.floor), visible)
'''


@pytest.fixture
def cell() -> Callable[[str], dict[str, Any]]:
    """Run a cell as a notebook does: compiled under a name of its own, whose source is kept."""

    def run(text: str) -> dict[str, Any]:
        name = f"<cell {len(linecache.cache)}>"
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        namespace: dict[str, Any] = {"__name__": "__main__", "ran": []}
        exec(compile(text, name, "exec"), namespace)
        return namespace

    return run


@pytest.mark.long
def test_a_class_of_a_cell_is_a_plug_in(cell: Callable[[str], dict[str, Any]], tmp_path: Path):
    """Stored with the study as text, so that another process trains and replays it without the notebook."""
    names = cell(CELL)
    space = TINY.set("model.scorer", "warm_softmax").set("model.scorer.floor", 0.5).using(names["WarmSoftmax"])
    study = graft.launch(space, trials=2, database=tmp_path / "graft.db", run=QUIET)
    assert names["ran"] == ["the cell"]
    [(path, text)] = raw(study.database, "SELECT path, text FROM sources")
    assert path == "<source of warm_softmax>"
    assert "ran.append" not in text
    assert current().bundles == ()
    command = [sys.executable, "-m", "graft_search", "replay", study.name, "0", "1", "--storage", study.database]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=300)
    assert done.stdout.endswith("2 of 2 trials reproduced\n"), done.stderr
    assert study.replay(0).reproduced
    best = study.best
    assert best
    assert study.model(best.number).metrics()["tvd"] > 0


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:walks. trials train by code generated from a recording")
def test_texts_that_import_one_another_are_plug_ins(tmp_path: Path):
    """A task of one's own, what it imports, a scorer and a sampler, handed over as texts."""
    from graft.testing.writing import write_template

    write_template("sampler", tmp_path / "near.py")
    files = [*(OUTSIDE / f"{name}.py" for name in ("walk", "noise", "lukewarm")), tmp_path / "near.py"]
    texts = [graft.Plugin(path.stem, path.read_text()) for path in files]
    space = (
        graft.Space(OUTSIDE / "space.yaml")
        .set("plugins", [])
        .set("training.steps", 6)
        .set("training.validate_every", 3)
    )
    study = graft.launch(space.using(*texts), trials=2, database=tmp_path / "graft.db", run=QUIET)
    assert study.replay(1).reproduced


CONSTANTS = {
    "augmented": "SCALE = 1.0\nSCALE *= 4\n",
    "loop": "SCALE = 0.0\nfor part in (1.0, 3.0):\n    SCALE += part\n",
    "choice": "FAST = True\nif FAST:\n    SCALE = 4.0\nelse:\n    SCALE = 1.0\n",
    "attempt": "try:\n    SCALE = 4.0\nexcept ValueError as error:\n    SCALE = 1.0\n",
    "item": "SCALES = [1.0]\nSCALES[0] += 3\nSCALE = SCALES[0]\n",
    "deleted": "OTHER = SCALES = [4.0, 1.0]\ndel SCALES[1], OTHER\n[SCALE] = SCALES\n",
}


@pytest.mark.parametrize("way", CONSTANTS)
def test_statements_that_change_a_constant_of_a_cell_are_part_of_its_plug_in(
    cell: Callable[[str], dict[str, Any]], way: str
):
    """A local variable of a method has no statements in the cell, such as a loop that trains."""
    loop = "for logits in (1, 2):\n    ran.append(logits)\ntorch.manual_seed(0)\n"
    names = cell(CELL.replace("FLOOR = 0.25\n", CONSTANTS[way] + loop).replace("FLOOR", "SCALE"))
    text = graft.Plugin.of(names["WarmSoftmax"]).text
    assert cell(text)["SCALE"] == names["SCALE"] == 4
    assert "ran.append" not in text


@pytest.mark.parametrize("call", ["SCALES.append(4.0)", "for part in (1.0, 4.0): SCALES.append(part)"])
def test_a_constant_of_a_cell_that_a_call_changes_is_refused(cell: Callable[[str], dict[str, Any]], call: str):
    names = cell(CELL.replace("FLOOR = 0.25", f"SCALES = [1.0]\n{call}\nFLOOR = SCALES[-1]"))
    with pytest.raises(graft.GraftError, match=r"^WarmSoftmax: line 11 of its cell .* SCALES .*graft\.Plugin"):
        graft.Plugin.of(names["WarmSoftmax"])


BROKEN = {
    "its source is not known; let it stand at the top": """
def make():
    class Inner:
        def f(self): ...
    return Inner
Inner = make()
""",
    "its source is not known": "Inner = type('Inner', (), {})\n",
}


@pytest.mark.parametrize("words", BROKEN)
def test_a_class_without_a_source_of_its_own_is_refused(cell: Callable[[str], dict[str, Any]], words: str):
    with pytest.raises(graft.GraftError, match=f"^Inner: {words}"):
        graft.Plugin.of(cell(BROKEN[words])["Inner"])


def test_the_rules_of_a_cell_s_plug_in_are_kept(cell: Callable[[str], dict[str, Any]]):
    space = TINY.set("model.scorer", "warm_softmax").using(cell(CELL)["WarmSoftmax"])
    with pytest.raises(graft.GraftError, match=r"model\.scorer\.floor: -1\.0 must be"):
        space.set("model.scorer.floor", -1.0).check()


def test_a_cell_that_leaves_an_import_out_is_told_so_with_its_line(cell: Callable[[str], dict[str, Any]]):
    """What another cell imported is not part of this one."""
    names = cell(CELL.replace("    return value\n", "    return torch.tensor(value)\n"))
    text = graft.Plugin.of(names["WarmSoftmax"]).text.replace("import torch\n", "\n")
    space = TINY.set("model.scorer", "warm_softmax").using(
        graft.Plugin("warm_softmax", text.replace("FLOOR = 0.25", ""))
    )
    with pytest.raises(graft.GraftError, match=r"<source of warm_softmax> .*:\d+: NameError: name 'FLOOR' is not"):
        space.check()


# -- in a notebook ---------------------------------------------------------------------------------------------------


def test_torch_is_not_imported_before_it_is_needed(study: graft.Study):
    script = (
        "import sys, graft\n"
        f"study = graft.open({study.database!r})['tiny']\n"
        "study.trials(), study.metrics(), study.architectures(), study.best, study.show(0), study.status()\n"
        "repr(study), study._repr_html_(), graft.Space('quick/set_complement').set('search.trials', 3).yaml\n"
        "assert 'torch' not in sys.modules, 'torch'\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_an_interrupt_stops_cleanly_and_no_signal_handler_is_taken(tmp_path: Path):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    seen: list[Progress] = []

    def look(progress: Progress) -> None:
        seen.append(progress)
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
        if progress.model_steps and len(seen) > 2:
            signal.raise_signal(signal.SIGINT)

    database = tmp_path / "graft.db"
    long = TINY.set("training.steps", 1_000_000)
    with pytest.raises(KeyboardInterrupt):
        graft.launch(long, database=database, run=graft.Run(workers=2, device="cpu", pack=2, progress=look))
    study = graft.open(database)["tiny"]
    assert study.status().state == "stopped"
    assert threading.active_count() == 1 or not any("graft" in thread.name for thread in threading.enumerate())
    rows = study.trials()
    assert set(rows["state"]) == {"queued"}
    assert (rows["steps"] > 0).all(), "what was trained is in a checkpoint"


def test_progress_is_printed_where_there_is_no_notebook(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    graft.launch(TINY, trials=1, database=tmp_path / "graft.db", run=graft.Run(workers=1, device="cpu"))
    out, error = capsys.readouterr()
    assert out == ""
    assert error.splitlines()[-1].startswith("tiny: 1 finished of 1; best tvd/bema ")


def test_every_note_stays_in_a_notebook_and_is_logged_where_no_progress_is_shown(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    handle, displayed = Mock(), list[str]()
    monkeypatch.setattr(running, "_make_handle", lambda: handle)
    monkeypatch.setattr(running, "_ipython", lambda: SimpleNamespace(HTML=str, display=displayed.append))
    shown = running._Shown("tiny", True)
    for text in ("one < two", "two"):
        shown.note(text)
    assert displayed == ["<pre>one &lt; two</pre>", "<pre>two</pre>"]
    handle.update.assert_not_called()
    running._Shown("tiny", False).note("three")
    assert caplog.messages == ["three"]


# -- what cannot be --------------------------------------------------------------------------------------------------

REFUSED: dict[str, Callable[[graft.Study, Path], object]] = {
    "nowhere.yaml: no such file": lambda study, at: graft.launch("nowhere.yaml", database=at),
    "no graft database|there is no|does not exist": lambda study, at: graft.open(at / "none.db"),
    "study 'none' does not exist; there are tiny": lambda study, at: graft.open(study.database)["none"],
    "study 'tiny' has no trial 99; the highest is 7": lambda study, at: study.show(99),
    "study 'tiny' has no trial 98": lambda study, at: study.model(98),
    "study 'tiny' has no trial 97": lambda study, at: study.replay(97),
    "--variant: 'emma' is no variant of this trial": lambda study, at: study.model(0, variant="emma"),
    "step: 61 must be 1 to 60": lambda study, at: study.model(0, step=61),
    "'tpu' is not on this machine": lambda study, at: study.model(0, device="tpu"),
    "figure: 'heat' is no figure of this study; choose one of": lambda study, at: study.figure("heat"),
    "workers: 0 must be a whole number": lambda study, at: graft.Run(workers=0),
    "checkpoint_every: 0 must be at least 1 second": lambda study, at: graft.Run(checkpoint_every=0),
    "extend: 0 must be at least 1": lambda study, at: study.extend(0),
    "0 trials by hand; there must be 1 to": lambda study, at: study.enqueue(),
    "'model.scorer' is no value that is drawn": lambda study, at: study.enqueue({"model.scorer": 1}),
    "a path is names joined by dots": lambda study, at: TINY.set("a b", 1).check(),
    "a space is made of texts, numbers": lambda study, at: TINY.set("model", object()),
    "the space.*: a space needs the sections": lambda study, at: graft.launch({"study": "x"}, database=at / "x.db"),
    "there is no file .*none.py": lambda study, at: TINY.using("./none.py").check(),
    "the name is a word of letters": lambda study, at: graft.Plugin("a b", ""),
    "plug-in 'twice' is given twice": lambda study, at: TINY.using(
        graft.Plugin("twice", ""), graft.Plugin("twice", "")
    ).check(),
    "SyntaxError": lambda study, at: TINY.using(graft.Plugin("broken", "def (:\n")).check(),
    "study 'tiny' exists with another space": lambda study, at: graft.launch(
        TINY.set("search.seed", 9), database=study.database, run=QUIET
    ),
    "the ending must be one of .svg, .png, .pdf, .html": lambda study, at: study.figure("best_per_group").save(
        at / "a.jpg"
    ),
    "the ending must be one of .html, .md": lambda study, at: study.report(at / "a.pdf"),
    "tags: 'draft' is one text; write": lambda study, at: graft.open(study.database).tag(study.name, "draft"),
    "names: 'tvd' is one text; write": lambda study, at: study.metrics("tvd"),
    "top: 0 must be at least 1": lambda study, at: study.trials(top=0),
    "database: None must be a path or a URL": lambda study, at: graft.open(cast(Any, None)),
    "needs a file that outlives the process": lambda study, at: graft.launch(TINY, database=":memory:", run=QUIET),
    "a study's name: 'a b' must be a word": lambda study, at: graft.launch(
        TINY, database=at / "x.db", study="a b", run=QUIET
    ),
    "trials of .* have no|no trial": lambda study, at: study.compatibility(),
}


@pytest.mark.parametrize("words", REFUSED)
def test_bad_input_is_one_line_and_writes_nothing(study: graft.Study, tmp_path: Path, words: str):
    before = raw(study.database, "SELECT * FROM trials"), raw(study.database, "SELECT name, space, trials FROM studies")
    with pytest.raises(graft.GraftError, match=words) as caught:
        REFUSED[words](study, tmp_path)
    assert "\n" not in str(caught.value)
    after = raw(study.database, "SELECT * FROM trials"), raw(study.database, "SELECT name, space, trials FROM studies")
    assert after == before
    assert not list(tmp_path.iterdir())


def test_an_unknown_name_is_no_attribute():
    with pytest.raises(AttributeError, match="module 'graft' has no attribute 'lunch'"):
        _ = graft.lunch  # pyright: ignore[reportAttributeAccessIssue]
    assert set(graft.__all__) <= set(dir(graft))


def test_every_package_says_that_it_is_typed_and_every_public_method_says_what_it_does():
    for package in ("cli", "graft", "graft_search", "search", "spaces", "storage", "workers"):
        assert (ROOT / package / "py.typed").exists()
    for name in graft.__all__:
        member = getattr(graft, name)
        assert inspect.getdoc(member), name
        for method, value in vars(member).items() if isinstance(member, type) else ():
            if inspect.isfunction(value) and not method.startswith("_"):
                assert inspect.getdoc(value), f"{name}.{method}"

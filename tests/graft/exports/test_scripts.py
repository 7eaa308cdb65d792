"""`search export --script`: a trial as plain PyTorch, run where there is torch and numpy alone, against its metrics.

Scripts are cut out of Graft's own code. An implementation that shares none with it, `tests.oracles.pieces`, trains the
same trials: of every task, model, scorer, activation, position, optimizer, schedule, average, dropout and way of
learning.
"""

from __future__ import annotations

import ast
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from graft.exports.scripts.writing import check_alone, data_file, write_script
from graft.plugins.collecting import plugins_asked_for
from graft.plugins.families import packaged_names
from spaces import plugins
from spaces.errors import StudyError
from spaces.plugins.active import using
from spaces.records import Ancestor
from spaces.settings import Training
from tests.oracles.pieces import running
from tests.oracles.pieces.parts import FOLDER, class_name, list_classes
from tests.oracles.pieces.tasks import recorded
from tests.support.alone import Bare, Outcome, alone, cases, configuration, train
from tests.support.databases import raw
from tests.support.inside import called
from tests.support.launches import search as search_in_a_process
from tests.support.trials import trial
from workers.engine.machine.process import flush_subnormals
from workers.engine.recording import read_data
from workers.training.recipe import Recipe

if TYPE_CHECKING:
    from graft.retraining.restored import RestoredTrial

NAMES = [name for name, _ in cases()]
LOOSE = 1e-9
"""Largest difference of a float64 trial, but for those where a sum near zero is divided by."""
ILL_CONDITIONED = ("spline_kernel", "lives")


@pytest.fixture(scope="module")
def bare() -> Iterator[Bare]:
    process = Bare()
    yield process
    process.close()


# ------------------------------------------------------------------------------------------------------- all plug-ins


@pytest.mark.sampled(1, 43)
@pytest.mark.parametrize("name", NAMES)
def test_a_script_computes_the_metrics_of_the_trial(name: str, bare: Bare, tmp_path: Path) -> None:
    """And so does an implementation that shares no code with it."""
    restored = train(alone(name))
    paths = write_script(restored, "oracle", tmp_path / "trial.py")
    outcome = bare.run(tmp_path / "trial.py")
    assert outcome.status == 0, "\n".join(outcome.lines[-5:]) or outcome.status
    difference = float(outcome.agreed.rpartition(" ")[2])
    exact = restored.trial.config["training"]["dtype"] == "float64" and not any(
        part in name for part in ILL_CONDITIONED
    )
    assert difference <= (LOOSE if exact else 1e-5)
    compare_with_pieces(restored, outcome, paths, LOOSE if exact else 1e-5)


def compare_with_pieces(restored: RestoredTrial, outcome: Outcome, paths: list[Path], tolerance: float) -> None:
    """Train the trial by the pieces, on the data beside the script, and compare all metrics that the script prints."""
    recipe, config = Recipe.of(restored.trial.config), dict[str, Any]()
    for section in ("task", "model", "optimizer", "averaging", "learning"):
        config[section] = plugins.config_of(getattr(recipe, section))
    config["training"] = {field: getattr(recipe.training, field) for field in plugins.rules(Training)}
    stage = {"seed": restored.trial.seed, "until": restored.steps, "config": config}
    with pytest.MonkeyPatch.context() as patched, flush_subnormals():
        patched.setattr(recorded, "DATA", read_data(str(paths[0])) if len(paths) > 1 else {})
        metrics, divergence = running.train([stage], restored.trial.seed, {step for step, *_ in restored.metrics})
    assert divergence == restored.row["error"]
    expected = {running_name(key): value for key, value in metrics.items() if math.isfinite(value)}
    rows = [line.split("\t") for line in outcome.lines[1:] if line.count("\t") == 3]
    printed = {name: float(here) for _, here, _, name in rows if here not in ("None", "nan", "inf")}
    assert printed == pytest.approx(expected, rel=tolerance, abs=tolerance)


def running_name(key: running.Key) -> str:
    """Return a metric as a script names it."""
    return f"{'/'.join(part for part in key[1:] if part)} at step {key[0]}"


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_script_tells_the_rounding_of_a_long_trial_from_a_mistake(name: str, bare: Bare, tmp_path: Path) -> None:
    """In float32 and for 60 steps, rounding grows in some of them until nothing agrees within 1e-5."""
    config = alone(name).config
    training = {**config["training"], "dtype": "float32", "steps": 60, "validate_every": 10}
    write_script(train(trial(3, {**config, "training": training})), "oracle", tmp_path / "trial.py")
    outcome = bare.run(tmp_path / "trial.py")
    assert outcome.status == 0, "\n".join(outcome.lines[-5:]) or outcome.status


@pytest.mark.long
def test_a_script_learns_an_architecture_from_the_last_documents_of_a_text(bare: Bare, tmp_path: Path) -> None:
    spline = {"name": "spline", "knots": 9, "low": -2, "high": 2}
    model = {"name": "transformer", "width": 8, "depth": 2, "heads": 2, "mlp_multiple": 2, "initialisation": "gpt2"}
    settings = configuration(
        task={"name": "language", "corpus": {"name": "stories", "words": 5_000}, "length": 12, "rare": 1},
        model={**model, "activation": spline},
        learning={"name": "architecture", "models": 2, "optimizer": {"name": "sgd", "learning_rate": 0.1}},
    )
    restored = train(trial(0, settings))
    write_script(restored, "oracle", tmp_path / "trial.py")
    outcome = bare.run(tmp_path / "trial.py")
    assert outcome.status == 0, "\n".join(outcome.lines[-5:]) or outcome.status
    assert float(outcome.agreed.rpartition(" ")[2]) <= LOOSE


@pytest.mark.long
def test_a_script_estimates_the_temperature_of_softmax(bare: Bare, tmp_path: Path) -> None:
    scorer = {"name": "softmax_evaluation", "temperatures": "2", "estimated": True, "factor": 0.5}
    model = {"name": "transformer", "width": 8, "depth": 2, "heads": 2, "mlp_multiple": 1, "scorer": scorer}
    restored = train(trial(0, configuration(model=model)))
    write_script(restored, "oracle", tmp_path / "trial.py")
    outcome = bare.run(tmp_path / "trial.py")
    assert outcome.status == 0, "\n".join(outcome.lines[-5:]) or outcome.status
    assert any("temperature=estimated" in condition for _, _, _, condition, _ in restored.metrics)
    assert float(outcome.agreed.rpartition(" ")[2]) <= LOOSE


@pytest.mark.parametrize("family", ["task", "model", "scorer", "activation", "position", "optimizer", "schedule",
                                    "averaging", "learning"])  # fmt: skip
def test_every_plug_in_has_its_piece(family: str) -> None:
    missing = [name for name in packaged_names(family) if class_name(family, name) not in list_classes()]
    assert not missing


def test_pieces_share_no_code_with_graft() -> None:
    names = {name for path in FOLDER.rglob("*.py") for name in imported_modules(path.read_text())}
    others = {name.partition(".")[0] for name in names if not name.startswith("tests.oracles.pieces.")}
    assert others <= {*sys.stdlib_module_names, "numpy", "torch"}


def imported_modules(text: str) -> set[str]:
    """Return the modules that a program imports."""
    return {
        (node.module or "") if isinstance(node, ast.ImportFrom) else node.names[0].name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
    }


# ----------------------------------------------------------------------------------------------------------- one script


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a small trial with dropout."""
    small_trial = trial(0, configuration(model={"name": "minimal", "width": 8, "key_width": 4, "value_width": 6,
                                                "residual_dropout": 0.25}))  # fmt: skip
    path = tmp_path_factory.mktemp("script") / "trial.py"
    assert write_script(train(small_trial), "small", path) == [path]
    return path


def test_a_script_holds_what_its_trial_uses_and_no_import_of_ours(script: Path) -> None:
    text = script.read_text()
    assert {"Minimal", "Softmax", "AdamW"} <= set(re.findall(r"^class (\w+)", text, re.MULTILINE))
    for other in ("SignedAveraging", "Layered", "class Muon", "class Copying", "entmax", "ctypes", "PluginError"):
        assert other not in text
    packages = {name.partition(".")[0] for name in imported_modules(text)}
    assert packages <= {*sys.stdlib_module_names, "numpy", "torch"}


def test_a_script_prints_every_metric_and_may_stop_before(script: Path, bare: Bare) -> None:
    lines = bare.run(script).lines
    assert lines[0].split("\t") == ["stored", "here", "difference", "metric"]
    assert lines[-1].startswith("21 of 21 metrics agree within 1e-05; the largest difference is ")
    assert any(line.endswith("tvd/bema at step 3") for line in lines)
    assert bare.run(script, 3).lines[-1].startswith("7 of 7 metrics agree")


@pytest.mark.long
def test_a_script_names_the_stored_metrics_that_it_does_not_compute(bare: Bare, tmp_path: Path) -> None:
    restored = train(alone("diagnostics"))
    write_script(restored, "small", tmp_path / "trial.py")
    agreed, last = bare.run(tmp_path / "trial.py").lines[-2:]
    assert " metrics agree within " in agreed
    names = last.removeprefix("stored, but not computed here: ").split(", ")
    assert names == ["attention_entropy", "logit_spread", "logit_spread_bound"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("'seed': 17", "'seed': 18"),
        ("EVALUATION_SEED = 17", "EVALUATION_SEED = 18"),
        ("'residual_dropout': 0.25", "'residual_dropout': 0.26"),
        ("'epsilon': 1e-08", "'epsilon': 1e-03"),
        ("(3, 'tvd', 'bema', ''): 0.", "(3, 'tvd', 'bema', ''): 0.01"),
    ],
)
def test_a_number_that_is_not_the_trial_s_is_found(
    script: Path, bare: Bare, tmp_path: Path, old: str, new: str
) -> None:
    text = script.read_text()
    assert old in text
    (tmp_path / "changed.py").write_text(text.replace(old, new))
    outcome = bare.run(tmp_path / "changed.py")
    assert outcome.status == 1
    assert not outcome.agreed.startswith("21 of 21")


@pytest.fixture(scope="module")
def chaotic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a script of a trial in float32 whose rounding grows beyond 1e-5."""
    config = alone("post-norm with Canon layers").config
    training = {**config["training"], "dtype": "float32", "steps": 60, "validate_every": 10}
    path = tmp_path_factory.mktemp("chaotic") / "trial.py"
    write_script(train(trial(3, {**config, "training": training})), "chaotic", path)
    return path


@pytest.mark.long
def test_rounding_beyond_the_tolerance_is_compared_with_what_one_last_bit_changes(chaotic: Path, bare: Bare) -> None:
    outcome = bare.run(chaotic)
    agreed, _, compared = outcome.agreed.split()[:3]
    assert int(agreed) < int(compared)
    assert outcome.status == 0, outcome.lines[-3:]
    assert outcome.lines[-1] == "all differences are rounding's: at most 4 times what that bit changes"


@pytest.mark.long
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("'learning_rate': 0.05", "'learning_rate': 0.0501"),
        ("'beta2': 0.999", "'beta2': 0.998"),
        ("'epsilon': 1e-08", "'epsilon': 1e-05"),
    ],
)
def test_a_small_mistake_in_a_chaotic_trial_is_found(
    chaotic: Path, bare: Bare, tmp_path: Path, old: str, new: str
) -> None:
    text = chaotic.read_text()
    assert old in text
    (tmp_path / "changed.py").write_text(text.replace(old, new))
    outcome = bare.run(tmp_path / "changed.py")
    assert outcome.status == 1
    assert "differences are larger than rounding's: " in outcome.lines[-1]


# -------------------------------------------------------------------------------------------------------- the program

SPACE = """
study: small
task: {name: set_complement, length: 3, vocabulary: 7}
model: {name: minimal, width: 8, key_width: 3, value_width: 6, residual_dropout: "uniform(0.1, 0.5)"}
optimizer: {name: adamw, learning_rate: "10 ** choice(-3, -2, 35)", schedule: constant}
training: {steps: 30, batch: 8, validate_every: 3, validation_batch: 16}
search:
  stopping: {population: {metric: tvd/raw, every: 6}}
  trials: 6
  objective: {minimize: tvd/raw}
"""


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a population, of which some trials diverged and some are copies."""
    folder = tmp_path_factory.mktemp("launched")
    (folder / "small.yaml").write_text(SPACE)
    search_in_a_process(folder, "launch", "small.yaml", "--workers", "1", "--pack", "6")
    return folder


@pytest.mark.long
def test_scripts_of_a_stored_study_agree_copies_and_diverged_trials_too(launched: Path, bare: Bare) -> None:
    rows = raw(f"sqlite:///{launched}/graft.db", "SELECT number, state, parent FROM trials ORDER BY number")
    diverged = [number for number, state, _ in rows if state == "diverged"]
    copies = [number for number, _, parent in rows if parent is not None]
    assert diverged
    assert copies
    for number in (0, diverged[0], copies[-1]):
        search_in_a_process(launched, "export", "small", str(number), "--script", f"trial-{number}.py")
        outcome = bare.run(launched / f"trial-{number}.py")
        assert outcome.status == 0, outcome.lines


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("small",), "export needs --output FILE, or the number of a trial and --script FILE.py"),
        (("small", "0"), "0: the number of a trial goes with --script FILE.py"),
        (("small", "--script", "a.py"), "--script a.py goes with the number of a trial"),
        (("small", "0", "--script", "a.py", "-o", "b.csv"), "and without --output"),
        (("small", "0", "--script", "a.txt"), "--script a.txt: the ending must be .py"),
        (("small", "0", "--script", "no/a.py"), "the folder no does not exist"),
        (("small", "99", "--script", "a.py"), "study 'small' has no trial 99"),
        (("other", "0", "--script", "a.py"), "study 'other' does not exist"),
        (("small", "x", "--script", "a.py"), "Invalid value for '[N]'"),
        (("small", "0", "--script", "there.py"), "there.py exists; overwrite it with --force"),
    ],
)
@pytest.mark.long
def test_what_cannot_be_written_is_one_line(
    launched: Path,
    arguments: tuple[str, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (launched / "there.py").write_text("")
    before = written(launched)
    monkeypatch.chdir(launched)
    status, out, error = called(monkeypatch, capfd, "export", *arguments)
    assert (status, out) == (2, "")
    assert message in error
    assert error.count("\n") == 1
    assert written(launched) == before


def written(folder: Path) -> list[str]:
    """Names of its files, without those that SQLite makes beside a database for its readers."""
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(("-shm", "-wal")))


# ------------------------------------------------------------------------------------------------ plug-ins from outside

STEEP = """
from dataclasses import dataclass
from spaces.plugins.fields import knob, file
from workers.networks.scorers import LogitScorer
%s

@dataclass(frozen=True, kw_only=True)
class Steep(LogitScorer):
    by: float = knob(0.5)
    %s

    def weigh(self, logits, visible, learned):
        kernel = steepen(self.by * logits).masked_fill(~visible, 0)
        return kernel / kernel.sum(-1, keepdim=True)
"""


def trained_by(folder: Path, head: str, fields: str = "") -> RestoredTrial:
    """Return a trial of a scorer in a file of this folder."""
    (folder / "steep.py").write_text(STEEP % (head, fields))
    with using(plugins_asked_for([str(folder / "steep.py")])):
        scorer = {"name": "steep", **({"points": str(folder / "steep.py")} if fields else {})}
        model = {"name": "transformer", "width": 8, "depth": 1, "heads": 2, "mlp_multiple": 1, "scorer": scorer}
        return train(trial(0, configuration(model=model)))


@pytest.mark.long
def test_a_plug_in_from_outside_goes_with_what_it_imports(tmp_path: Path, bare: Bare) -> None:
    (tmp_path / "steepness.py").write_text(
        "import torch\n\nPOWER = 3\n\ndef steepen(z):\n    return torch.exp(z) ** POWER\n"
    )
    restored = trained_by(tmp_path, "from steepness import steepen")
    check_alone(restored, "own")
    write_script(restored, "own", tmp_path / "trial.py")
    outcome = bare.run(tmp_path / "trial.py")
    assert outcome.status == 0, "\n".join(outcome.lines[-5:]) or outcome.status
    assert float(outcome.agreed.rpartition(" ")[2]) <= LOOSE


def test_a_plug_in_from_outside_that_does_not_run_by_itself_leaves_no_script(tmp_path: Path) -> None:
    restored = trained_by(tmp_path, "import torch\nif True:\n    def steepen(z):\n        return torch.exp(z)")
    with pytest.raises(
        StudyError, match="does not run by itself: NameError: name 'steepen' is not defined; what a plug"
    ):
        write_script(restored, "own", tmp_path / "trial.py")
    assert not (tmp_path / "trial.py").exists()


def test_a_script_names_the_packages_that_functions_of_a_plug_in_import(tmp_path: Path) -> None:
    restored = trained_by(tmp_path, "def steepen(z):\n    import scipy.special\n    return z.exp()")
    write_script(restored, "own", tmp_path / "trial.py")
    text = (tmp_path / "trial.py").read_text()
    assert "which stands alone: it needs numpy, torch and scipy.\n" in text
    assert text.count("import scipy") == 1


LACKING = """
from dataclasses import dataclass
from workers.data.tasks.set_complement import SetComplement

if True:
    def keep(values):
        return dict(values)

@dataclass(frozen=True, kw_only=True)
class Lacking(SetComplement):
    def %s:
        return keep(super().%s)
"""


@pytest.mark.parametrize(
    ("method", "inherited"),
    [("metrics(self, outputs, batch)", "metrics(outputs, batch)"), ("summary(self, means)", "summary(means)")],
)
def test_what_only_a_validation_lacks_leaves_no_script(tmp_path: Path, method: str, inherited: str) -> None:
    (tmp_path / "lacking.py").write_text(LACKING % (method, inherited))
    with using(plugins_asked_for([str(tmp_path / "lacking.py")])):
        settings = configuration(task={"name": "lacking", "length": 4, "vocabulary": 8})
        before = Ancestor(1, 3, settings, until=2)
        restored = train(replace(trial(0, settings), lineage=(before,)))
    with pytest.raises(StudyError, match="does not run by itself: NameError: name 'keep' is not defined"):
        write_script(restored, "own", tmp_path / "trial.py")
    assert not (tmp_path / "trial.py").exists()


def test_what_a_script_cannot_hold_is_refused_in_a_line(tmp_path: Path) -> None:
    restored = trained_by(tmp_path, "def steepen(z):\n    return z.exp()", "points: object = file('.py')")
    with pytest.raises(
        StudyError, match="trial 0 of own cannot stand alone: 'steep' from outside reads a file; `search r"
    ):
        check_alone(restored, "own")
    autocast_trial = trial(0, configuration(training={"autocast": "bfloat16", "dtype": "float32"}))
    with pytest.raises(
        StudyError, match=r"trial 0 of own cannot stand alone: a script knows no training.autocast; `sea"
    ):
        check_alone(replace(restored, trial=autocast_trial), "own")
    with pytest.raises(StudyError, match=r"trial 0 of own \(finished\) has nothing that a script could check"):
        check_alone(replace(restored, metrics=[]), "own")


@pytest.mark.long
def test_a_script_that_has_data_names_the_file(tmp_path: Path) -> None:
    restored = train(alone("othello from a pool"))
    paths = write_script(restored, "games", tmp_path / "trial.py")
    assert paths == [tmp_path / "trial.py", data_file(tmp_path / "trial.py")]
    assert "FILE.npz, which came with it, has its data." in paths[0].read_text()
    without = replace(restored, trial=alone("it diverges"))
    assert write_script(without, "small", tmp_path / "other.py") == [tmp_path / "other.py"]

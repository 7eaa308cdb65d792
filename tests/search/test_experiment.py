"""An experiment: arms from the same seeds, evaluated on the same data, the best of each confirmed on fresh seeds."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from graft.plugins.families import families
from search.analysis.arms.comparison import compare_arms
from search.analysis.arms.experiment import best_of_k, choose_trials, confirmations, read_arms, score_arms
from search.samplers import Strategy
from search.steering.experiment_strategy import ExperimentStrategy
from search.stopping import begin_policies
from spaces import SpaceError, parse
from spaces.errors import StudyError
from spaces.experiment import Confirmed, ExperimentSpace, Tried
from spaces.records import Outcome, StoredTrial, Trial
from tests.support.databases import raw
from tests.support.launches import running, search, wait_until
from workers.engine.pack import Pack

SPACE = """
study: tiny-experiment
arms:
  softmax:
  warm: {model.scorer: {softmax: {temperature: 2}}}
  ssa: {model.scorer: {ssa: {n: 1.5}}}
seeds: 2
confirm: {top: 1, seeds: 3}
task: {name: affine, points: 6, test_functions: 3, test_functions_step: 2, test_inputs: 3, test_inputs_step: 2}
model: {name: regressor, depth: 1, heads: 2, width: 8}
optimizer: {name: adam, learning_rate: "log_uniform(0.001, 0.1)"}
training: {steps: 12, batch: 4, validate_every: 6, validation_batch: 8}
search: {trials: 2, objective: {minimize: mse/raw, at: last}, history: full}
"""
ARMS, SEEDS, CONFIGURATIONS, FRESH = 3, 2, 2, 3
TRIED = ARMS * SEEDS * CONFIGURATIONS
ALL = TRIED + ARMS * FRESH


def experiment(text: str = SPACE, **changes: str) -> ExperimentSpace:
    space = parse(text, "experiment.yaml", families(), changes)
    assert isinstance(space, ExperimentSpace)
    return space


def ask_all(strategy: Strategy, space: ExperimentSpace) -> list[Trial]:
    """All trials that may be asked for now, in their order."""
    return strategy.ask(strategy.ready(range(space.search.trials)))


def outcome(trial: Trial, objective: float | None) -> Outcome:
    state = "diverged" if objective is None else "finished"
    return Outcome(number=trial.number, group=trial.group, draws=trial.draws, objective=objective, state=state)


# ----------------------------------------------------------------------------------------------------------- the space


def test_every_arm_configuration_and_seed_has_one_number() -> None:
    space = experiment()
    parts = [space.part_of(number) for number in range(space.search.trials)]
    assert len(parts) == ALL
    assert Counter(part for part in parts if isinstance(part, Tried)) == Counter(
        Tried(arm, configuration, seed) for arm in range(ARMS) for configuration in range(2) for seed in range(SEEDS)
    )
    assert {part for part in parts if isinstance(part, Confirmed)} == {
        Confirmed(arm, 0, seed) for arm in range(ARMS) for seed in range(FRESH)
    }


def test_arms_share_seeds_draws_and_judged_data() -> None:
    space = experiment()
    trials = {space.part_of(trial.number): trial for trial in ask_all(ExperimentStrategy(space, []), space)}
    assert len(trials) == TRIED
    assert len({trial.evaluation_seed for trial in trials.values()}) == 1
    for seed in range(SEEDS):
        assert len({trial.seed for part, trial in trials.items() if part.seed == seed}) == 1
    assert len({trial.seed for trial in trials.values()}) == SEEDS
    assert all(trial.evaluation_seed not in (0, trial.seed) for trial in trials.values())
    for configuration in range(CONFIGURATIONS):
        rates = {
            trial.params["optimizer.learning_rate"]
            for part, trial in trials.items()
            if isinstance(part, Tried) and part.configuration == configuration
        }
        assert len(rates) == 1
    # Arms that differ in a knob have one structure, so that they share packs; another scorer has its own.
    structures = [trials[Tried(arm, 0, 0)].structure for arm in range(ARMS)]
    assert structures[0] == structures[1] != structures[2]


def test_a_stored_trial_is_restored_whole() -> None:
    space = experiment()
    for trial in ask_all(ExperimentStrategy(space, []), space):
        assert space.restore([StoredTrial(trial.number, trial.draws)]) == trial


def test_the_text_reads_as_the_same_experiment() -> None:
    space = experiment(**{"arms.warm.model.scorer": "entmax", "seeds": "4"})
    again = experiment(space.text)
    assert (again.hash, again.seeds, len(again.arms)) == (space.hash, 4, ARMS)
    [warm] = [arm for arm in again.arms if arm.name == "warm"]
    assert warm.space.sample(0, lambda _: 0.5).config["model"]["scorer"]["name"] == "entmax"


def test_seeds_alone_are_an_experiment_of_one_arm() -> None:
    text = (
        SPACE.replace("confirm: {top: 1, seeds: 3}", "").split("arms:")[0] + "seeds: 3\n" + SPACE.split("seeds: 2")[1]
    )
    space = experiment(text.replace("confirm: {top: 1, seeds: 3}", "").replace("trials: 2, ", ""))
    assert [arm.name for arm in space.arms] == ["tiny-experiment"]
    assert space.search.trials == 3


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("  softmax:", "  soft max:", "'soft max' must be a word of letters, digits"),
        ("{softmax: {temperature: 2}}", "{ssa: {n: 1.5}}", "warm and ssa set the same"),
        ("warm: {model.scorer", "warm: {search.seed", "'search' is no section of an arm; choose one of group, trial"),
        ("warm: {model.scorer: {softmax: {temperature: 2}}}", "warm: 3", "3 stands here, but an arm is a section"),
        ("temperature: 2", "temperatur: 2", "'temperatur' is no field of softmax"),
        ("seeds: 2", "seeds: 0", "'0' must be an integer in [1, 100,000]"),
        ("confirm: {top: 1, seeds: 3}", "confirm: 3", "3 must be {top: N, seeds: N}"),
        ("top: 1", "top: 3", "confirm.top: 3 must be at most search.trials, 2"),
        ('"log_uniform(0.001, 0.1)"', "0.01", "2 configurations, but nothing is drawn"),
    ],
)
def test_what_is_wrong_is_one_line(old: str, new: str, message: str) -> None:
    assert old in SPACE
    with pytest.raises(SpaceError, match=r"experiment\.yaml:") as error:
        experiment(SPACE.replace(old, new, 1))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_stopping_policies_go_with_a_confirmation_alone() -> None:
    stopped = SPACE.replace("trials: 2,", "trials: 2, stopping: {asha: {min_steps: 2}},")
    assert experiment(stopped).search.stopping
    with pytest.raises(SpaceError, match="arms are compared at their ends"):
        experiment(stopped.replace("confirm: {top: 1, seeds: 3}", ""))
    with pytest.raises(StudyError, match="a copy in a population has no seed of its own"):
        begin_policies(experiment(SPACE.replace("trials: 2,", "trials: 2, stopping: {population: {every: 4}},")))


# -------------------------------------------------------------------------------------------------------- the strategy


def test_confirmations_wait_and_take_the_best_configuration_of_each_arm() -> None:
    space = experiment()
    strategy = ExperimentStrategy(space, [])
    trials = ask_all(strategy, space)
    # In arm 1 the second configuration is better; in arm 2 it diverges with one seed.
    for trial in trials:
        part = space.part_of(trial.number)
        assert isinstance(part, Tried)
        loss: float | None = (
            1.0 + (part.configuration if part.arm == 0 else -0.5 * part.configuration) + 0.1 * part.seed
        )
        strategy.tell([outcome(trial, None if part == Tried(2, 1, 0) else loss)])
    assert strategy.ready(range(TRIED, ALL)) == range(TRIED, ALL)
    confirmed = strategy.ask(range(TRIED, ALL))
    chosen = [0, 1, 0]
    for trial in confirmed:
        part = space.part_of(trial.number)
        [first] = [tried for tried in trials if space.part_of(tried.number) == Tried(part.arm, chosen[part.arm], 0)]
        assert trial.config == first.config
        assert trial.seed not in {tried.seed for tried in trials}
        assert trial.evaluation_seed == first.evaluation_seed
    assert len({trial.seed for trial in confirmed}) == FRESH


def test_a_strategy_made_anew_goes_on_as_the_first_would_have() -> None:
    space = experiment(SPACE.replace("search: {", "search: {sampler: tpe, ").replace("trials: 2", "trials: 12"))
    first = ExperimentStrategy(space, [])
    history: list[Outcome] = []
    asked: list[Trial] = []
    for number in range(60):
        [trial] = first.ask(range(number, number + 1))
        asked.append(trial)
        history.append(outcome(trial, float(trial.params["optimizer.learning_rate"])))
        first.tell(history[-1:])
    again = ExperimentStrategy(space, history[:37])
    assert again.ask(range(37, 38)) == asked[37:38]  # another seed of a configuration that was begun
    assert again.ready(range(72, 80)) == range(72, 72)


GROUPED = """
study: grouped
arms:
  a:
  b: {optimizer.name: adam}
group: {vocabulary: "int(4, 12)"}
task: {name: set_complement, length: 2, vocabulary: $vocabulary}
model: {name: minimal, width: 8, key_width: 4, value_width: $vocabulary, scorer: average}
optimizer: {name: adamw, learning_rate: "log_uniform(0.001, 0.1)"}
training: {steps: 20, validate_every: 10, batch: 4, validation_batch: 8}
search: {trials: 8, group: 4, sampler: SAMPLER, objective: {minimize: tvd/raw}}
"""


@pytest.mark.parametrize("sampler", ["random", "tpe", "nsga2", "gp"])
@pytest.mark.parametrize("objective", [None, 0.5])
def test_a_group_of_an_arm_shares_its_draws_after_a_restart(sampler: str, objective: float | None) -> None:
    space = experiment(GROUPED.replace("SAMPLER", sampler))
    first = ExperimentStrategy(space, []).ask(range(4, 12))  # from the middle of group 0 to that of group 1
    known = [Outcome.of_open(trial) if objective is None else outcome(trial, objective) for trial in first]
    trials = [*first, *ExperimentStrategy(space, known).ask(range(12, 16))]
    widths: dict[tuple[Any, int], set[int]] = {}
    for trial in trials:
        part = space.part_of(trial.number)
        assert isinstance(part, Tried)
        group = part.configuration // 4
        widths.setdefault((trial.params["arm"], group), set()).add(trial.config["task"]["vocabulary"])
    assert len(widths) == 4
    assert all(len(values) == 1 for values in widths.values()), widths


def test_a_sampler_learns_each_configuration_once_by_its_mean() -> None:
    outcomes: list[Outcome] = []
    space = experiment()
    strategy = ExperimentStrategy(space, [])
    for search_ in strategy._searches:  # pyright: ignore[reportPrivateUsage]
        search_.tell = outcomes.extend  # type: ignore[method-assign]
    for trial in ask_all(strategy, space):
        strategy.tell([outcome(trial, float(space.part_of(trial.number).seed))])
    assert len(outcomes) == ARMS * CONFIGURATIONS
    assert {mean.objective for mean in outcomes} == {0.5}


# --------------------------------------------------------------------------------------------------------- the results


def trials_of(rows: list[tuple[dict[str, Any], float | None]]) -> pl.DataFrame:
    return pl.DataFrame(
        [
            {
                "number": number,
                "state": "finished" if value is not None else "diverged",
                "objective": value,
                "params": json.dumps(params),
            }
            for number, (params, value) in enumerate(rows)
        ]
    )


def test_an_arm_is_judged_by_confirmations_else_by_its_best_configuration() -> None:
    tried = [
        ({"arm": arm, "configuration": configuration, "seed": seed}, value + seed)
        for arm, configuration, value in [("a", 0, 3.0), ("a", 1, 1.0), ("b", 0, 2.0), ("b", 1, 4.0)]
        for seed in range(2)
    ]
    arms = read_arms(trials_of(tried))
    compared = choose_trials(arms, "minimize")
    assert compared.choices == {"a": "best", "b": "best"}
    assert compared.trials["objective"].to_list() == [1.0, 2.0, 2.0, 3.0]
    fresh = [({"arm": arm, "confirmed rank": 0, "seed": 2 + seed}, 9.0 + seed) for arm in "ab" for seed in range(2)]
    arms = read_arms(trials_of(tried + fresh))
    compared = choose_trials(arms, "minimize")
    assert (set(compared.choices.values()), compared.trials["seed"].to_list()) == ({"confirmed"}, [2, 3, 2, 3])
    assert confirmations(arms, "minimize").select("arm", "chosen", "mean").rows() == [("a", 1.5, 9.5), ("b", 2.5, 9.5)]
    assert best_of_k(arms, "minimize").rows() == [("a", 1, 2.5), ("a", 2, 1.5), ("b", 1, 3.5), ("b", 2, 2.5)]


def test_an_arm_has_no_score_under_a_condition_that_none_of_its_trials_reports() -> None:
    tried = [({"arm": arm, "configuration": 0, "seed": seed}, 0.5 + seed) for arm in "ab" for seed in range(2)]
    compared = choose_trials(read_arms(trials_of(tried)), "minimize")
    reported = [(0, "length=20", 0.1), (1, "length=20", None), (2, "length=30", 0.3), (3, "length=30", 0.4)]
    metrics = pl.DataFrame(
        [(number, 1, "loss", "raw", condition, value) for number, condition, value in reported],
        schema=["number", "step", "name", "variant", "condition", "value"],
        orient="row",
    )
    scores = score_arms(compared, metrics, "loss", "raw", "").filter(pl.col("condition") != "")
    assert scores.select("condition", "arm", "seed", "value").rows() == [
        ("length=20", "a", 0, 0.1), ("length=20", "a", 1, None), ("length=30", "b", 0, 0.3), ("length=30", "b", 1, 0.4),
    ]  # fmt: skip
    table = compare_arms(scores, "a", "minimize").table
    assert table.select("condition", "arm", "finished", "diverged", "improvement").rows() == [
        ("length=20", "a", 1, 1, None), ("length=30", "b", 2, 0, None),
    ]  # fmt: skip


# ------------------------------------------------------------------------------------------------------------ launched


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a whole experiment, killed on its way and resumed."""
    folder = tmp_path_factory.mktemp("experiment")
    (folder / "experiment.yaml").write_text(SPACE)
    url = f"sqlite:///{folder / 'graft.db'}"
    with running(folder, "launch", "experiment.yaml", "--storage", url, "--pack", "2") as process:
        wait_until(lambda: (folder / "graft.db").exists() and ended_trials(url) > 2)
        process.kill()
    search(folder, "resume", "tiny-experiment", "--storage", url)
    return folder


def ended_trials(url: str) -> int:
    try:
        return raw(url, "SELECT count(*) FROM trials WHERE state = 'finished'")[0][0]
    except Exception:
        return 0


def test_arms_that_differ_in_a_knob_train_in_one_pack_and_are_judged_on_equal_data() -> None:
    space = experiment()
    trials = {space.part_of(trial.number): trial for trial in ask_all(ExperimentStrategy(space, []), space)}
    both = [trials[Tried(arm, 0, seed)] for arm in (0, 1) for seed in range(SEEDS)]
    pack = Pack(both[0], width=len(both))
    pack.fill(both)  # which refuses a trial of another structure
    reports = [report for _ in range(2) for report in pack.train(6)]
    assert [report.number for report in reports] == 2 * [trial.number for trial in both]
    by_metric: dict[tuple[str, str], set[float]] = {}
    for report in reports:
        for name, _, condition, value in report.metrics:
            by_metric.setdefault((name, condition), set()).add(value)
    baselines = [values for (name, _), values in by_metric.items() if name == "zero_mse"]
    assert len(baselines) > 1
    assert all(len(values) == 1 for values in baselines)
    assert len(by_metric["mse", ""]) == len(reports)


@pytest.mark.long
def test_baselines_of_the_data_are_equal_to_the_bit_in_all_arms(launched: Path) -> None:
    url = f"sqlite:///{launched / 'graft.db'}"
    rows = raw(url, "SELECT condition, count(DISTINCT value), count(*) FROM metrics WHERE name = 'zero_mse' GROUP BY 1")
    assert len(rows) > 1
    for _, different, every in rows:
        assert (different, every) == (1, 2 * ALL)
    assert raw(url, "SELECT count(DISTINCT value) FROM metrics WHERE name = 'mse' AND condition = ''")[0][0] > ALL


@pytest.mark.long
def test_trials_replay_and_the_report_tells_what_is_left_of_the_best(launched: Path) -> None:
    storage = ("--storage", f"sqlite:///{launched / 'graft.db'}")
    search(launched, "replay", "tiny-experiment", "1", "9", str(ALL - 1), *storage)
    for command in ("study", "compare"):
        search(launched, "report", command, "tiny-experiment", "-o", f"{command}.md", *storage)
        page = (launched / f"{command}.md").read_text()
        assert "Each arm stands here with the best of its configurations, trained again from fresh seeds." in page
        assert "What is left of mse/raw on fresh seeds" in page
        assert "Differences of mse/raw from softmax" in page
        for arm in ("warm", "ssa"):
            assert f"{arm} is " in page
    assert "The best trial is" not in (launched / "study.md").read_text()
    search(launched, "launch", "experiment.yaml", "--study", "again", "--steps", "6", *storage)
    search(launched, "report", "compare", "tiny-experiment", "again", "-o", "both.md", *storage)
    page = (launched / "both.md").read_text()
    assert "Differences of mse/raw from tiny-experiment: softmax" in page
    assert "again: ssa is " in page

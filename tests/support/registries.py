"""A registry of OptunaHub with one package."""

from __future__ import annotations

from pathlib import Path

SAMPLER = '''
import optuna


class ExampleSampler(optuna.samplers.BaseSampler):
    """Near the best trial so far; the first ones are uniform."""

    def __init__(self, seed=None, spread=0.5):
        self._random = optuna.samplers.RandomSampler(seed=seed)
        self._spread = spread

    def infer_relative_search_space(self, study, trial):
        return {}

    def sample_relative(self, study, trial, search_space):
        return {}

    def sample_independent(self, study, trial, name, distribution):
        own = self._random.sample_independent(study, trial, name, distribution)
        ended = study.get_trials(deepcopy=False, states=[optuna.trial.TrialState.COMPLETE])
        best = min(ended, key=lambda one: one.values[0], default=None)
        if best is None or name not in best.params or not isinstance(own, float):
            return own
        return min(max(best.params[name] + self._spread * (own - 0.5), 0.0), 1.0)
'''


def write_registry(folder: Path, package: str = "samplers/example", text: str = SAMPLER) -> Path:
    """Write the package into a registry; the registry's folder."""
    (folder / package).mkdir(parents=True, exist_ok=True)
    (folder / package / "__init__.py").write_text(text)
    return folder

"""Parts of configurations: those that are put together from them are configurations of the space."""

from __future__ import annotations

import numpy as np
import pytest

from search.samplers._features import Encoder, Floats, flatten
from search.samplers._parts import evolve, find_parts
from spaces.space import Space
from tests.support.search_spaces import CONDITIONAL, PLAIN, space

pytestmark = pytest.mark.fast

TOGETHER = PLAIN.replace('beta2: "uniform(0, 1)"', 'beta2: "uniform(0, 1) * uniform(0, 1)"')


class Genes:
    """The genes of a space's configurations: their coordinates, -1 for a draw that is not made, then their columns."""

    def __init__(self, here: Space) -> None:
        self._space = here
        trials = here.search.sampler.begin(here, []).ask(range(100))
        self._encoder = Encoder.of([flatten(trial.config) for trial in trials])

    def of(self, points: Floats) -> Floats:
        """Return the genes of configurations with these coordinates; one that is -1 must not be asked for."""
        names = [draw.name for draw in self._space.draws]
        coordinates = [dict(zip(names, point, strict=True)) for point in points.tolist()]
        trials = [self._space.sample(0, lambda draw, u=u: u[draw.name]) for u in coordinates]
        made = np.array([[trial.draws.get(name, -1.0) for name in names] for trial in trials])
        return np.hstack([made, self._encoder.encode([flatten(trial.config) for trial in trials])])

    def parts(self) -> dict[str, int]:
        """Return the number of the part of each draw."""
        parts = find_parts(self._space.draws, self.of, np.random.default_rng(0))
        return {draw.name: int(part) for draw, part in zip(self._space.draws, parts, strict=False)}


@pytest.mark.parametrize("body", [PLAIN, CONDITIONAL, TOGETHER])
def test_configurations_put_together_have_the_genes_that_resolving_them_gives(body: str) -> None:
    here = space(body)
    genes, rng = Genes(here), np.random.default_rng(1)
    pool = genes.of(rng.random((64, len(here.draws))))
    rate = [draw.name for draw in here.draws].index("optimizer.learning_rate")

    def cost(rows: Floats) -> Floats:
        return (rows[:, rate] - 0.3) ** 2 + 0.01 * rows[:, -1]

    evolved = evolve(pool, find_parts(here.draws, genes.of, rng), cost, rng)
    assert np.array_equal(genes.of(evolved[:, : len(here.draws)]), evolved)
    assert cost(evolved)[0] <= cost(pool).min()
    assert (np.diff(cost(evolved)) > 0).all()


def test_evolving_finds_better_configurations_than_the_pool_has() -> None:
    """Each of 64 random points is far from the best in one of eight coordinates; their parts are not."""
    rng = np.random.default_rng(2)
    pool = rng.random((64, 8))

    def cost(rows: Floats) -> Floats:
        return ((rows - 0.5) ** 2).sum(axis=1)

    assert cost(evolve(pool, np.arange(8), cost, rng))[0] <= cost(pool).min() / 4


def test_draws_that_decide_a_common_column_or_each_other_are_one_part() -> None:
    parts = Genes(space(CONDITIONAL)).parts()
    assert parts["averaging"] == parts["averaging.eta"] == parts["averaging.kappa"]
    assert len(set(parts.values())) == len(parts) - 2
    together = Genes(space(TOGETHER)).parts()
    assert together["optimizer.beta2"] == together["optimizer.beta2#2"]
    assert len(set(together.values())) == len(together) - 1

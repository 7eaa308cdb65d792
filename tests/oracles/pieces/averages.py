"""Averages of the parameters over training (paper 003, 4.5), all float64.

Update n = 0, 1, ... makes theta_{n+1} out of theta_n.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tests.oracles.pieces.parameters import Values

Shadow = Mapping[str, Values]
"""What is kept, by name: theta_0, and averages."""
Variants = Iterator[tuple[str, str, Values]]
"""Name, condition and parameters."""


def consume_parameters(average: Values, values: Values, weight: float) -> Values:
    """EMA_{n+1} = (1 - b_n) EMA_n + b_n theta_{n+1}, b_n the weight."""
    return {name: old + weight * (values[name].double() - old) for name, old in average.items()}


def correct_average(average: Values, start: Values, values: Values, weight: float) -> Values:
    """Return the average, and `weight` times the way from theta_0 to theta_n; in the parameters' precision."""
    return {
        name: (old + weight * (values[name].double() - start[name].double())).to(values[name].dtype)
        for name, old in average.items()
    }


class Averaging:
    """Keeps what it needs in a shadow."""

    def start(self, values: Values) -> Shadow:
        """Return the shadow of theta_0."""
        return {}

    def consume(self, shadow: Shadow, values: Values, n: int) -> Shadow:
        """Return the shadow after update n, with theta_{n+1}."""
        return shadow

    def variants(self, shadow: Shadow, values: Values, n: int) -> Variants:
        """Return the averages after n updates."""
        yield from ()


@dataclass(kw_only=True)
class NoneAveraging(Averaging):
    """No average."""


@dataclass(kw_only=True)
class EmaAveraging(Averaging):
    """EMA_0 = theta_0, b_n = (rho + n)^-kappa."""

    rho: float
    kappa: float

    def start(self, values: Values) -> Shadow:
        return {"ema": {name: value.double() for name, value in values.items()}}

    def consume(self, shadow: Shadow, values: Values, n: int) -> Shadow:
        return {"ema": consume_parameters(shadow["ema"], values, (self.rho + n) ** -self.kappa)}

    def variants(self, shadow: Shadow, values: Values, n: int) -> Variants:
        yield "ema", "", correct_average(shadow["ema"], values, values, 0.0)


@dataclass(kw_only=True)
class BemaAveraging(Averaging):
    """BEMA_n = (rho + n)^-eta (theta_n - theta_0) + EMA_n (Block and Zhang 2025)."""

    rho: float
    kappa: float
    eta: float

    def start(self, values: Values) -> Shadow:
        return {"initial": values, "ema": {name: value.double() for name, value in values.items()}}

    def consume(self, shadow: Shadow, values: Values, n: int) -> Shadow:
        return {**shadow, "ema": consume_parameters(shadow["ema"], values, (self.rho + n) ** -self.kappa)}

    def variants(self, shadow: Shadow, values: Values, n: int) -> Variants:
        weight = (self.rho + n) ** -self.eta
        yield "bema", "", correct_average(shadow["ema"], shadow["initial"], values, weight)


@dataclass(kw_only=True)
class BemaGridAveraging(Averaging):
    """BEMA for all kappa = 1/k .. 1 and eta = 1/e .. 1, and the plain averages."""

    rho: float
    kappas: int
    etas: int

    def start(self, values: Values) -> Shadow:
        exact = {name: value.double() for name, value in values.items()}
        return {"initial": values, **{f"{row / self.kappas:.3g}": exact for row in range(1, self.kappas + 1)}}

    def consume(self, shadow: Shadow, values: Values, n: int) -> Shadow:
        after = {"initial": shadow["initial"]}
        for row in range(1, self.kappas + 1):
            kappa = row / self.kappas
            after[f"{kappa:.3g}"] = consume_parameters(shadow[f"{kappa:.3g}"], values, (self.rho + n) ** -kappa)
        return after

    def variants(self, shadow: Shadow, values: Values, n: int) -> Variants:
        start = shadow["initial"]
        for kappa, average in shadow.items():
            if kappa == "initial":
                continue
            yield "ema", f"kappa={kappa}", correct_average(average, start, values, 0.0)
            for column in range(1, self.etas + 1):
                eta = column / self.etas
                corrected = correct_average(average, start, values, (self.rho + n) ** -eta)
                yield "bema", f"kappa={kappa} eta={eta:.3g}", corrected

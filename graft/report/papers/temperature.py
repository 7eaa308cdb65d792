"""The best temperature of a trained head by its attention's entropy (paper 001, Figure 6)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from graft.files import check_ending
from graft.report.rendering.document import Document, Picture
from graft.report.rendering.drawing import INK, PANEL, SOFT, arm_colour, figure_style, legend, to_svg
from graft.report.study import WRITERS, write_document

if TYPE_CHECKING:
    from workers.numerics.temperature import BestTemperatures

Numbers = NDArray[Any]

PAPER = {"a4": -0.037, "a3": 0.481, "a2": -2.3, "a1": 4.917, "a0": -1.791}
"""The fit of the paper's own head (paper 001, Figure 6)."""

_POINTS = 200
_HIGHEST = 1.5
"""The highest temperature that is shown; none above it is used."""


def write_fit(title: str, fields: Mapping[str, float], best: BestTemperatures, path: Path) -> None:
    """Write the figure, .html or .md, else OutputError; `fields` are the coefficients a4 .. a0."""
    check_ending(path, WRITERS)
    entropy: Numbers = best.entropy.numpy()
    temperature: Numbers = best.temperature.numpy()
    shown = temperature <= _HIGHEST
    terms = " + ".join(f"{value:.3g} H^{name[1:]}" for name, value in fields.items())
    polynomial = terms.replace("+ -", "- ").replace(" H^0", "").replace("H^1", "H")
    caption = (
        f"The temperature under which the target has its largest weight, over the entropy H of attention, of the "
        f"{len(entropy):,} of {best.asked:,} queries whose largest logit is another item's; {int((~shown).sum()):,} "
        f"above {_HIGHEST:g} are not shown. The line is 1 / ({polynomial}), fitted by least squares in its inverse; "
        "dashed the paper's. Adaptive temperature takes neither above 1, the dotted line."
    )
    with figure_style():
        figure = Figure(figsize=(1.7 * PANEL[0], 1.4 * PANEL[1]), layout="constrained")
        axes = figure.subplots()
        keys = axes.plot(entropy[shown], temperature[shown], ".", color=SOFT, markersize=3, alpha=0.5, label="best")
        numbers = np.linspace(float(entropy.min()), float(entropy.max()), _POINTS)
        fits = ((fields, "-", "fit"), (PAPER, "--", "the paper's fit"))
        for index, (coefficients, style, label) in enumerate(fits, 1):
            curve = fitted_temperature(coefficients, numbers)
            keys += axes.plot(numbers, curve, style, color=arm_colour(index), label=label, linewidth=1.6)
        axes.axhline(1, color=INK, linestyle=":", linewidth=1)
        axes.set_ylim(0, _HIGHEST)
        axes.set_xlabel("entropy (nats)")
        axes.set_ylabel("temperature")
        legend(figure, keys)
        picture = Picture(number=1, caption=caption, svg=to_svg(figure, "figure1"))
    write_document(Document(title=title, blocks=[picture]), path)


def fitted_temperature(fields: Mapping[str, float], entropy: Numbers) -> Numbers:
    """Return 1 / P(H) at each entropy; NaN where the polynomial is not positive."""
    inverse: Numbers = np.polyval([fields[f"a{power}"] for power in (4, 3, 2, 1, 0)], entropy)
    return np.divide(1.0, inverse, out=np.full(len(entropy), np.nan), where=inverse > 0)

"""The figure of a training run."""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: seconds of all cores that the steps took so far
SPENT = "core_seconds"


def training_figure(lines: list[dict[str, float]]) -> "Figure":
    """Training and validation loss against the step, and validation bits per dim against the core
    seconds that the steps took, where the metrics hold them; what a run has not come to yet is
    left out.

    Args:
        lines: of a run's metrics.
    """
    # a second to import, and not in every installation
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.5), layout="constrained")
    found = list(dict.fromkeys(name for line in lines for name in line))
    bits = [name for name in found if name.endswith("bits_per_dim")]
    panels = {"loss": ["loss", "validation_loss"], "validation bits per dim": bits}
    spent = [(line["step"], line[SPENT]) for line in lines if SPENT in line]
    for axes, (label, names) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        is_spent = bool(spent) and names is bits
        for name in (name for name in found if name in names):
            points = [(line["step"], line[name]) for line in lines if line.get(name) is not None]
            steps, values = zip(*points, strict=True)
            along = np.interp(steps, *zip(*spent, strict=True)) if is_spent else steps
            axes.plot(along, values, ".-", label=name.replace("_", " "))
        axes.set(xlabel="core seconds" if is_spent else "step", ylabel=label)
        if axes.lines:
            axes.legend()
    return figure

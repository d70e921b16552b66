"""Plots of where an image is odd, and of a self-test."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from ebm_app.evaluation.selftest import Balance

SIZE, DPI = (5.2, 3.8), 130
#: of a map of where an image is odd, in standard deviations; and how far it hides the image
MAX_EXCESS, OPACITY = 6, 0.7


def plot_over(
    image: Tensor, excess: np.ndarray, others: Sequence[Tensor], opacity: float = OPACITY
) -> Figure:
    """A map (H, W) of where an image (C, H, W) in [0, 1] is odd, laid over it, of ``opacity`` at
    most; nothing of it where the excess is below one standard deviation. Beside it stand the
    nearest held-out images."""
    figure = Figure(figsize=SIZE, dpi=DPI, layout="constrained")
    grid = figure.add_gridspec(len(others), 4)
    axes = figure.add_subplot(grid[:, :3])
    small = [figure.add_subplot(grid[row, 3]) for row in range(len(others))]
    for part, shown in zip([axes, *small], [image, *others], strict=True):
        part.imshow(shown.mean(0).numpy(), cmap="gray", vmin=0, vmax=1)
        part.set(xticks=[], yticks=[])
    small[0].set_title("nearest held-out", fontsize="small")
    alpha = ((excess - 1) / 3).clip(0, opacity)
    shown = axes.imshow(excess, cmap="autumn_r", vmin=0, vmax=MAX_EXCESS, alpha=alpha)
    label = "standard deviations above ordinary images"
    figure.colorbar(shown, ax=axes, label=label, location="bottom")
    return figure


def balance_figure(found: Balance) -> Figure:
    """The mean time score over the clock."""
    figure = Figure(figsize=(7, 3.5), layout="constrained")
    axes = figure.subplots()
    axes.errorbar(found.shares, found.mean, yerr=found.stderr, marker="o", capsize=3)
    axes.axhline(0, color="grey", lw=1)
    axes.set(xlabel="share of the clock", ylabel="E[s] per dim and unit of the clock (nats)")
    return figure

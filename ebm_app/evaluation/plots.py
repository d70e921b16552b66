"""Plots of where an image is odd, and of a self-test."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from torch import Tensor

from ebm_app.evaluation.selftest import Balance

SIZE, DPI = (5.2, 3.8), 130
#: of a map of where an image is odd, in standard deviations; and how far it hides the image
MAX_EXCESS, OPACITY = 6, 0.7
LABEL = "standard deviations above ordinary images"


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
    for part, shown in zip(small, others, strict=True):
        show_image(part, shown)
    small[0].set_title("nearest held-out", fontsize="small")
    show_image(axes, image)
    shown = show_excess(axes, excess, opacity)
    figure.colorbar(shown, ax=axes, label=LABEL, location="bottom")
    return figure


def plot_maps(found: Mapping[str, tuple[Tensor, np.ndarray]]) -> Figure:
    """An image (C, H, W) of each kind, above it and the map (H, W) of where it is odd."""
    figure = Figure(figsize=(1.3 * len(found), 3), dpi=DPI, layout="constrained")
    for column, (kind, (image, excess)) in zip(
        figure.subplots(2, len(found)).T, found.items(), strict=True
    ):
        for axes in column:
            show_image(axes, image)
        shown = show_excess(column[1], excess, OPACITY)
        column[0].set_title(kind, fontsize="x-small", wrap=True)
    figure.colorbar(shown, ax=figure.axes, label=LABEL, location="bottom", shrink=0.4, aspect=40)
    return figure


def show_image(axes: Axes, image: Tensor) -> None:
    """Draw an image (C, H, W) in [0, 1] in grey."""
    axes.imshow(image.mean(0).numpy(), cmap="gray", vmin=0, vmax=1)
    axes.set(xticks=[], yticks=[])


def show_excess(axes: Axes, excess: np.ndarray, opacity: float) -> AxesImage:
    """Lay a map (H, W) over what is drawn."""
    alpha = ((excess - 1) / 3).clip(0, opacity)
    return axes.imshow(excess, cmap="autumn_r", vmin=0, vmax=MAX_EXCESS, alpha=alpha)


def balance_figure(found: Balance) -> Figure:
    """The mean time score over the clock."""
    figure = Figure(figsize=(7, 3.5), layout="constrained")
    axes = figure.subplots()
    axes.errorbar(found.shares, found.mean, yerr=found.stderr, marker="o", capsize=3)
    axes.axhline(0, color="grey", lw=1)
    axes.set(xlabel="share of the clock", ylabel="E[s] per dim and unit of the clock (nats)")
    return figure

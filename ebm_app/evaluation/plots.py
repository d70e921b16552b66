"""Plots of anomaly maps, differences of images, and the mean time score of the self-test."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from torch import Tensor

from ebm_app.evaluation.selftest import Balance

SIZE, DPI = (5.2, 3.8), 130
#: Upper end of the colour scale of anomaly maps
MAX_EXCESS = 6
#: Grey that is legible on light and on dark pages
TEXT_COLOUR = "#7a7a7a"
EXCESS_LABEL = "excess (nine in ten ordinary images: below 1)"


def plot_over(image: Tensor, excess: np.ndarray) -> Figure:
    """Plot an anomaly map (H, W) over its image (C, H, W) in [0, 1], on a transparent
    background."""
    figure = Figure(figsize=SIZE, dpi=DPI, layout="constrained", facecolor="none")
    axes = figure.subplots()
    draw_image(axes, image)
    overlay = overlay_excess(axes, excess)
    bar = figure.colorbar(overlay, ax=axes, location="bottom", extend="max")
    bar.set_label(EXCESS_LABEL, color=TEXT_COLOUR)
    bar.ax.tick_params(colors=TEXT_COLOUR)
    return figure


def plot_difference(a: Tensor, b: Tensor) -> Figure:
    """Plot two images (C, H, W) in [0, 1] and where the second one is lighter (red) or darker
    (blue), on a transparent background."""
    figure = Figure(figsize=(SIZE[0], 2.1), dpi=DPI, layout="constrained", facecolor="none")
    first, second, third = figure.subplots(1, 3)
    draw_image(first, a)
    draw_image(second, b)
    third.imshow((b - a).mean(0).numpy(), cmap="RdBu_r", vmin=-1, vmax=1)
    for axes, title in ((first, "A"), (second, "B"), (third, "B − A")):
        axes.set(xticks=[], yticks=[])
        axes.set_title(title, color=TEXT_COLOUR)
    return figure


def draw_image(axes: Axes, image: Tensor) -> None:
    """Draw an image (C, H, W) in [0, 1] in grey, without ticks."""
    axes.imshow(image.mean(0).numpy(), cmap="gray", vmin=0, vmax=1)
    axes.set(xticks=[], yticks=[])


def overlay_excess(axes: Axes, excess: np.ndarray) -> AxesImage:
    """Draw a map (H, W) over an image where it is at least 1."""
    visible = np.ma.masked_less(excess, 1)
    return axes.imshow(visible, cmap="autumn_r", vmin=1, vmax=MAX_EXCESS)


def balance_figure(balance: Balance) -> Figure:
    """Plot the mean time score against the share of the path's arc length."""
    figure = Figure(figsize=(7, 3.5), layout="constrained")
    axes = figure.subplots()
    axes.errorbar(balance.shares, balance.mean, yerr=balance.stderr, marker="o", capsize=3)
    axes.axhline(0, color="grey", lw=1)
    axes.set(
        xlabel="share of the arc length",
        ylabel="mean time score\n(nats per dim per arc length)",
    )
    return figure

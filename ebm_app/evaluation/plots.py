"""Plots of anomaly maps."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from torch import Tensor

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


def draw_image(axes: Axes, image: Tensor) -> None:
    """Draw an image (C, H, W) in [0, 1] in grey, without ticks."""
    axes.imshow(image.mean(0).numpy(), cmap="gray", vmin=0, vmax=1)
    axes.set(xticks=[], yticks=[])


def overlay_excess(axes: Axes, excess: np.ndarray) -> AxesImage:
    """Draw a map (H, W) over an image where it is at least 1."""
    visible = np.ma.masked_less(excess, 1)
    return axes.imshow(visible, cmap="autumn_r", vmin=1, vmax=MAX_EXCESS)

"""Plots of anomaly maps."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from torch import Tensor

SIZE, DPI = (5.2, 3.8), 130
#: Excess up to which a map is transparent, in standard deviations
THRESHOLD = 1.0
#: Upper end of the colour scale, as a multiple of the threshold
MAX_EXCESS = 6
#: Grey that is legible on light and on dark pages
TEXT_COLOUR = "#7a7a7a"
EXCESS_LABEL = "standard deviations above ordinary images"


def plot_over(
    image: Tensor, excess: np.ndarray, others: Sequence[Tensor], threshold: float = THRESHOLD
) -> Figure:
    """Plot an anomaly map over its image, next to the nearest held-out images, on a transparent
    background.

    Args:
        image: (C, H, W) in [0, 1].
        excess: the map (H, W), in standard deviations above ordinary images.
        others: the nearest held-out images, each (C, H, W) in [0, 1].
        threshold: excess up to which the map is transparent.
    """
    figure = Figure(figsize=SIZE, dpi=DPI, layout="constrained", facecolor="none")
    grid = figure.add_gridspec(len(others), 4)
    for row, other in enumerate(others):
        draw_image(figure.add_subplot(grid[row, 3]), other)
    figure.axes[0].set_title("nearest held-out", fontsize="small", color=TEXT_COLOUR)
    axes = figure.add_subplot(grid[:, :3])
    draw_image(axes, image)
    overlay = overlay_excess(axes, excess, threshold)
    bar = figure.colorbar(overlay, ax=axes, location="bottom", extend="max")
    bar.set_label(EXCESS_LABEL, color=TEXT_COLOUR)
    bar.ax.tick_params(colors=TEXT_COLOUR)
    return figure


def draw_image(axes: Axes, image: Tensor) -> None:
    """Draw an image (C, H, W) in [0, 1] in grey, without ticks."""
    axes.imshow(image.mean(0).numpy(), cmap="gray", vmin=0, vmax=1)
    axes.set(xticks=[], yticks=[])


def overlay_excess(axes: Axes, excess: np.ndarray, threshold: float = THRESHOLD) -> AxesImage:
    """Draw a map (H, W) over an image where it exceeds ``threshold``."""
    visible = np.ma.masked_less(excess, threshold)
    return axes.imshow(visible, cmap="autumn_r", vmin=threshold, vmax=MAX_EXCESS * threshold)

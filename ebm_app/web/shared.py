"""What the tabs share: seeds, exact pixels, plots that appear when they are drawn, and the mean of
a log-likelihood over dequantisation draws."""

from collections.abc import Callable
from typing import Any, NamedTuple

import gradio as gr
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from ebm_app.data.png import grid_of, to_picture
from ebm_app.image_models.ebm import EBM
from ebm_app.likelihood import ESTIMATORS
from ebm_app.likelihood.bits import Likelihood, to_bits_per_dim
from ebm_app.numerics.tensors import standard_error

MAX_SEED = 2**31 - 1
Load = Callable[[str], EBM]


class MeanLikelihood(NamedTuple):
    """Log-likelihood of one image with its standard error, in nats; the same in bits per dim."""

    log_prob: float
    log_prob_error: float
    bits_per_dim: float
    bits_error: float

    def rounded(self) -> list[float]:
        """The four numbers, as a table shows them."""
        return [round(value, digits) for value, digits in zip(self, (2, 2, 4, 4), strict=True)]


def mean_of(draws: Likelihood, estimator: str, num_dims: int) -> MeanLikelihood:
    """The mean log-likelihood of one image over K >= 2 draws, with an error that holds their
    spread and what the estimator itself is off by.

    Args:
        draws: by an estimator of that name.
    """
    error = standard_error(draws.log_prob)
    if not ESTIMATORS[estimator].error_is_drawn:  # all draws share it: not in their spread
        error = error.hypot(draws.error.double().square().mean().sqrt())
    nats = draws.log_prob.mean(), error
    bits, bits_error = (to_bits_per_dim(value, num_dims).item() for value in nats)
    return MeanLikelihood(nats[0].item(), nats[1].item(), bits, -bits_error)


def render(images: Tensor, min_pixels: int = 480) -> Image.Image:
    """Images (B, C, H, W) in [0, 1] as one picture; every pixel is repeated, none is blended."""
    return to_picture(grid_of(images, min_pixels))


def slider(low: int, high: int, value: int, label: str, **more: Any) -> gr.Slider:
    """The choice of a whole number."""
    return gr.Slider(low, high, value=value, step=1, label=label, **more)


def picture(label: str, alt_text: str, height: int | str, **more: Any) -> gr.Image:
    """An image to look at and to download, whose pixels stay sharp."""
    more = {"buttons": ["download"], "format": "png", **more}
    shown = {"alt_text": alt_text, "height": height, "elem_classes": "pixels"}
    return gr.Image(label=label, interactive=False, **shown, **more)


def hidden_plot(label: str) -> gr.Plot:
    """A plot that takes no room until there is a figure."""
    return gr.Plot(label=label, format="png", visible=False)


def show(figure: Figure | None) -> dict[str, Any]:
    """A figure in its plot; without one the plot takes no room."""
    return gr.update(value=figure, visible=figure is not None)

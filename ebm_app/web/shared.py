"""What the tabs share: ranges of arguments, components, exact pixels, and the mean of a
log-likelihood over dequantisation draws."""

from typing import Annotated, Any

import gradio as gr
from annotated_types import Ge, Le
from PIL import Image
from torch import Tensor

from ebm_app.data.pictures import image_grid, to_pil
from ebm_app.likelihood import ESTIMATORS
from ebm_app.likelihood.bits import Likelihood, to_bits_per_dim
from ebm_app.utils.tensors import standard_error

MAX_SEED = 2**31 - 1
Seed = Annotated[int, Ge(0), Le(MAX_SEED)]


def mean_of(draws: Likelihood, estimator: str, num_dims: int) -> dict[str, float]:
    """The mean log-likelihood of one image over K >= 2 draws in nats, with an error that holds
    their spread and what the estimator itself is off by; and both in bits per dim."""
    error = standard_error(draws.log_prob)
    if not ESTIMATORS[estimator].error_is_drawn:  # all draws share it: not in their spread
        error = error.hypot(draws.error.double().square().mean().sqrt())
    nats = draws.log_prob.mean()
    return {
        "log_prob": nats.item(),
        "log_prob_error": error.item(),
        "bits_per_dim": to_bits_per_dim(nats, num_dims).item(),
        "bits_error": -to_bits_per_dim(error, num_dims).item(),
    }


def in_a_row(mean: dict[str, float]) -> list[float]:
    """``mean_of`` in a table: nats, their error, and bits per dim, rounded."""
    return [round(value, digits) for value, digits in zip(mean.values(), (2, 2, 4), strict=False)]


def render(images: Tensor, min_pixels: int = 480) -> Image.Image:
    """Images (B, C, H, W) in [0, 1] as one picture; every pixel is repeated, none is blended."""
    return to_pil(image_grid(images, min_pixels))


def progress(step: int, total: int) -> str:
    """The steps of a run, as its text begins."""
    return f"Step {step} of {total}"


def slider(low: int, high: int, value: int, label: str, **more: Any) -> gr.Slider:
    """The choice of a whole number."""
    return gr.Slider(low, high, value=value, step=1, label=label, **more)


def seed_box(seed: int) -> gr.Number:
    """The choice of a seed, with the one to begin with."""
    return gr.Number(seed, label="Seed", precision=0, minimum=0, maximum=MAX_SEED)


def picture(label: str, alt_text: str, height: int | str, **more: Any) -> gr.Image:
    """An image to look at and to download, whose pixels stay sharp."""
    more = {"buttons": ["download"], "format": "png", **more}
    shown = {"alt_text": alt_text, "height": height, "elem_classes": "pixels"}
    return gr.Image(label=label, interactive=False, **shown, **more)


def text_box(label: str, lines: int = 1, placeholder: str = "Not run yet") -> gr.Textbox:
    """A text that the page writes."""
    return gr.Textbox(label=label, interactive=False, lines=lines, placeholder=placeholder)


def plot_box(label: str, **more: Any) -> gr.Plot:
    """A plot with exact pixels."""
    return gr.Plot(label=label, format="png", **more)


def metrics_box() -> gr.JSON:
    """The metrics of a run, folded away."""
    with gr.Accordion("Metrics", open=False):
        return gr.JSON(label="Metrics", show_label=False)


def table_box(label: str, columns: dict[str, int], texts: tuple[str, ...] = ()) -> gr.Dataframe:
    """A table, of widths in pixels by heading; all but the columns ``texts`` hold numbers."""
    return gr.Dataframe(
        headers=list(columns),
        datatype=["str" if name in texts else "number" for name in columns],
        column_widths=[f"{width}px" for width in columns.values()],
        interactive=False,
        label=label,
        type="array",
        wrap=True,
    )

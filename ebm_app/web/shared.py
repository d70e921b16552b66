"""Components and argument ranges that the tabs share."""

from typing import Annotated, Any

import gradio as gr
from annotated_types import Ge, Le
from PIL import Image
from torch import Tensor

from ebm_app.data.pictures import image_grid, to_pil

MAX_SEED = 2**31 - 1
Seed = Annotated[int, Ge(0), Le(MAX_SEED)]


def render(images: Tensor, min_pixels: int = 480) -> Image.Image:
    """Return images (B, C, H, W) in [0, 1] as a grid, enlarged by repeating pixels."""
    return to_pil(image_grid(images, min_pixels))


def progress(step: int, total: int) -> str:
    """Return the progress of a run as text."""
    return f"Step {step} of {total}"


def slider(low: int, high: int, value: int, label: str, **options: Any) -> gr.Slider:
    """Slider for an integer."""
    return gr.Slider(low, high, value=value, step=1, label=label, **options)


def seed_box(seed: int) -> gr.Number:
    """Number box for a seed."""
    return gr.Number(seed, label="Seed", precision=0, minimum=0, maximum=MAX_SEED)


def picture(label: str, alt_text: str, height: int | str, **options: Any) -> gr.Image:
    """Image output with a download button and sharp pixels."""
    options = {"buttons": ["download"], "format": "png", **options}
    return gr.Image(
        label=label,
        alt_text=alt_text,
        height=height,
        interactive=False,
        elem_classes="pixels",
        **options,
    )


def text_box(label: str, lines: int = 1, placeholder: str = "Not run yet") -> gr.Textbox:
    """Text output."""
    return gr.Textbox(label=label, interactive=False, lines=lines, placeholder=placeholder)


def plot_box(label: str, **options: Any) -> gr.Plot:
    """Plot output, in lossless PNG."""
    return gr.Plot(label=label, format="png", **options)


def metrics_box() -> gr.JSON:
    """Collapsed JSON output for the metrics of a run."""
    with gr.Accordion("Metrics", open=False):
        return gr.JSON(label="Metrics", show_label=False)

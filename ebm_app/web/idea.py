"""Section of the Score tab: log p(x) of the image as a running integral of the time score."""

from typing import Any

import gradio as gr
import matplotlib as mpl
import numpy as np
from gradio.events import Dependency
from PIL import Image
from torch import Tensor

from ebm_app.data.pictures import to_pil
from ebm_app.evaluation.trace import NUM_TIMES, Trace, plot_trace, trace

from .models import Models
from .shared import AT_ONCE, QUEUES, picture, plot_box, render, share_slider

#: Side of the pictures in pixels
SIDE = 256
HINT = (
    "log p(x) is the log density of noise plus the integral of the *time score* ∂ log pₜ(x) / ∂t, "
    "which the network learns. Left: the time score. Right: the integral up to t. The answer uses "
    "the Stein score of the same network: its bound holds for any network, the integral only for "
    "exact time scores. The slider shows the image with the noise of time t, and how much each "
    "pixel adds there."
)


def show_time(traced: Trace | None, share: float) -> tuple[Image.Image | None, ...]:
    """Return the noised image and the map of the terms at a share of the path in [0, 1]."""
    if traced is None:
        return None, None
    index = round(share * (NUM_TIMES - 1))
    noised = render(traced.frames[index : index + 1], SIDE)
    if traced.terms is None:
        return noised, None
    terms = traced.terms[index]
    colours = mpl.colormaps["RdBu"](0.5 + 0.5 * terms / (abs(terms).max() + 1e-9))
    pixels = (255 * colours[..., :3]).round().astype(np.uint8)
    return noised, to_pil(pixels).resize(noised.size, Image.Resampling.NEAREST)


def build(
    models: Models, model: gr.Dropdown, events: list[Dependency], image: gr.State
) -> list[gr.Component]:
    """Add the section below the score, and return its outputs, which are computed after each of
    the ``events``."""
    with gr.Accordion("Second estimate: the integral of the time score", open=True):
        gr.Markdown(HINT)
        with gr.Row():
            with gr.Column(scale=3, min_width=320):
                plot = plot_box(label="Time score and running integral")
            with gr.Column(scale=2, min_width=280):
                share = share_slider(label="From noise (0) to the image (1)")
                with gr.Row():
                    noised = picture("Noised image", "The image with noise", 200)
                    terms = picture("Terms per pixel", "What each pixel adds: blue more", 200)
    traced = gr.State()

    def show(name: str, pixels: Tensor | None, place: float) -> tuple[Any, ...]:
        along = None if pixels is None else trace(models.load(name), pixels)
        plotted = along and plot_trace(along)
        return along, plotted, *show_time(along, place)

    outputs = [traced, plot, noised, terms]
    for event in events:
        options = {**QUEUES["score"], "show_progress": "hidden", "api_visibility": "private"}
        event.success(show, [model, image, share], outputs, **options)
    share.change(show_time, [traced, share], [noised, terms], **AT_ONCE)
    return outputs

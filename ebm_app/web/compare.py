"""Section of the Score tab: compare two images, and morph one into the other."""

from collections.abc import Iterator
from functools import partial
from math import hypot
from typing import Any, NamedTuple

import gradio as gr
import torch
from gradio.events import Dependency
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from ebm_app.evaluation.plots import plot_difference
from ebm_app.morphing import iterate_morph
from ebm_app.utils.errors import UserError

from . import shared
from .models import Models

#: Min width of an image of a morph in pixels
SIDE = 128
HINT = (
    "Keep an image as A, then score another one, B. The morph maps both to noise by the "
    "probability flow, and images between the two noises back."
)
NO_SCORE = "There is no scored image to keep. Draw or upload an image, and wait for its bits."
NO_PAIR = "A morph needs two images. Keep one as A, then score another one."


class Scored(NamedTuple):
    """An image (1, C, H, W) in [0, 1] and the metrics of its score."""

    image: Tensor
    metrics: dict[str, Any]


def keep(image: Tensor | None, metrics: dict[str, Any] | None) -> tuple[Scored, str, None]:
    """Return the image to compare with, a text, and no figure."""
    if image is None or not metrics:
        raise UserError(NO_SCORE)
    return Scored(image, metrics), f"A: {summary(metrics)}", None


def summary(metrics: dict[str, Any]) -> str:
    """Return the bits and the verdict of an image as text."""
    return "{bits_per_dim:.3f} ± {bits_error:.3f} bits per dim. {answer}".format_map(metrics)


def compare(
    kept: Scored | None, image: Tensor | None, metrics: dict[str, Any] | None
) -> tuple[str | dict[str, Any], Figure | None]:
    """Compare an image, B, with the kept one, A. Return a text and a map of the difference."""
    if kept is None or image is None or not metrics:
        return gr.skip(), None
    bits = metrics["bits_per_dim"] - kept.metrics["bits_per_dim"]
    error = hypot(metrics["bits_error"], kept.metrics["bits_error"])
    nats = abs(metrics["log_prob"] - kept.metrics["log_prob"])
    more, likely = ("more", "A") if bits > 0 else ("less", "B")
    text = (
        f"B takes {abs(bits):.3f} ± {error:.3f} bits per dim {more} than A: {likely} is more "
        f"likely, by {nats:.1f} nats.\nA: {summary(kept.metrics)}\nB: {summary(metrics)}"
    )
    return text, plot_difference(kept.image[0], image[0])


def morph(
    model: str, kept: Scored | None, image: Tensor | None, *, models: Models
) -> Iterator[list[tuple[Image.Image, str]]]:
    """Yield images between the kept image and another one, with their share as captions."""
    if kept is None or image is None:
        raise UserError(NO_PAIR)
    ebm = models.load(model)
    for frame in shared.at_intervals(iterate_morph(ebm, torch.cat([kept.image, image]))):
        images = [shared.render(image, SIDE) for image in ebm.to_images(frame.x).split(1)]
        shares = [f"{index / (len(images) - 1):.0%}" for index in range(1, len(images) - 1)]
        yield [*zip(images, ["A", *shares, "B"], strict=True)]


def build(
    models: Models,
    model: gr.Dropdown,
    events: list[Dependency],
    image: gr.State,
    metrics: gr.JSON,
) -> None:
    """Add the section below the score. Images are compared after each of the ``events``."""
    with gr.Accordion("Compare two images", open=False):
        gr.Markdown(HINT)
        with gr.Row():
            keeper, starter = gr.Button("Keep as A"), gr.Button("Morph A into B")
        text = shared.text_box(label="Comparison", lines=3, placeholder="No image is kept")
        plot = shared.plot_box(
            label="A, B and their difference", elem_classes=["hide-empty", "photos"]
        )
        images = shared.gallery(label="Morph")
    kept = gr.State()
    keeper.click(keep, [image, metrics], [kept, text, plot], **shared.AT_ONCE | {"queue": True})
    for event in events:
        event.success(compare, [kept, image, metrics], [text, plot], **shared.AT_ONCE)
    options = {"api_visibility": "private", **shared.QUEUES["sample"]}
    run = starter.click(partial(morph, models=models), [model, kept, image], images, **options)
    shared.clear_on([model.input], [run], [kept, text, plot, images])

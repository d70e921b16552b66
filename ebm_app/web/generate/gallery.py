"""The images of a run one by one, each with its log-likelihood, and the way of one of them to
another tab."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import gradio as gr
from PIL import Image

from ebm_app.io.errors import UserError

from ..runs import AT_ONCE, explained
from ..shared import render
from .run import ImageLikelihood, SampleRun

MIN_PIXELS = 220
#: what an image is sorted by: its number from 1 on, and its log-likelihood where it has one
Order = Callable[[int, ImageLikelihood | None], float]
ORDERS: dict[str, Order] = {
    "as drawn": lambda number, found: number,
    "most likely first": lambda number, found: -found.log_prob if found else math.inf,
    "least likely first": lambda number, found: found.log_prob if found else math.inf,
}


def tiles(run: SampleRun, order: str) -> list[tuple[Image.Image, str]]:
    """The images of a run with their captions, in one of ``ORDERS``; those that have no
    log-likelihood come last where it decides."""
    found = {one.number: one for one in run.likelihoods or ()}
    captions = {
        one.number: f"{one.number}: {one.log_prob:.1f} ± {one.error:.1f} nats"
        for one in found.values()
    }
    numbers = range(1, len(run.images) + 1)
    return [
        (render(run.images[number - 1 : number], MIN_PIXELS), captions.get(number, f"{number}"))
        for number in sorted(numbers, key=lambda number: ORDERS[order](number, found.get(number)))
    ]


def image_tiles(label: str, size: str = "tiles", **more: Any) -> gr.Gallery:
    """Images side by side, enlarged and sharp, that can be clicked on."""
    return gr.Gallery(
        label=label,
        format="png",  # exact pixels
        height="auto",
        object_fit="contain",
        allow_preview=False,
        interactive=False,
        buttons=[],
        elem_classes=[size, "pixels"],
        **more,
    )


def add_gallery() -> tuple[gr.Gallery, gr.Radio]:
    """The images of a run, and their order."""
    orders = list(ORDERS)
    order = gr.Radio(orders, value=orders[0], label="Order of the images", visible=False)
    # a label would cover the first of them
    return image_tiles("The images, one by one", show_label=False, visible=False), order


def show(run: SampleRun | None, order: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Updates of the gallery and of its order, which is offered with log-likelihoods, to a run;
    None for a run without a step."""
    is_sorted = bool(run and run.likelihoods)
    pictures = tiles(run, order) if run else None
    return gr.update(value=pictures, visible=bool(run)), gr.update(visible=is_sorted)


def send_on_click(
    shown: gr.Gallery, target: gr.Image, tabs: Mapping[gr.Tabs, str]
) -> Callable[..., Any]:
    """Let a click on an image hand it to an upload and open the tabs where that is; the click.

    Args:
        target: what takes the image. tabs: what is to be opened, by the rows of tabs.
    """

    @explained
    def send(pictures: list[tuple[str, str | None]] | None, event: gr.SelectData) -> list[Any]:
        if not pictures or event.index not in range(len(pictures)):
            raise UserError("this image is no longer there: draw images and click on one")
        return [pictures[event.index][0], *(gr.update(selected=tab) for tab in tabs.values())]

    shown.select(send, shown, [target, *tabs], **AT_ONCE)
    return shown.select

"""The images of a run one by one, each with its log-likelihood, and the way of one of them to
another tab."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import gradio as gr
from PIL import Image

from ebm_app.io.errors import UserError

from ..buttons import AT_ONCE
from ..explanations import explained
from ..shared import render
from .likelihoods import ImageLikelihood
from .run import SampleRun

MIN_PIXELS = 220
#: as many columns as have room, on a telephone two, and as many rows as there are
STYLE = f"""<style>
.tiles .grid-wrap {{ min-height: 0 !important; max-height: none !important; }}
.tiles .grid-container {{
  grid-template-columns: repeat(auto-fill, minmax(min({MIN_PIXELS}px, 40%), 1fr)) !important;
}}
</style>"""

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
    found = {likelihood.number: likelihood for likelihood in run.likelihoods}
    numbers = range(1, len(run.images) + 1)
    return [
        (render(run.images[number - 1 : number], MIN_PIXELS), caption(number, found.get(number)))
        for number in sorted(numbers, key=lambda number: ORDERS[order](number, found.get(number)))
    ]


def caption(number: int, found: ImageLikelihood | None) -> str:
    """An image's number, and its log-likelihood where it has one."""
    if found is None:
        return f"{number}"
    return f"{number}: {found.log_prob:.1f} ± {found.error:.1f} nats"


def gallery() -> tuple[gr.Gallery, gr.Radio]:
    """The components: the images, and their order, which is offered with log-likelihoods."""
    order = gr.Radio(list(ORDERS), value="as drawn", label="Order of the images", visible=False)
    gr.HTML(STYLE, visible="hidden")
    shown = gr.Gallery(
        label="The images, one by one",
        show_label=False,  # it would cover the first of them
        format="png",  # exact pixels
        height="auto",
        object_fit="contain",
        allow_preview=False,
        interactive=False,
        buttons=[],
        visible=False,
        elem_classes=["tiles", "pixels"],
    )
    return shown, order


def show(run: SampleRun | None, order: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Updates of the gallery and of its order to a run; None for a run without a step."""
    if run is None:
        return hide()
    pictures = gr.update(value=tiles(run, order), visible=True)
    return pictures, gr.update(visible=bool(run.likelihoods))


def hide() -> tuple[dict[str, Any], dict[str, Any]]:
    """Updates that empty the gallery."""
    return gr.update(value=None, visible=False), gr.update(visible=False)


def send_on_click(shown: gr.Gallery, target: gr.Image, tabs: Mapping[gr.Tabs, str]) -> None:
    """Let a click on an image hand it to another tab and open that.

    Args:
        target: what takes the image. tabs: what is to be opened, by the rows of tabs.
    """

    @explained
    def send(pictures: list[tuple[str, str]] | None, event: gr.SelectData) -> tuple[Any, ...]:
        if not pictures or event.index not in range(len(pictures)):
            raise UserError("this image is no longer there: draw images and click on one")
        return pictures[event.index][0], *(gr.update(selected=tab) for tab in tabs.values())

    shown.select(send, shown, [target, *tabs], **AT_ONCE)

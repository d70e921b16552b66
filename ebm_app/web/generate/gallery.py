"""The images of a run one by one, each with its log-likelihood, and the way of one of them to
another tab."""

from collections.abc import Callable, Mapping
from typing import Any

import gradio as gr
from PIL import Image

from ebm_app.io.errors import UserError

from ..runs import AT_ONCE, explained
from ..shared import render
from .run import SampleRun

MIN_PIXELS = 220


def tiles(run: SampleRun) -> list[tuple[Image.Image, str]]:
    """The images of a run with their captions."""
    captions = [f"{number}" for number in range(1, len(run.images) + 1)]
    for index, found in enumerate(run.likelihoods):
        captions[index] += f": {found.log_prob:.1f} ± {found.log_prob_error:.1f} nats"
    pictures = [render(image, MIN_PIXELS) for image in run.images.split(1)]
    return list(zip(pictures, captions, strict=True))


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

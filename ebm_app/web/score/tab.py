"""The tab that finds the log-likelihood of images."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import gradio as gr

from ebm_app.io.errors import UserError

from ..buttons import AT_ONCE, empty_by, empty_own_by, start_by, stop_by
from ..device import QUICK
from ..explanations import explained
from ..models import Models
from ..shared import Load, picture, slider
from ..training import metrics_box
from . import estimators, many_images
from .canvas import NO_COLOUR, canvas, prepared
from .examples import add_examples
from .held_out import HeldOutImages
from .one_image import ShownLikelihood, find_likelihood, stopped
from .report import CAVEAT, WORDS
from .uploads import ACCEPTED, leave_unread, preparation, read_upload

#: the tab of the upload
UPLOAD = "upload"
MAX_REPEATS = 64
REPEATS = "draws of the dequantisation noise: more of them, less uncertainty"
HINT = f"The log-likelihood of the image appears here. {CAVEAT}"


def drawing_offer(load: Load, model: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Updates that show either the canvas or, for a model of colour images, why there is none."""
    try:
        grey = load(model).config.image_shape[0] == 1
    except UserError:  # such a model is explained when it is used
        grey = True
    return gr.update(visible=grey), gr.update(visible=not grey)


def build(
    models: Models, model: gr.Dropdown, drawn: gr.Gallery, seed: int
) -> tuple[gr.Image, gr.Tabs]:
    """Put the tab on the page, with its endpoints /score, /score_drawing, /score_many and
    /estimators; the upload, and the tabs of which ``UPLOAD`` shows it.

    Args:
        model: the page's choice of a model. drawn: images that are sent here when they are chosen.
        seed: of the noise.
    """
    load, held_out = models.load, HeldOutImages(models.data_root, models.folders)
    with gr.Row():
        with gr.Column():
            with gr.Tabs() as ways, gr.Tab("Draw"):
                drawing, start_drawing = add_canvas(load, model)
            with ways, gr.Tab("Upload", id=UPLOAD):
                upload, examples, invert, frame, start_upload = add_upload(models, model, held_out)
            repeats = slider(2, MAX_REPEATS, 16, "Repeats", info=REPEATS)
            stop = gr.Button("Stop")
        with gr.Column():
            seen, text, place = add_results()
    with gr.Row():
        histogram = gr.Plot(label="Place among held-out images, drawn", format="png")
        shares = gr.Plot(label="Shares of the pixels", format="png")
    shown = ShownLikelihood(seen, text, shares, place, histogram, metrics_box())
    with gr.Accordion("What the words mean", open=False):
        gr.Markdown(WORDS)
    with gr.Accordion("Other estimators of the same log-likelihood", open=False):
        estimators.build(load, model, shown.seen, shown.text, seed)
    with gr.Accordion("Many files", open=False):
        many_images.build(load, model, repeats, held_out, seed)

    @explained
    def run(
        model: str, image: str | None, repeats: int, invert: bool = False, frame: bool = False
    ) -> Iterator[ShownLikelihood]:
        """The log-likelihood of an image file, which may be inverted and whose digit may be framed
        first; returns the image as the model sees it, the log-likelihood as text, a map of the
        pixels' shares, the place among held-out images as text and drawn, and the numbers."""
        source = partial(read_upload, image, invert=invert, frame=frame)
        yield from find_likelihood(load, model, source, repeats, held_out, seed)

    @explained
    def run_drawing(
        model: str, drawing: dict[str, Any], repeats: int
    ) -> Iterator[ShownLikelihood]:
        """The log-likelihood of a drawing, light strokes on a dark ground; returns what /score
        does."""
        source = partial(prepared, drawing)
        yield from find_likelihood(load, model, source, repeats, held_out, seed)

    starts = [
        (start_upload, run, [model, upload, repeats, invert, frame], "score"),
        (start_drawing, run_drawing, [model, drawing, repeats], "score_drawing"),
    ]
    events = [
        start_by(start.click, run, inputs, list(shown), QUICK, api_name=name)
        for start, run, inputs, name in starts
    ]
    stop_by(stop, events, stopped, [shown.text, shown.place])
    # what a visitor does, and not the changes that follow: they may come after the next press
    acts = [upload.upload, upload.clear, *(row.click for row in examples), drawn.select]
    acts += [invert.input, frame.input, model.change]
    empty_by(acts, events, list(shown))
    empty_own_by(drawing.input, start_drawing, [start_upload], events[1], list(shown))
    return upload, ways


def add_canvas(load: Load, model: gr.Dropdown) -> tuple[gr.ImageEditor, gr.Button]:
    """The canvas with its button, or for a model of colour images the reason why there is none."""
    with gr.Column() as offered:
        drawing = canvas()
        start = gr.Button("Log-likelihood of the drawing", variant="primary")
    refused = gr.Markdown(f"{NO_COLOUR.capitalize()}.", visible=False)
    gr.on(  # without a trigger: when the page opens, and when another model is chosen
        None, partial(drawing_offer, load), model, [offered, refused], **AT_ONCE
    )
    return drawing, start


def add_upload(
    models: Models, model: gr.Dropdown, held_out: HeldOutImages
) -> tuple[gr.Image, list[gr.Dataset], gr.Checkbox, gr.Checkbox, gr.Button]:
    """The upload, rows of examples for it, what may be done to it, and its button."""
    upload = gr.Image(
        label="Image",
        type="filepath",
        image_mode=None,
        sources=["upload", "clipboard"],
        height=300,
        alt_text="The image that was uploaded",
        elem_classes="pixels",
    )
    leave_unread(upload)
    gr.Markdown(ACCEPTED)
    examples = add_examples(upload, model, models, held_out)
    invert, frame = preparation()
    start = gr.Button("Log-likelihood of the image", variant="primary")
    return upload, examples, invert, frame, start


def add_results() -> tuple[gr.Image, gr.Textbox, gr.Textbox]:
    """What shows the image as the model sees it, its log-likelihood and its place."""
    after = "The image after resizing and rounding to the levels of the model"
    seen = picture("As the model sees it", after, 300, type="filepath")
    leave_unread(seen)
    text = gr.Textbox(label="Log-likelihood", interactive=False, lines=9, placeholder=HINT)
    place = gr.Textbox(label="Place among held-out images", interactive=False, lines=3)
    return seen, text, place

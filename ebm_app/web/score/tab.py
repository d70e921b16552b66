"""The tab that says whether images are ordinary."""

from collections.abc import Callable
from typing import Any

import gradio as gr

from ebm_app.evaluation.examples import examples
from ebm_app.evaluation.plots import OPACITY, plot_over

from ..models import Models
from ..runs import AT_ONCE, empty_by, start_by
from ..shared import metrics_box, picture, plot_box, slider, text_box
from . import many_images
from .one_image import MAX_REPEATS, ShownLikelihood, score, score_drawing
from .uploads import WHITE, black_canvas, preparation

#: the tab of the upload
UPLOAD = "upload"
ACCEPTED = "PNG, JPEG, WebP, BMP or TIFF with 8 bits per channel and one frame."


def build(models: Models, model: gr.Dropdown, seed: int) -> tuple[gr.Image, gr.Tabs]:
    """Put the tab on the page, with its endpoints /score, /score_drawing and
    /score_many; the upload, and the tabs of which ``UPLOAD`` shows it."""
    with gr.Row():
        with gr.Column():
            with gr.Tabs() as ways, gr.Tab("Draw"):
                drawing = black_canvas("Drawing", "L", [WHITE])
                start_drawing = gr.Button("Is the drawing ordinary?", variant="primary")
            with ways, gr.Tab("Upload", id=UPLOAD):
                upload = gr.Image(
                    label="Image",
                    type="filepath",
                    image_mode=None,
                    sources=["upload", "clipboard"],
                    height=300,
                    alt_text="The image that was uploaded",
                    elem_classes="pixels",
                )
                start_upload = gr.Button("Is the image ordinary?", variant="primary")
                chosen = add_examples(upload, model, models)
                as_it_is = preparation()
                gr.Markdown(ACCEPTED)
            stop = gr.Button("Stop", interactive=False)
        with gr.Column():
            text = text_box("Answer", 3, "Draw or upload an image, and press the button.")
            after = "The image after resizing and rounding to the levels of the model"
            seen = picture("As the model sees it", after, 300)
            classes = gr.Label(label="Class", num_top_classes=3, visible=False)
            where, compared = plot_box("Where it is odd"), gr.State()
            opacity = gr.Slider(0, 1, OPACITY, step=0.1, label="Opacity of the map")
    with gr.Accordion("Details", open=False):
        info = "draws of the dequantisation noise: more of them, less uncertainty"
        repeats = slider(2, MAX_REPEATS, 16, "Repeats", info=info)
        details = text_box("Log-likelihood", 7)
        metrics = metrics_box()
    shown = list(ShownLikelihood(seen, text, where, details, classes, metrics, compared))

    def at_opacity(parts: Any, opacity: float) -> Any:
        return plot_over(*parts, opacity) if parts else gr.skip()

    opacity.release(at_opacity, [compared, opacity], where, **AT_ONCE)
    starts = [start_upload.click, start_drawing.click]
    gr.on(starts, lambda: OPACITY, None, opacity, **AT_ONCE)

    def has_classes(name: str) -> dict[str, Any]:
        return gr.update(visible=models.load(name).config.num_classes > 0)

    gr.on(None, has_classes, model, classes, **AT_ONCE)
    with gr.Accordion("Many files", open=False):
        many_images.build(models, model, repeats, seed)

    given = {"models": models, "seed": seed}
    events = [
        start_by([start, stop, other], run, inputs, shown, given, "quick")
        for start, other, run, inputs in (
            (start_upload, start_drawing, score, [model, upload, repeats, as_it_is]),
            (start_drawing, start_upload, score_drawing, [model, drawing, repeats]),
        )
    ]
    # what a visitor does, and not the changes that follow: they may come after the next press
    acts = [upload.upload, upload.clear, chosen, as_it_is.input]
    empty_by([*acts, model.change], events, shown)
    return upload, ways


def add_examples(upload: gr.Image, model: gr.Dropdown, models: Models) -> Callable[..., Any]:
    """Held-out images to try, of the data of the model that is chosen; the click on one."""
    row = gr.Gallery(
        label="Held-out images of the model's data: click on one to take it",
        format="png",  # exact pixels
        height="auto",
        object_fit="contain",
        allow_preview=False,
        interactive=False,
        buttons=[],
        elem_classes=["small", "pixels"],
        visible=False,
    )

    def offer(name: str) -> dict[str, Any]:
        pictures = examples(models.folder(name), models.data_root)
        return gr.update(value=pictures, visible=bool(pictures))

    def take(pictures: list[tuple[str, str | None]] | None, event: gr.SelectData) -> Any:
        is_there = pictures and event.index in range(len(pictures))
        return pictures[event.index][0] if is_there else gr.skip()

    gr.on(None, offer, model, row, **AT_ONCE)
    row.select(take, row, upload, **AT_ONCE)
    return row.select

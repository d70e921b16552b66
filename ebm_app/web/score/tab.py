"""The tab that finds the log-likelihood of images."""

from collections.abc import Callable
from typing import Any

import gradio as gr

from ebm_app.evaluation.held_out_likelihoods import examples

from ..generate.gallery import image_tiles, send_on_click
from ..models import Models
from ..runs import AT_ONCE, empty_by, start_by
from ..shared import metrics_box, picture, plot_box, slider, text_box
from . import estimators, many_images
from .one_image import CAVEAT, MAX_REPEATS, ShownLikelihood, score, score_drawing
from .uploads import WHITE, black_canvas, preparation

#: the tab of the upload
UPLOAD = "upload"
ACCEPTED = (
    "PNG, JPEG, WebP, BMP or TIFF with 8 bits per channel, one frame and no transparency; "
    "anything else is refused with the reason. JPEG and resizing change pixels, which costs bits."
)


def build(
    models: Models, model: gr.Dropdown, drawn: gr.Gallery, seed: int
) -> tuple[gr.Image, gr.Tabs]:
    """Put the tab on the page, with its endpoints /score, /score_drawing, /score_many and
    /estimators; the upload, and the tabs of which ``UPLOAD`` shows it. Images that were ``drawn``
    are sent here when they are chosen."""
    with gr.Row():
        with gr.Column():
            with gr.Tabs() as ways, gr.Tab("Draw"):
                drawing, start_drawing = add_canvas()
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
                gr.Markdown(ACCEPTED)
                chosen = add_examples(upload, ways, model, models)
                invert, frame = preparation()
                start_upload = gr.Button("Log-likelihood of the image", variant="primary")
            info = "draws of the dequantisation noise: more of them, less uncertainty"
            repeats = slider(2, MAX_REPEATS, 16, "Repeats", info=info)
            stop = gr.Button("Stop", interactive=False)
        with gr.Column():
            after = "The image after resizing and rounding to the levels of the model"
            seen = picture("As the model sees it", after, 300)
            hint = f"The log-likelihood of the image appears here. {CAVEAT}"
            text = text_box("Log-likelihood", 9, hint)
            place = text_box("Place among held-out images", 3, "")
            classes = gr.Label(
                label="Class, by p(class | image)", num_top_classes=3, visible=False
            )
    with gr.Row():
        histogram = plot_box("Place among held-out images, drawn")
        shares = plot_box("Shares of the pixels")
    shown = ShownLikelihood(seen, text, shares, place, histogram, classes, metrics_box())

    def has_classes(name: str) -> dict[str, Any]:
        return gr.update(visible=models.load(name).config.num_classes > 0)

    gr.on(None, has_classes, model, classes, **AT_ONCE)
    with gr.Accordion("Other estimators of the same log-likelihood", open=False):
        estimators.build(models, model, seen, text, seed)
    with gr.Accordion("Many files", open=False):
        many_images.build(models, model, repeats, seed)

    given = {"models": models, "seed": seed}
    events = [
        start_by([start, stop, other], run, inputs, list(shown), given, "quick")
        for start, other, run, inputs in (
            (start_upload, start_drawing, score, [model, upload, repeats, invert, frame]),
            (start_drawing, start_upload, score_drawing, [model, drawing, repeats]),
        )
    ]
    # what a visitor does, and not the changes that follow: they may come after the next press
    acts = [upload.upload, upload.clear, chosen, drawn.select, invert.input, frame.input]
    empty_by([*acts, model.change], events, list(shown))
    return upload, ways


def add_canvas() -> tuple[gr.ImageEditor, gr.Button]:
    """A canvas with a white brush, and its button."""
    drawing = black_canvas("Drawing", "L", [WHITE])
    return drawing, gr.Button("Log-likelihood of the drawing", variant="primary")


def add_examples(
    upload: gr.Image,
    ways: gr.Tabs,
    model: gr.Dropdown,
    models: Models,
) -> Callable[..., Any]:
    """Held-out images to try, of the data of the model that is chosen; the click on one."""
    label = "Held-out images of the model's data: click on one to take it"
    row = image_tiles(label, "small", visible=False)

    def offer(name: str) -> dict[str, Any]:
        pictures = examples(models.folder(name), models.data_root)
        return gr.update(value=pictures, visible=bool(pictures))

    gr.on(None, offer, model, row, **AT_ONCE)
    return send_on_click(row, upload, {ways: UPLOAD})

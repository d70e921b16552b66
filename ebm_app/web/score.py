"""Score tab: test whether an image is unusual, show where, and compute its likelihood."""

from collections.abc import Callable, Iterator
from typing import Annotated, Any, NamedTuple

import gradio as gr
import numpy as np
from annotated_types import Ge, Le
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from ebm_app.data.levels import to_display
from ebm_app.evaluation.held_out import examples
from ebm_app.evaluation.plots import plot_over
from ebm_app.likelihood import ESTIMATORS
from ebm_app.likelihood.bits import Likelihood, to_bits_per_dim
from ebm_app.utils.tensors import standard_error

from .models import Models
from .runs import AT_ONCE, Upload, clear_on, start_by
from .shared import picture, plot_box, render, slider, text_box
from .uploads import black_canvas, read_drawing, read_upload

MAX_REPEATS = 64
Repeats = Annotated[int, Ge(2), Le(MAX_REPEATS)]
#: p-value up to which an image is called unusual, and up to which it is called too simple if it is
#: also more likely than all held-out images
UNUSUAL, TOO_SIMPLE = 0.02, 0.05
NO_DETECTOR = (
    "This model has no anomaly detector, and its held-out images are not on the server, so the "
    "page cannot tell whether the image is unusual."
)
#: Names of the thirds of an image
ROWS, COLUMNS = ("upper", "", "lower"), ("left", "", "right")
#: Ids of this tab and of its tab for uploads
TAB, UPLOAD = "score", "upload"
FORMATS = (
    "PNG, JPEG, WebP, BMP or TIFF, 8 bits per channel, one frame. The largest centred crop with "
    "the model's aspect ratio is averaged to the model's pixels and rounded to its levels. The "
    "bundled models expect one light digit on black."
)


class ScoreOutputs(NamedTuple):
    """Outputs of a run; None or empty until they are known.

    The image as the model sees it, the answer, the anomaly map, the class probabilities of a
    class-conditional model, and the metrics.
    """

    seen: Image.Image | None = None
    answer: str = ""
    where: Figure | None = None
    classes: dict[str, float] | None = None
    metrics: dict[str, Any] | None = None


def score(
    model: str,
    image: Upload | None,
    repeats: Repeats,
    *,
    models: Models,
    seed: int,
) -> Iterator[ScoreOutputs]:
    """Test whether an image file is unusual, and compute its likelihood.

    Returns the image as the model sees it, the answer, a map of the unusual regions beside the
    nearest held-out images, the class probabilities, and the metrics.
    """
    pixels, note = read_upload(image, models.load(model).config)
    yield from score_image(models, model, pixels, repeats, seed, note)


def score_drawing(
    model: str,
    drawing: Upload | None,
    repeats: Repeats,
    *,
    models: Models,
    seed: int,
) -> Iterator[ScoreOutputs]:
    """Test whether a drawing of light strokes on black is unusual, and compute its likelihood.
    Returns the same as /score."""
    pixels = read_drawing(drawing, models.load(model).config)
    yield from score_image(models, model, pixels, repeats, seed)


def score_image(
    models: Models, model: str, image: Tensor, repeats: int, seed: int, note: str = ""
) -> Iterator[ScoreOutputs]:
    """Yield the image, then the answer of the detector and a note, then the likelihood by the
    model's default estimator, averaged over ``repeats`` dequantisation draws."""
    ebm = models.load(model)
    outputs = ScoreOutputs(render(image, 256), "Computing")
    yield outputs
    metrics: dict[str, Any] = dict.fromkeys(("p_value", "percentile", "most_unusual", "class"))
    if (detector := models.detector(model)) is not None:
        finding = detector.examine(image)
        (metrics["p_value"],) = finding.p_value.tolist()
        metrics["percentile"] = 100 * finding.p_values["likelihood"].item()
        metrics["most_unusual"] = place_of(finding.maps[0])
        nearest = to_display(detector.nearest(image), ebm.config.num_levels)
        outputs = outputs._replace(where=plot_over(image[0], finding.maps[0], nearest))
    if ebm.config.num_classes:
        (probabilities,) = ebm.classify(image, seed=seed).probabilities.tolist()
        metrics["class"] = int(np.argmax(probabilities))
        classes = {str(label): p for label, p in enumerate(probabilities)}
        outputs = outputs._replace(classes=classes)
    metrics["answer"] = answer_of(metrics)
    lines = [metrics["answer"], *filter(None, [note])]
    yield outputs._replace(answer="\n".join(lines))
    estimator = ebm.default_estimator
    draws = ebm.likelihood(image.expand(repeats, -1, -1, -1), estimator=estimator, seed=seed)
    metrics |= mean_likelihood(draws, estimator, image.numel())
    metrics |= {
        "estimator": estimator,
        "normalised": ESTIMATORS[estimator].normalised,
        "eps": ebm.config.eps,
        "num_dims": image.numel(),
        "repeats": repeats,
        "nfe": draws.nfe,
        "note": note,
    }
    bits = "{bits_per_dim:.3f} ± {bits_error:.3f} bits per dim".format_map(metrics)
    lines.append(f"{bits}, by {estimator}: {ESTIMATORS[estimator].note}")
    yield outputs._replace(answer="\n".join(lines), metrics=metrics)


def mean_likelihood(draws: Likelihood, estimator: str, num_dims: int) -> dict[str, float]:
    """Return the mean log-likelihood of one image over dequantisation draws, in nats and in bits
    per dimension, each with its standard error.

    Args:
        draws: at least two draws of the same image.
        estimator: name of the estimator. If its error is deterministic, and so shared by all
            draws, the error is added in quadrature to the standard error of the mean.
        num_dims: number of dimensions of the image.
    """
    error = standard_error(draws.log_prob)
    if not ESTIMATORS[estimator].error_is_drawn:
        error = error.hypot(draws.error.double().square().mean().sqrt())
    nats = draws.log_prob.mean()
    return {
        "log_prob": nats.item(),
        "log_prob_error": error.item(),
        "bits_per_dim": to_bits_per_dim(nats, num_dims).item(),
        "bits_error": -to_bits_per_dim(error, num_dims).item(),
    }


def answer_of(metrics: dict[str, Any]) -> str:
    """Return the answer of the anomaly detector in words."""
    if (p := metrics["p_value"]) is None:
        return NO_DETECTOR
    if p <= TOO_SIMPLE and metrics["percentile"] == 100:
        return f"Unusually simple: more likely than all held-out images (p = {p:.2g})"
    if p <= UNUSUAL:
        return f"Unusual: p = {p:.2g}, mostly at the {metrics['most_unusual']}"
    kind = "image" if metrics["class"] is None else metrics["class"]
    return f"Ordinary {kind}: more usual than {100 * p:.0f} percent of held-out images"


def place_of(excess: np.ndarray) -> str:
    """Return the position of the maximum of a map (H, W) in words."""
    row, column = divmod(int(excess.argmax()), excess.shape[1])
    names = ROWS[3 * row // excess.shape[0]], COLUMNS[3 * column // excess.shape[1]]
    return " ".join(filter(None, names)) or "middle"


def build(models: Models, model: gr.Dropdown, seed: int) -> tuple[gr.Image, gr.Tabs]:
    """Add the tab and its endpoints /score and /score_drawing to the page. Return the upload
    component and the tabs that contain it."""
    with gr.Row():
        with gr.Column():
            with gr.Tabs() as sources, gr.Tab("Draw"):
                drawing = black_canvas("Drawing")
                start_drawing = gr.Button("Score the drawing", variant="primary")
            with sources, gr.Tab("Upload", id=UPLOAD):
                upload = gr.Image(
                    label="Image",
                    format="png",
                    type="filepath",
                    image_mode=None,
                    sources=["upload", "clipboard"],
                    height=300,
                    alt_text="The uploaded image",
                    elem_classes="pixels",
                )
                start_upload = gr.Button("Score the image", variant="primary")
                select_example = add_examples(upload, model, models)
                gr.Markdown(FORMATS)
            stop = gr.Button("Stop", interactive=False)
        with gr.Column():
            text = text_box("Answer", 3, "Draw or upload an image, then press the button.")
            alt_text = "The image after resizing and rounding to the model's levels"
            seen = picture("As the model sees it", alt_text, 300)
            classes = gr.Label(label="Class", num_top_classes=3, visible=False)
            where = plot_box("Unusual regions")
            with gr.Accordion("Details", open=False):
                info = "dequantisation draws; more draws give a smaller error"
                repeats = slider(2, MAX_REPEATS, 16, "Repeats", info=info)
                metrics = gr.JSON(label="Metrics")

    def show_classes(name: str) -> dict[str, Any]:
        return gr.update(visible=models.load(name).config.num_classes > 0)

    gr.on(None, show_classes, model, classes, **AT_ONCE)
    outputs = list(ScoreOutputs(seen, text, where, classes, metrics))
    fixed = {"models": models, "seed": seed}
    events = [
        start_by([start, stop, other], run, inputs, outputs, fixed, "quick")
        for start, other, run, inputs in (
            (start_upload, start_drawing, score, [model, upload, repeats]),
            (start_drawing, start_upload, score_drawing, [model, drawing, repeats]),
        )
    ]
    # actions of the visitor only: change events may arrive after the next press of the button
    actions = [upload.upload, upload.clear, select_example]
    clear_on([*actions, model.change], events, outputs)
    return upload, sources


def add_examples(upload: gr.Image, model: gr.Dropdown, models: Models) -> Callable[..., Any]:
    """Add a gallery of held-out images of the model's data, which uploads the selected image;
    return its select event."""
    gallery = gr.Gallery(
        label="Examples: held-out images of the model's data",
        format="png",
        height="auto",
        object_fit="contain",
        allow_preview=False,
        interactive=False,
        buttons=[],
        elem_classes=["small", "pixels"],
        visible=False,
    )

    def fill(name: str) -> dict[str, Any]:
        images = examples(models.folder(name), models.data_root)
        return gr.update(value=images, visible=bool(images))

    def take(images: list[tuple[str, str | None]] | None, event: gr.SelectData) -> Any:
        is_valid = images and event.index in range(len(images))
        return images[event.index][0] if is_valid else gr.skip()

    gr.on(None, fill, model, gallery, **AT_ONCE)
    gallery.select(take, gallery, upload, **AT_ONCE)
    return gallery.select

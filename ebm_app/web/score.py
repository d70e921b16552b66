"""Score page: how likely is an image, is it unusual, and what does it show?"""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gradio as gr
import matplotlib as mpl
import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image, ImageChops
from torch import Tensor

from ebm_app.config import EBMConfig
from ebm_app.evaluation.drawings import prepare_drawing, read_upload, to_input
from ebm_app.evaluation.held_out import EXAMPLE_FILE, EXAMPLE_PIXELS, examples
from ebm_app.evaluation.reference import HeldOutBits
from ebm_app.likelihood.bits import to_bits_per_dim
from ebm_app.pretrained import BUNDLED
from ebm_app.utils.errors import UserError

from . import shared
from .models import LoadedModel, Models

#: Default number of dequantisation draws, and its max
DRAWS, MAX_DRAWS = 4, 32
#: Noise draws for the class
CLASS_DRAWS = 2
#: Min probability of a class that is named
SURE = 0.9
#: False-alarm rate: fraction of ordinary images that are flagged
ALPHA = 0.05
#: Max answers in memory, of about 2 MB each
MAX_ANSWERS = 64
#: Side of the canvas, and radius of its brush, in pixels. The strokes are about as wide as those
#: of the digits in the data.
SIDE, BRUSH = 280, 8
UPLOAD, DRAW = "Upload", "Draw"
NO_IMAGE = "Upload an image, draw one, or click on an example."
#: JavaScript that selects the first example
FIRST_EXAMPLE = "(examples, upload) => examples?.[0]?.image ?? null"
#: JavaScript that, at the start, selects the sample of the Generate page instead, and keeps an
#: upload
FIRST_IMAGE = """(examples, upload) => {
  const sample = JSON.parse(sessionStorage.image ?? "null");
  sessionStorage.removeItem("image");
  return upload ?? sample ?? examples?.[0]?.image ?? null;
}"""
#: JavaScript that scrolls the answer into view
SHOW_ANSWER = "() => document.querySelector('#answer').scrollIntoView({ block: 'nearest' })"
#: JavaScript that clears the answer, and changes the number that starts the next run
CLEAR = "() => [Date.now(), null, 'Computing', null, null, null, {}]"
INTRO = f"Upload or draw an image. {shared.SUMMARY} It learned by {shared.PAPER}."
#: Help with the words of the answer
WORDS = (
    "- **nats**: log p(x) is the natural logarithm of the probability density of the image. Ten "
    "nats more is e¹⁰, about 22,000 times, as likely.\n"
    "- **bits per dim**: the bits per pixel and colour that a code of the model spends on the "
    "image. Fewer is more likely.\n"
    "- **unusual**: at most one ordinary image in twenty is as unlike the training images, so "
    "that p is at most 0.05. A simple image may have a high likelihood and be unusual."
)


class Answer(NamedTuple):
    """Outputs of a run; None or empty until they are computed.

    They are the image at the model's resolution, the answer in Markdown, the histogram of held-out
    bits with those of the image, the map of unusual regions, the metrics, and the probabilities of
    the classes.
    """

    seen: Image.Image | None = None
    text: str = NO_IMAGE
    histogram: Figure | None = None
    where: Image.Image | None = None
    metrics: dict[str, Any] | None = None
    classes: dict[str, float] | None = None


class Scorer:
    """Endpoints of the page. Finished answers are kept, so that an example costs nothing."""

    def __init__(self, models: Models, seed: int) -> None:
        self.models, self.seed = models, seed
        self.answers: dict[tuple[Any, ...], Answer] = {}

    def score(
        self, model: str, image: str | None, repeats: int = DRAWS, as_is: bool = False
    ) -> Iterator[Answer]:
        """Compute the likelihood of an image file, and test whether it is unusual.

        Returns the image at the model's resolution, the answer, a histogram of the bits of
        held-out images, a map of the unusual regions if the image is flagged, the metrics, and the
        probabilities of the classes.
        ``as_is`` turns off the framing of photographs of handwriting.
        """
        if image is None:
            yield Answer()
            return
        config = self.models.config(model)
        yield from self.answer(model, *read_upload(image, config, not as_is), repeats)

    def show(
        self,
        model: str,
        image: str | None,
        repeats: int,
        as_is: bool,
        source: str,
        drawing: dict[str, Any] | None,
    ) -> Iterator[Answer]:
        """Score the upload or the drawing. Errors are shown as the answer."""
        drawn = drawing and drawing["composite"]
        try:
            if source == UPLOAD:
                yield from self.score(model, image, repeats, as_is)
            elif drawn is None or drawn.convert("L").getextrema()[0] > 127:
                yield Answer()
            else:
                pixels = prepare_drawing(drawn, self.models.config(model))
                yield from self.answer(model, pixels, [], repeats)
        except UserError as error:
            yield Answer(text=shared.as_text(shared.hide_folders(str(error))))

    def answer(
        self, model: str, image: Tensor, notes: list[str], repeats: int
    ) -> Iterator[Answer]:
        """Yield the number, then the verdict, then the class of an image (1, C, H, W)."""
        loaded = self.models.open(model)
        content = hashlib.sha256(image.numpy().tobytes()).digest()
        key = (model, id(loaded), content, repeats, *notes)
        if key not in self.answers:
            for answer in self.steps(loaded, image, notes, repeats):
                yield answer
            while len(self.answers) >= MAX_ANSWERS:
                self.answers.pop(next(iter(self.answers)), None)
            self.answers[key] = answer
        yield self.answers[key]

    def steps(
        self, loaded: LoadedModel, image: Tensor, notes: list[str], repeats: int
    ) -> Iterator[Answer]:
        """Yield the answer after each of its parts."""
        ebm, held_out = loaded.ebm, loaded.held_out
        answer = Answer(shared.render(image, 280), "Computing")
        yield answer
        result = ebm.likelihood(image, repeats=repeats, seed=self.seed)
        metrics = {
            "log_prob": result.log_prob.item(),
            "log_prob_error": result.error.item(),
            "bits_per_dim": result.bits_per_dim.item(),
            "bits_error": -to_bits_per_dim(result.error, image.numel()).item(),
            "repeats": repeats,
            "nfe": result.nfe,
            "estimator": ebm.default_estimator,
            "num_dims": image.numel(),
            "more_likely_than": None,
            "p_value": None,
            "class": None,
            "notes": notes,
        }
        if held_out is not None:
            metrics["more_likely_than"] = held_out.fraction_above(metrics["bits_per_dim"])
            answer = answer._replace(histogram=plot_bits(held_out.bits, metrics["bits_per_dim"]))
        lines = [number_text(metrics, held_out, ebm.config.num_levels), rank_text(metrics)]

        def text() -> str:
            return "\n\n".join([*lines, *(f"*{note}*" for note in notes)])

        yield answer._replace(text=text(), metrics=metrics)
        is_flagged = False
        if loaded.detector is not None:
            findings = loaded.detector.examine(image)
            p_value = metrics["p_value"] = findings.p_value.item()
            is_flagged = p_value <= ALPHA
            lines[1] = rank_text(metrics)
            excess = findings.maps[0]
            if is_flagged and (excess >= 1).any():
                answer = answer._replace(where=overlay(image, excess))
        answer = answer._replace(text=text(), metrics=metrics)
        yield answer
        names = ebm.config.classes()
        if names:
            probabilities = ebm.classify(image, self.seed, CLASS_DRAWS)[0].tolist()
            metrics["classes"] = dict(zip(names, probabilities, strict=True))
            best = max(metrics["classes"], key=metrics["classes"].get)
            if metrics["classes"][best] > SURE and not is_flagged:
                metrics["class"] = best
            doubt = "" if metrics["class"] else ", perhaps: it is unsure"
            doubt = ", perhaps: it knows ordinary images only" if is_flagged else doubt
            lines.append(f"The model sees class “{shared.as_text(best)}”{doubt}.")
            answer = answer._replace(classes=metrics["classes"])
        yield answer._replace(text=text())


def number_text(metrics: dict[str, Any], held_out: HeldOutBits | None, num_levels: int) -> str:
    """Return the log-likelihood in nats and in bits per dim, and what other images take."""
    sign = "≥" if metrics["estimator"] == "elbo" else "≈"
    nats, bits = f"{metrics['log_prob']:.0f}".replace("-", "−"), metrics["bits_per_dim"]
    # by Gibbs' inequality no density takes fewer bits of uniform noise on average
    others = f"uniform noise takes at least {np.log2(num_levels):.2g}"
    if held_out is not None:
        low, high = held_out.range()
        num = len(held_out.bits)
        others = f"most of {num} held-out images take {low:.2g} to {high:.2g}, {others}"
    return (
        f"## log p(x) {sign} {nats} ± {metrics['log_prob_error']:.2g} nats\n\n"
        f"**{bits:.2f} bits per dim**; {others}."
    )


def rank_text(metrics: dict[str, Any]) -> str:
    """Return the rank of an image among held-out images, and whether it is flagged, as far as they
    are known, in one sentence."""
    fraction, p_value = metrics["more_likely_than"], metrics["p_value"]
    rank = "" if fraction is None else f"More likely than {fraction:.0%} of held-out images"
    if p_value is None:
        return rank and f"{rank}."
    is_flagged = p_value <= ALPHA
    verdict = f"{'flagged' if is_flagged else 'not flagged'} as unusual (p = {p_value:.2g})"
    if not rank:
        return f"**{verdict.capitalize()}**."
    if is_flagged and fraction > 0.5:
        return f"{rank}, but **{verdict}**: a simple image may be both."
    return f"{rank}, and **{verdict}**."


def plot_bits(held_out: np.ndarray, bits: float) -> Figure:
    """Plot a histogram of the bits of held-out images, with those of the image."""
    figure = Figure(figsize=(5, 2.2), dpi=110, layout="constrained")
    axes = figure.subplots()
    axes.hist(held_out, min(30, max(5, len(held_out) // 10)), label="held-out images")
    axes.axvline(bits, color="C3", lw=2.5, label="this image")
    axes.set(xlabel="bits per dim (fewer: more likely)", yticks=[])
    axes.spines[["top", "right", "left"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=2)
    return figure


def overlay(image: Tensor, excess: np.ndarray) -> Image.Image:
    """Return an image (1, C, H, W) with the regions of a map (H, W) that are at least 1 in yellow
    to red."""
    pixels = image[0].expand(3, -1, -1).permute(1, 2, 0).numpy()
    colours = mpl.colormaps["autumn_r"](np.clip((excess - 1) / 5, 0, 1))[..., :3]
    mixed = np.where((excess >= 1)[..., None], 0.3 * pixels + 0.7 * colours, pixels)
    return shared.render(torch.from_numpy(mixed).permute(2, 0, 1)[None], 280)


def unusual(folder: Path, images: Sequence[Image.Image], config: EBMConfig) -> list[Any]:
    """Return unusual images for the model in a folder, with captions: two made from its examples,
    and one of another bundled model."""
    if len(images) < 2:
        return []
    name, caption = ("mnist", "a digit") if folder.name == "fashion" else ("fashion", "a shoe")
    other = Image.open(BUNDLED / name / EXAMPLE_FILE.format(9))
    pictures = {
        "upside down": images[1].rotate(180),
        "two in one": ImageChops.lighter(*images[:2]),
        caption: other,
    }
    return [
        (shared.render(to_input(picture, config), EXAMPLE_PIXELS), caption)
        for caption, picture in pictures.items()
    ]


def select_source(source: str) -> list[dict[str, Any]]:
    """Show the upload or the canvas."""
    return [gr.update(visible=source == UPLOAD), gr.update(visible=source == DRAW)]


def select_example(images: list[tuple[str, str | None]] | None, event: gr.SelectData) -> Any:
    """Upload the selected example, whose pixels are unchanged."""
    is_valid = images and event.index in range(len(images))
    return [images[event.index][0], UPLOAD] if is_valid else [gr.skip(), gr.skip()]


def end_older(number: int, latest: list[int]) -> Answer:
    """End the runs of a session before the run with a number, and clear the answer."""
    latest[0] = number
    return Answer(text="Computing")


def build(app: gr.Blocks, models: Models, seed: int) -> None:
    """Add the page and its endpoint /score."""
    gr.Markdown(f"# {shared.TITLE}\n{INTRO}")
    with gr.Row():
        with gr.Column(scale=3, min_width=300):
            model, loaded = shared.model_selector(app, models)
            source = gr.Radio([UPLOAD, DRAW], value=UPLOAD, show_label=False, label="Source")
            upload = gr.Image(
                label="Image",
                type="filepath",
                image_mode=None,
                sources=["upload", "clipboard"],
                height=220,
                alt_text="The uploaded image",
                elem_classes="pixels",
            )
            # the endpoint reads the file, and reports unreadable ones
            upload.preprocess = lambda payload: payload and payload.path
            # without a background gradio's sketchpad starts without a brush
            paper = np.full((SIDE, SIDE, 3), 255, np.uint8)
            blank = {"background": paper, "layers": [], "composite": paper}
            drawing = gr.Sketchpad(
                blank,
                label="Drawing",
                sources=(),
                type="pil",
                image_mode="RGB",
                canvas_size=(SIDE, SIDE),
                fixed_canvas=True,
                layers=False,
                transforms=(),
                brush=gr.Brush(default_size=BRUSH, colors=["#000000"], color_mode="fixed"),
                format="png",
                visible=False,
            )
            shown = shared.gallery(label="Examples: held-out images", buttons=[])
            others = shared.gallery(label="Unusual images", buttons=[])
        with gr.Column(scale=2, min_width=240):
            alt_text = "The image after resizing and rounding to the model's levels"
            seen = shared.picture("What the model sees", alt_text, 290)
            as_is = gr.Checkbox(label="Use the pixels as they are")
            where = shared.picture("Unusual regions: yellow to red", "Map of the regions", 290)
        with gr.Column(scale=4, min_width=300, elem_classes="first"):
            text = gr.Markdown(NO_IMAGE, elem_id="answer", container=True)
            classes = gr.Label(
                label="Class, by probabilities that are not calibrated",
                num_top_classes=3,
                show_heading=False,
                elem_classes="hide-empty",
                elem_id="classes",
            )
            histogram = shared.plot_box(label="Bits per dim of held-out images", elem_id="bits")
            with gr.Accordion("What the words mean", open=False):
                gr.Markdown(WORDS)
            repeats = shared.slider(2, MAX_DRAWS, DRAWS, label="Draws (more: smaller error)")
            metrics = shared.metrics_box()
    scorer, outputs = Scorer(models, seed), [seen, text, histogram, where, metrics, classes]
    inputs = [model, upload, repeats, as_is]
    api, limits = gr.Button(visible=False), shared.QUEUES["score"]
    api.click(shared.endpoint(scorer.score), inputs, outputs, api_name="score", **limits)
    # an input that changes clears the answer, ends the run before it, and starts the next one
    number, latest = gr.Number(visible="hidden"), gr.State([None])
    changes = [each.change for each in (model, source, upload, repeats, as_is)]
    cleared = [number, *outputs]
    gr.on([*changes, drawing.input], None, None, cleared, js=CLEAR, **shared.AT_ONCE)
    number.change(end_older, [number, latest], outputs, **shared.AT_ONCE)

    def show(number: int, latest: list[int], *values: Any) -> Iterator[Answer]:
        for answer in scorer.show(*values):
            if latest[0] != number:
                return
            yield answer

    number.change(
        shared.endpoint(show),
        [number, latest, *inputs, source, drawing],
        outputs,
        show_progress_on=text,
        api_visibility="private",
        **limits,
    )

    def open_model(name: str) -> list[Any]:
        """Return the examples of a model, unusual images, and the sources."""
        config, folder = models.config(name), models.folder(name)
        images = examples(folder, config, models.data_root)
        sources = gr.update(choices=[UPLOAD, DRAW])
        if config.image_shape[0] != 1:
            sources = gr.update(choices=[UPLOAD], value=UPLOAD)
        return [images, unusual(folder, images, config), sources]

    opened, run = [shown, others, source], shared.endpoint(open_model)
    for change, js in ((loaded.then, FIRST_IMAGE), (model.input, FIRST_EXAMPLE)):
        event = change(run, model, opened, **shared.AT_ONCE)
        event.then(None, [shown, upload], upload, js=js, **shared.AT_ONCE)
    # gradio's clear button also removes the background
    drawing.clear(lambda: blank, None, drawing, **shared.AT_ONCE)
    source.change(select_source, source, [upload, drawing], **shared.AT_ONCE)
    for images in (shown, others):
        selected = images.select(select_example, images, [upload, source], **shared.AT_ONCE)
        selected.then(None, None, None, js=SHOW_ANSWER, **shared.AT_ONCE)

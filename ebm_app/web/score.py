"""Score tab: how likely is an image, is it unusual, and where?"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import gradio as gr
from matplotlib.figure import Figure
from torch import Tensor

from ebm_app.evaluation.drawings import prepare_drawing, read_upload
from ebm_app.evaluation.plots import plot_over
from ebm_app.evaluation.scoring import mean_likelihood
from ebm_app.likelihood.bits import Likelihood

from . import idea, shared
from .models import Models
from .uploads import EMPTY, add_examples, black_canvas, read_canvas

MAX_REPEATS = 64
#: Dequantisation draws of the first estimate, and of each refinement
FIRST, MORE = 1, 4
#: Id of the tab for uploads
UPLOAD = "upload"
NO_IMAGE = "There is no image. Upload one, or click on an example."
#: False-alarm rate: share of ordinary images that are flagged
ALPHA = 0.05
UNUSUAL, USUAL = "Flagged as unusual (p = {:.2g}).", "Not flagged as unusual (p = {:.2g})."
NO_DETECTOR = "This model has no anomaly detector. Fit one and save it in its folder."
#: What the default estimators compute
NOTES = {"elbo": "an upper bound", "time_integral": "exact if the time score is exact"}
HINT = (
    "The answer comes when you lift the pen. The model gives every image a probability, which it "
    "learned by [conditional time score matching](https://arxiv.org/abs/2502.02300)."
)
FORMATS = (
    "PNG, JPEG, WebP, BMP or TIFF, 8 bits per channel, one frame. The largest centred crop with "
    "the model's aspect ratio is averaged to the model's pixels and rounded to its levels."
)


class ScoreOutputs(NamedTuple):
    """Outputs of a run; None or empty until they are computed.

    They are the file of the image at the model's resolution, the answer, the anomaly map, the
    class probabilities of a class-conditional model, the metrics, the image as a tensor, and
    whether it was drawn.
    """

    seen: str | None = None
    answer: str = ""
    where: Figure | None = None
    classes: dict[str, float] | None = None
    metrics: dict[str, Any] | None = None
    image: Tensor | None = None
    is_drawing: bool = True


class Scorer:
    """Endpoints of the tab. A visitor's new image stops the score of the previous one."""

    def __init__(self, models: Models, seed: int) -> None:
        self.models, self.seed, self.newest = models, seed, shared.NewestRun()

    def score(
        self, model: str, image: str | None, repeats: int, request: gr.Request | None = None
    ) -> Iterator[ScoreOutputs]:
        """Test whether an image file is unusual, and compute its likelihood.

        Returns the image at the model's resolution, the answer, a map of the unusual regions, the
        class probabilities, and the metrics.
        """
        outputs = iter([ScoreOutputs(answer=NO_IMAGE)])
        if image is not None:
            outputs = self.steps(model, *read_upload(image, self.models.config(model)), repeats)
        uploaded = (output._replace(is_drawing=False) for output in outputs)
        yield from self.newest.follow(uploaded, request)

    def score_drawing(
        self,
        model: str,
        drawing: dict[str, Any] | None,
        repeats: int,
        is_drawing: bool = True,
        request: gr.Request | None = None,
    ) -> Iterator[ScoreOutputs]:
        """Test whether a drawing of light strokes on black is unusual, and compute its likelihood.
        Returns the same as /score."""
        ink, outputs = read_canvas(drawing), iter([ScoreOutputs(answer=EMPTY)])
        if ink is None and not is_drawing:
            # keep the score of the upload: a new canvas reports that it is empty, maybe late
            return
        if ink is not None:
            pixels = prepare_drawing(ink, self.models.config(model))
            outputs = self.steps(model, pixels, [], repeats)
        yield from self.newest.follow(outputs, request)

    def steps(
        self, model: str, image: Tensor, notes: list[str], repeats: int
    ) -> Iterator[ScoreOutputs]:
        """Yield the image, then the p-value with the class and the map, then the likelihood by the
        model's default estimator, averaged over a growing number of dequantisation draws, up to
        ``repeats``."""
        outputs = ScoreOutputs(
            shared.save_once(shared.render(image, 256)), "Computing", image=image
        )
        yield outputs
        loaded = self.models.open(model)
        ebm, detector = loaded.ebm, loaded.detector
        facts: dict[str, Any] = {"p_value": None, "class": None, "answer": NO_DETECTOR}
        if names := ebm.config.classes():
            (probabilities,) = ebm.classify(image, seed=self.seed).tolist()
            facts["class"] = names[probabilities.index(max(probabilities))]
            outputs = outputs._replace(classes=dict(zip(names, probabilities, strict=True)))
        if detector is not None:
            findings = detector.examine(image)
            p_value = facts["p_value"] = findings.p_value.item()
            facts["answer"] = (UNUSUAL if p_value <= ALPHA else USUAL).format(p_value)
            outputs = outputs._replace(where=plot_over(image[0], findings.maps[0]))
        yield outputs._replace(answer="\n".join([facts["answer"], *notes]))
        estimator = ebm.default_estimator
        metrics = {
            **facts,
            "estimator": estimator,
            "normalised": estimator == "elbo",
            "t_margin": ebm.config.t_margin,
            "num_dims": image.numel(),
            "notes": notes,
        }
        draws: list[Likelihood] = []
        for begin in (0, *range(FIRST, repeats, MORE)):
            copies = image.expand(min(MORE if begin else FIRST, repeats - begin), -1, -1, -1)
            draws.append(ebm.likelihood(copies, estimator, repeats=1, seed=self.seed + begin))
            metrics = metrics | mean_likelihood(draws, estimator, image.numel())
            bits = "{bits_per_dim:.3f} ± {bits_error:.3f} bits per dim".format_map(metrics)
            bits = bits.replace(" ± nan", "")  # a single draw has no error
            lines = [facts["answer"], *notes, f"{bits}, by {estimator}: {NOTES[estimator]}"]
            yield outputs._replace(answer="\n".join(lines), metrics=metrics)


def build(models: Models, model: gr.Dropdown, seed: int) -> tuple[gr.Image, gr.Tabs]:
    """Add the tab and its endpoints /score and /score_drawing to the page. Return the upload
    component and the tabs that contain it."""
    gr.Markdown(HINT)
    with gr.Row():
        with gr.Column(min_width=300):
            with gr.Tabs() as sources, gr.Tab("Draw"):
                drawing = black_canvas("Drawing")
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
                add_examples(upload, model, models)
                gr.Markdown(FORMATS)
        with gr.Column(min_width=300):
            text = shared.text_box(
                label="Answer", lines=4, placeholder="Draw or upload an image.", elem_id="answer"
            )
            classes = gr.Label(label="Class", num_top_classes=3, elem_classes="hide-empty")
            where = shared.plot_box(label="Unusual regions", elem_classes=["hide-empty", "photos"])
            alt_text = "The image after resizing and rounding to the model's levels"
            with gr.Accordion("Details", open=False):
                seen = shared.picture("As the model sees it", alt_text, 256)
                info = "dequantisation draws; more draws give a smaller error"
                repeats = shared.slider(2, MAX_REPEATS, 16, label="Repeats", info=info)
                metrics = gr.JSON(label="Metrics")
    image, is_drawing = gr.State(), gr.State(True)
    outputs = list(ScoreOutputs(seen, text, where, classes, metrics, image, is_drawing))
    scorer = Scorer(models, seed)
    options = {"show_progress": "hidden", "trigger_mode": "multiple", **shared.QUEUES["score"]}
    # After the first stroke the canvas sends only input. After later ones it may send input with
    # the strokes before, then change with all of them.
    triggers, inputs = [drawing.input, drawing.change], [model, drawing, repeats, is_drawing]
    drawn = gr.on(triggers, scorer.score_drawing, inputs, outputs, **options)
    scored = upload.change(scorer.score, [model, upload, repeats], outputs, **options)
    events = [scored, drawn]
    explained = idea.build(models, model, events, image)
    shared.clear_on([model.input], events, [*outputs[:-1], *explained])
    return upload, sources

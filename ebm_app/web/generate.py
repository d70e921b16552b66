"""Generate page: draw images from a model, with the log-likelihood of each."""

import math
import secrets
import time
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from typing import Any

import gradio as gr
from PIL import Image
from torch import Tensor

from ebm_app.data.labels import RANDOM
from ebm_app.ebm import EBM
from ebm_app.evaluation.held_out import stored_samples
from ebm_app.sampling import SAMPLERS
from ebm_app.utils.errors import UserError
from ebm_app.utils.registry import choose

from . import shared
from .models import Models

MAX_IMAGES, MAX_STEPS, MAX_GUIDANCE = 64, 200, 5.0
#: Class choices besides the labels: a random class per image, or all classes in turn
ANY, EACH = "any", "one of each"
#: Max elements (images times pixels) per step, so that a step takes at most about a second
MAX_BATCH = 2**16
#: Min width of an image in pixels
SIDE = 128
STORED = "Ten samples that are stored with the model. Press Generate for others."
INTRO = (
    "# Images drawn from the model\nBelow each image is a lower bound on its log-likelihood in "
    "nats, the number of the Score page."
)
#: Images with captions, text, seed, and the file of the grid
GenerateOutputs = tuple[list[tuple[Image.Image, str]], str, int, Any]


def generate(
    model: str,
    sampler: str,
    num_images: int,
    num_steps: int,
    seed: int,
    randomise: bool,
    which: str = ANY,
    guidance_scale: float = 1.0,
    *,
    models: Models,
) -> Iterator[GenerateOutputs]:
    """Draw images from a model.

    Returns the images as PNG files with their classes and log-likelihoods as captions, a text, the
    seed, and a file with all images in a grid. ``randomise`` replaces the seed by a random one.
    ``which`` is a class, "any" or "one of each". ``guidance_scale`` only applies to
    class-conditional models.
    """
    seed = secrets.randbelow(shared.MAX_SEED + 1) if randomise else seed
    ebm = models.load(model)
    kind = SAMPLERS[choose("sampler", sampler, SAMPLERS)]
    labels = labels_of(which, ebm.config.classes(), num_images)
    condition, run, captions = {}, f"{model} · seed {seed}", [""] * num_images
    if labels:
        condition, classes = {"labels": labels, "guidance_scale": guidance_scale}, "random classes"
        if labels != RANDOM:
            captions = [f"{labels[index % len(labels)]}: " for index in range(num_images)]
            classes = "class " + ", ".join(labels)
        run = f"{classes}, guidance {guidance_scale:g} · {run}"
    begin = time.perf_counter()
    size = max(1, MAX_BATCH // math.prod(ebm.config.image_shape))
    steps = {kind.counts: num_steps, "batch_size": size}
    frames = ebm.iterate_sample(num_images, sampler, seed, **steps, **condition)
    for frame in shared.at_intervals(frames):
        images = ebm.to_images(frame.x)
        text = f"Step {frame.step} of {frame.num_steps} in {time.perf_counter() - begin:.1f} s"
        yield captioned(images, captions), f"{text} · {run}", seed, None
    text = f"{num_images} images in {time.perf_counter() - begin:.1f} s"
    if frame.acceptance is not None:
        text += f" · {frame.acceptance:.0%} of the proposals accepted"
    grid = shared.save_file(shared.render(images), f"{model.replace('/', '-')}-seed-{seed}.png")
    yield captioned(images, captions), f"{text} · computing log p · {run}", seed, grid
    captions = [*map(str.__add__, captions, likelihoods(ebm, images))]
    yield captioned(images, captions), f"{text} · {run}", seed, grid


def captioned(images: Tensor, captions: Sequence[str]) -> list[tuple[Image.Image, str]]:
    """Return images (B, C, H, W) as pictures with captions."""
    pictures = (shared.render(image, SIDE) for image in images.split(1))
    return [*zip(pictures, captions, strict=True)]


def likelihoods(ebm: EBM, images: Tensor) -> list[str]:
    """Return the log-likelihood of each image (B, C, H, W) as text."""
    sign = "≥" if ebm.default_estimator == "elbo" else "≈"
    values = ebm.likelihood(images).log_prob.tolist()
    return [f"log p {sign} {value:.0f}".replace("-", "−") for value in values]


def labels_of(which: str, names: Sequence[str], num_images: int) -> tuple[str, ...] | str:
    """Return the classes to cycle through, "random" for random classes, or () for a model without
    classes.

    >>> labels_of("cat", ("cat", "dog"), 3), labels_of("one of each", ("cat", "dog"), 3)
    (('cat',), ('cat', 'dog'))
    """
    if not names:
        if which in (ANY, EACH):
            return ()
        raise UserError(f"This model was trained without class labels. Choose {ANY!r}.")
    choose("class", which, [ANY, EACH, *names])
    if which == ANY:
        return RANDOM
    return tuple(names[:num_images]) if which == EACH else (which,)


def class_options(model: str, which: str | None, *, models: Models) -> list[dict[str, Any]]:
    """Return updates of the class choice and the guidance slider for a model. The class is kept if
    the model has it."""
    names = models.config(model).classes()
    labels, visible = [ANY, EACH, *names], bool(names)
    value = which if which in labels[2:] else (EACH if visible else ANY)
    return [gr.update(choices=labels, value=value, visible=visible), gr.update(visible=visible)]


def default_steps(model: str, sampler: str, *, models: Models) -> dict[str, Any]:
    """Return an update that sets the step slider to the default of a sampler for a model."""
    ebm, kind = models.load(model), SAMPLERS[sampler]
    num_steps = kind().count_steps(ebm.model, math.prod(ebm.config.image_shape))
    return gr.update(value=min(num_steps, MAX_STEPS), info=kind.steps)


@lru_cache(maxsize=16)
def first_samples(models: Models, model: str) -> tuple[list[tuple[Image.Image, str]], str]:
    """Return samples that are stored with a model, with their log-likelihoods, and a text."""
    images = stored_samples(models.folder(model), models.config(model))
    if images is None:
        return [], ""
    return captioned(images, likelihoods(models.load(model), images)), STORED


def build(app: gr.Blocks, models: Models, seed: int) -> None:
    """Add the page and its endpoint /generate."""
    gr.Markdown(INTRO)
    first, kind = next(iter(SAMPLERS.items()))
    labels = [ANY, EACH, *models.classes()]
    with gr.Row():
        with gr.Column(scale=2, min_width=300):
            model, loaded = shared.model_selector(app, models)
            which = gr.Radio(labels, value=ANY, label="Class")
            num_images = shared.slider(1, MAX_IMAGES, 10, label="Images")
            controls = gr.Column()
            with gr.Accordion("Advanced", open=False):
                info = "dpm is the fastest, annealed_hmc the slowest"
                sampler = gr.Dropdown(list(SAMPLERS), value=first, label="Sampler", info=info)
                info = "0: unconditional, 1: conditional, more: clearer and less varied images"
                bounds = {"minimum": 0, "maximum": MAX_GUIDANCE, "value": 1.5, "step": 0.1}
                guidance_scale = gr.Slider(**bounds, label="Guidance", info=info)
                steps = getattr(kind, kind.counts)
                steps = shared.slider(1, MAX_STEPS, steps, label="Steps", info=kind.steps)
                seeds = shared.seed_box(seed)
                randomise = gr.Checkbox(True, label="New seed for every run")
        with gr.Column(scale=3, min_width=300, elem_classes="first"):
            images = shared.gallery(label="Samples")
            text = shared.text_box(label="Run")
            file = gr.DownloadButton("Download the grid", size="sm")
    inputs = [model, sampler, num_images, steps, seeds, randomise, which, guidance_scale]
    outputs = [images, text, seeds, file]
    with controls:
        event = shared.start_by("Generate", generate, inputs, outputs, "sample", models=models)
    link = {"class": which, "model": model, "guidance_scale": guidance_scale, "seed": seeds}
    event.success(None, [*link.values()], js=shared.write_link(*link), **shared.AT_ONCE)
    # loading a model may take seconds, so only the last selection is applied
    options = {**shared.AT_ONCE, "trigger_mode": "always_last"}
    update = partial(default_steps, models=models)
    gr.on([sampler.change, model.change], update, [model, sampler], steps, **options)

    def read_link(name: str, request: gr.Request) -> list[Any]:
        found = request.query_params
        options = class_options(name, found.get("class"), models=models)
        scale = shared.read_number(found, "guidance_scale", MAX_GUIDANCE)
        if scale is not None:
            options[1]["value"] = scale
        linked = shared.read_number(found, "seed", shared.MAX_SEED)
        is_linked = linked is not None
        return [*options, int(linked) if is_linked else gr.skip(), not is_linked]

    linked = loaded.then(
        read_link, model, [which, guidance_scale, seeds, randomise], **shared.AT_ONCE
    )
    show = partial(first_samples, models)
    linked.then(show, model, [images, text], **shared.AT_ONCE)
    update = partial(class_options, models=models)
    model.input(update, [model, which], [which, guidance_scale], **shared.AT_ONCE)
    gr.on(model.input, show, model, [images, text], cancels=[event], **options)

"""Generate tab: draw images from a model."""

import math
import secrets
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import gradio as gr
from PIL import Image

from ebm_app.data.labels import RANDOM
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
HINT = (
    "Draw images from the model, optionally of one class. Click on an image to send it to Score."
)


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
) -> Iterator[tuple[list[tuple[Image.Image, str]], str, int]]:
    """Draw images from a model.

    Returns the images as PNG files with their classes as captions, a text, and the seed.
    ``randomise`` replaces the seed by a random one. ``which`` is a class, "any" or "one of each".
    ``guidance_scale`` only applies to class-conditional models.
    """
    seed = secrets.randbelow(shared.MAX_SEED + 1) if randomise else seed
    ebm = models.load(model)
    kind = SAMPLERS[choose("sampler", sampler, SAMPLERS)]
    labels = labels_of(which, ebm.config.classes(), num_images)
    condition, run = {}, f"{model} · seed {seed}"
    captions = [f"image {number}" for number in range(1, num_images + 1)]
    if labels:
        condition, classes = {"labels": labels, "guidance_scale": guidance_scale}, "random classes"
        if labels != RANDOM:
            captions = [labels[index % len(labels)] for index in range(num_images)]
            classes = "class " + ", ".join(labels)
        run = f"{classes}, guidance {guidance_scale:g} · {run}"
    begin = time.perf_counter()
    size = max(1, MAX_BATCH // math.prod(ebm.config.image_shape))
    steps = {kind.counts: num_steps, "batch_size": size}
    frames = ebm.iterate_sample(num_images, sampler, seed, **steps, **condition)
    for frame in shared.at_intervals(frames):
        images = [shared.render(image, SIDE) for image in ebm.to_images(frame.x).split(1)]
        text = shared.progress(frame, f"{num_images} images", begin)
        if frame.acceptance is not None:
            text += f" · {frame.acceptance:.0%} of the proposals accepted"
        yield [*zip(images, captions, strict=True)], f"{text} · {run}", seed


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


def build(models: Models, model: gr.Dropdown, seed: int) -> tuple[gr.Gallery, list[gr.Component]]:
    """Add the tab and its endpoint /generate to the page. Return the gallery, and the components
    that a link sets: class, guidance scale, seed and whether the seed is random."""
    gr.Markdown(HINT)
    first, kind = next(iter(SAMPLERS.items()))
    labels = [ANY, EACH, *models.classes()]
    with gr.Row():
        with gr.Column(scale=1):
            which = gr.Radio(labels, value=ANY, label="Class")
            buttons = shared.start_and_stop("Generate")
            with gr.Accordion("Advanced", open=False):
                num_images = shared.slider(1, MAX_IMAGES, 10, label="Images")
                info = "dpm is the fastest, annealed_hmc the slowest"
                sampler = gr.Dropdown(list(SAMPLERS), value=first, label="Sampler", info=info)
                info = "0: unconditional, 1: conditional, more: clearer and less varied images"
                bounds = {"minimum": 0, "maximum": MAX_GUIDANCE, "value": 1.5, "step": 0.1}
                guidance_scale = gr.Slider(**bounds, label="Guidance", info=info)
                steps = getattr(kind, kind.counts)
                steps = shared.slider(1, MAX_STEPS, steps, label="Steps", info=kind.steps)
                seeds = shared.seed_box(seed)
                randomise = gr.Checkbox(True, label="New seed for every run")
        with gr.Column(scale=2, elem_classes="first"):
            images = shared.gallery(label="Samples")
            text = shared.text_box(label="Run")
    inputs = [model, sampler, num_images, steps, seeds, randomise, which, guidance_scale]
    outputs = [images, text, seeds]
    event = shared.start_by(buttons, generate, inputs, outputs, "sample", models=models)
    shown = {"class": which, "model": model, "guidance_scale": guidance_scale, "seed": seeds}
    event.success(None, [*shown.values()], js=shared.write_link(*shown), **shared.AT_ONCE)
    # loading a model may take seconds, so only the last selection is applied
    options = {**shared.AT_ONCE, "trigger_mode": "always_last"}
    update = partial(default_steps, models=models)
    gr.on([sampler.change, model.change], update, [model, sampler], steps, **options)
    update = partial(class_options, models=models)
    model.input(update, [model, which], [which, guidance_scale], **shared.AT_ONCE)
    shared.clear_on([model.input], [event], [images, text])
    return images, [which, guidance_scale, seeds, randomise]


def send_on_click(images: gr.Gallery, upload: gr.Image, tabs: dict[gr.Tabs, str]) -> None:
    """Upload an image of the gallery when it is clicked, and select tabs by their id."""
    sent = images.select(shared.selected_file, images, upload, **shared.AT_ONCE)
    selected = [gr.update(selected=tab) for tab in tabs.values()]
    sent.then(lambda: selected, None, list(tabs), **shared.AT_ONCE)
    sent.then(None, js="() => window.scrollTo(0, 0)", **shared.AT_ONCE)

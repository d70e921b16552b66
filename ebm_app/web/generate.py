"""Generate page: draw images from a model, with the log-likelihood of each."""

import json
import math
import secrets
import time
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import gradio as gr
from PIL import Image
from torch import Tensor

from ebm_app.ebm import EBM
from ebm_app.evaluation.held_out import stored_samples
from ebm_app.sampling import SAMPLERS
from ebm_app.utils.fields import check_argument
from ebm_app.utils.registry import choose

from . import shared
from .models import Models

MAX_IMAGES, MAX_STEPS, MAX_GUIDANCE = 64, 200, 5.0
#: Class choices besides the labels: a random class per image, or all classes in turn
ANY, EACH = "any", "one of each"
#: Max elements (images times pixels) per step, so that a step takes at most about a second
MAX_BATCH = 2**16
#: Dequantisation draws of each log-likelihood
DRAWS = 4
#: Min width of an image in pixels
SIDE = 128
STORED = "Ten samples that are stored with the model. Press Generate for others."
INTRO = (
    f"# Images drawn from the model\nA model that learned by {shared.PAPER} draws images. Below "
    "each one is its log-likelihood in nats with its standard error, the number of the Score page."
)
#: Options of an event that shows stored samples, then their log-likelihoods: queued, in parallel
STEPWISE = {"concurrency_limit": None, "show_progress": "hidden", "api_visibility": "private"}
#: JavaScript that writes what is needed to repeat a run into the address of the browser
WRITE_LINK = """(...values) => {
  const address = new URL(location), names = NAMES;
  names.forEach((name, index) => address.searchParams.set(name, values[index]));
  history.replaceState(history.state, "", address);
}"""
#: JavaScript that reads the settings of a run from the address, and whether its
#: seed is random
READ_LINK = """(...values) => {
  const link = new URLSearchParams(location.search), names = NAMES;
  const read = names.map((name, index) => !link.has(name) ? values[index]
    : typeof values[index] === "number" ? Number(link.get(name)) : link.get(name));
  return [...read, !link.has("seed")];
}"""
#: JavaScript that repeats the run of the address
RUN_LINK = """() => new URLSearchParams(location.search).has("seed")
  && document.querySelector("#generate").click()"""
#: JavaScript that opens the Score page with the selected sample, or else with the first one
SCORE_SAMPLE = """(images, model) => {
  const items = [...document.querySelectorAll(".small .thumbnail-item")];
  const index = Math.max(0, items.findIndex(item => item.classList.contains("selected")));
  if (!images?.length) return;
  sessionStorage.image = JSON.stringify(images[index].image);
  location.assign("./?model=" + encodeURIComponent(model));
}"""
#: Images with captions, text, seed, the file of the grid, and the log-likelihoods
GenerateOutputs = tuple[list[tuple[Image.Image, str]], str, int, Any, dict[str, list[float]]]


def generate(
    model: str,
    sampler: str,
    num_images: int,
    num_steps: int,
    seed: int,
    randomise: bool,
    which: str = EACH,
    guidance_scale: float = 1.0,
    *,
    models: Models,
) -> Iterator[GenerateOutputs]:
    """Draw images from a model.

    Returns the images as PNG files with their classes and log-likelihoods as captions, a text, the
    seed, a file with all images in a grid, and the log-likelihoods in nats with their standard
    errors. ``num_steps`` 0 selects the sampler's default.
    ``randomise`` replaces the seed by a random one. ``which`` is a class, "any" or "one of each".
    ``guidance_scale`` only applies to class-conditional models.
    """
    seed = secrets.randbelow(shared.MAX_SEED + 1) if randomise else seed
    ebm = models.open(model).ebm
    kind = SAMPLERS[choose("sampler", sampler, SAMPLERS)]
    settings: dict[str, Any] = {kind.counts: num_steps} if num_steps else {}
    settings["batch_size"] = max(1, MAX_BATCH // math.prod(ebm.config.image_shape))
    which = check_argument(str, "class", which)
    labels = labels_of(which, ebm.config.classes(), num_images)
    run, captions = f"{model} · seed {seed}", [""] * num_images
    if labels or ebm.config.num_classes:
        settings |= {"labels": labels, "guidance_scale": guidance_scale}
        classes = "random classes"
        if labels:
            captions = [f"{labels[index % len(labels)]}: " for index in range(num_images)]
            classes = "class " + ", ".join(labels)
        run = f"{classes}, guidance {guidance_scale:g} · {run}"
    begin = time.perf_counter()
    for frame in shared.at_intervals(ebm.iterate_sample(num_images, sampler, seed, **settings)):
        images = ebm.to_images(frame.x)
        text = f"Step {frame.step} of {frame.num_steps} in {time.perf_counter() - begin:.1f} s"
        yield captioned(images, captions), f"{text} · {run}", seed, None, {}
    text = f"{num_images} images in {time.perf_counter() - begin:.1f} s"
    if frame.acceptance is not None:
        text += f" · {frame.acceptance:.0%} of the proposals accepted"
    grid = shared.save_file(shared.render(images), f"{model.replace('/', '-')}-seed-{seed}.png")
    yield captioned(images, captions), f"{text} · computing log p · {run}", seed, grid, {}
    metrics = likelihoods(ebm, images)
    captions = [*map(str.__add__, captions, captions_of(ebm, metrics))]
    yield captioned(images, captions), f"{text} · {run}", seed, grid, metrics


def captioned(images: Tensor, captions: Sequence[str]) -> list[tuple[Image.Image, str]]:
    """Return images (B, C, H, W) as pictures with captions."""
    pictures = (shared.render(image, SIDE) for image in images.split(1))
    return [*zip(pictures, captions, strict=True)]


def likelihoods(ebm: EBM, images: Tensor) -> dict[str, list[float]]:
    """Return the log-likelihood of each image (B, C, H, W) in nats, and its standard error."""
    found = ebm.likelihood(images, repeats=DRAWS)
    return {"log_prob": found.log_prob.tolist(), "log_prob_error": found.error.tolist()}


def captions_of(ebm: EBM, metrics: dict[str, list[float]]) -> list[str]:
    """Return ``likelihoods`` as text."""
    sign = "≥" if ebm.default_estimator == "elbo" else "≈"
    pairs = zip(*metrics.values(), strict=True)
    return [f"log p {sign} {value:.0f} ± {error:.0f}".replace("-", "−") for value, error in pairs]


def labels_of(which: str, names: Sequence[str], num_images: int) -> Sequence[str] | None:
    """Return the classes to cycle through, or None for random classes and for a model without
    classes.

    >>> labels_of("cat", ("cat", "dog"), 3), labels_of("one of each", ("cat", "dog"), 3)
    (('cat',), ('cat', 'dog'))
    """
    return {ANY: None, EACH: names[:num_images] or None}.get(which, (which,))


def first_samples(
    model: str, *, models: Models
) -> Iterator[tuple[list[tuple[Image.Image, str]], str, str | None]]:
    """Show the samples that are stored with a model, then also their log-likelihoods.

    Yields the samples with captions, a text, and a file with the samples in a grid.
    """
    folder, ebm = models.folder(model), models.open(model).ebm
    images = stored_samples(folder, ebm.config)
    if images is None:
        yield [], "", None
        return
    # not cached, since files expire
    grid = shared.save_file(shared.render(images), f"{model.replace('/', '-')}.png")
    yield captioned(images, [""] * len(images)), STORED, grid
    yield captioned(images, stored_likelihoods(folder, ebm)), STORED, grid


@lru_cache(maxsize=16)
def stored_likelihoods(folder: Path, ebm: EBM) -> list[str]:
    """Return the text of the log-likelihoods of the samples in a model's folder."""
    return captions_of(ebm, likelihoods(ebm, stored_samples(folder, ebm.config)))


def build(app: gr.Blocks, models: Models, seed: int) -> None:
    """Add the page and its endpoint /generate."""
    gr.Markdown(INTRO)
    # the class until those of the model are loaded; models without classes ignore it
    labels = [EACH, ANY, *models.classes()]
    with gr.Row():
        with gr.Column(scale=2, min_width=300):
            model, loaded = shared.model_selector(app, models)
            which = gr.Radio(labels, value=EACH, label="Class")
            num_images = shared.slider(1, MAX_IMAGES, 10, label="Images")
            controls = gr.Column()
            with gr.Accordion("Advanced", open=False):
                info = "dpm is the fastest, annealed_hmc the slowest"
                samplers = list(SAMPLERS)
                sampler = gr.Dropdown(samplers, value=samplers[0], label="Sampler", info=info)
                info = "1: as trained, more: clearer and less varied images"
                bounds = {"minimum": 1, "maximum": MAX_GUIDANCE, "value": 1.5, "step": 0.1}
                guidance_scale = gr.Slider(**bounds, label="Guidance", info=info)
                info = "0: the default of the sampler"
                steps = shared.slider(0, MAX_STEPS, 0, label="Steps", info=info)
                seeds = shared.seed_box(seed)
                # checked when the page is opened, so that the API uses its seed
                randomise = gr.Checkbox(False, label="New seed for every run")
        with gr.Column(scale=3, min_width=300, elem_classes="first"):
            images = shared.gallery(label="Samples")
            text = shared.text_box(label="Run")
            with gr.Row():
                score = gr.Button("Score the selected image", size="sm")
                file = gr.DownloadButton("Download the grid", size="sm")
            metrics = shared.metrics_box()
    score.click(None, [images, model], None, js=SCORE_SAMPLE, **shared.AT_ONCE)
    settings = {
        **{"class": which, "images": num_images, "sampler": sampler},
        **{"guidance": guidance_scale, "steps": steps, "seed": seeds},
    }

    def select_model(name: str, which: str | None) -> list[Any]:
        """Return the classes of a model, and whether it has any."""
        names = models.config(name).classes()
        choices = [EACH, ANY, *names]
        value = which if which in choices else EACH
        choice = gr.update(choices=choices, value=value, visible=bool(names))
        return [choice, gr.update(visible=bool(names))]

    def open_page(name: str, request: gr.Request) -> Iterator[Any]:
        """Show the stored samples, unless the address has a run, which is repeated."""
        if "seed" not in request.query_params:
            yield from first_samples(name, models=models)

    shown, linked = [images, text, file], [*settings.values()]
    select, selected = shared.endpoint(select_model), [which, guidance_scale]
    read = READ_LINK.replace("NAMES", json.dumps([*settings]))
    opened = loaded.then(select, [model, which], selected, **shared.AT_ONCE)
    opened = opened.then(None, linked, [*linked, randomise], js=read, **shared.AT_ONCE)
    opened = opened.then(None, None, None, js=RUN_LINK, **shared.AT_ONCE)
    opened = opened.then(shared.endpoint(open_page), model, shown, **STEPWISE)
    changed = model.input(select, [model, which], selected, **shared.AT_ONCE)
    show = shared.endpoint(first_samples, models=models)
    changed = changed.then(show, model, shown, **STEPWISE)
    inputs = [model, sampler, num_images, steps, seeds, randomise, which, guidance_scale]
    outputs, stored = [images, text, seeds, file, metrics], [opened, changed]
    with controls:
        event = shared.start_by(
            "Generate", generate, inputs, outputs, "sample", stored, models=models
        )
    write = WRITE_LINK.replace("NAMES", json.dumps(["model", *settings]))
    event.success(None, [model, *linked], js=write, **shared.AT_ONCE)
    model.input(None, cancels=[event, *stored], **shared.AT_ONCE)

"""Generate tab: draw images from a model."""

import json
import math
import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import gradio as gr
from annotated_types import Ge, Le
from PIL import Image

from ebm_app.config import EBMConfig
from ebm_app.folders import read_config
from ebm_app.nets.labelled import RANDOM
from ebm_app.sampling import SAMPLERS
from ebm_app.sampling.base import Frame
from ebm_app.utils.errors import UserError
from ebm_app.utils.registry import choose

from .models import Models
from .runs import AT_ONCE, Upload, handler, start_and_stop, start_by
from .shared import MAX_SEED, Seed, picture, progress, render, seed_box, slider, text_box

MAX_IMAGES, MAX_STEPS, MAX_GUIDANCE = 64, 200, 5.0
Guidance = Annotated[float, Ge(0), Le(MAX_GUIDANCE)]
#: Class choices beside the labels: a random class per image, or all classes in turn
ANY, EACH = "any", "one of each"
#: File in a model folder with a grid of images that were generated earlier, and their number
STORED_GRID, STORED_IMAGES = "samples_grid.png", 100
#: Key of the settings, as JSON, in the metadata of a PNG
PNG_KEY = "ebm_app"
LABELS = {
    "dpm": "DPM-Solver++: fastest",
    "pf_ode": "Probability-flow ODE, Heun: two network evaluations per step",
    "annealed_hmc": "Annealed HMC: slowest",
}
HINT = (
    "Press **Generate** to draw images from the model, optionally of one class. Click on an image "
    "to send it to the Score tab, which tests whether it is unusual."
)
#: Mean acceptance rate of HMC below which the caption warns
LOW_ACCEPTANCE = 0.1
WARNING = (
    f"Fewer than {LOW_ACCEPTANCE:.0%} of the HMC proposals were accepted, so the images may not "
    "follow the model. Increase the number of steps or choose another sampler."
)


def generate(  # noqa: PLR0913 - the inputs of an endpoint
    model: str,
    sampler: str,
    num_images: Annotated[int, Ge(1), Le(MAX_IMAGES)],
    num_steps: Annotated[int, Ge(1), Le(MAX_STEPS)],
    seed: Seed,
    randomise: bool,
    which: str = ANY,
    guidance: Guidance = 1.0,
    *,
    models: Models,
) -> Iterator[tuple[Image.Image | None, str, int]]:
    """Draw images from a model.

    Returns the grid as a PNG with the settings in its metadata, a caption, and the seed.
    ``randomise`` replaces the seed by a random one. ``which`` is a class label, "any" or "one of
    each"; ``guidance`` applies to class-conditional models.
    """
    seed = secrets.randbelow(MAX_SEED + 1) if randomise else seed
    ebm = models.load(model)
    kind = SAMPLERS[choose("sampler", sampler, SAMPLERS)]
    labels = labels_of(which, ebm.config.num_classes, num_images)
    condition = {"labels": labels, "guidance": guidance} if labels else {}
    settings = {"model": model, "sampler": sampler, "num_images": num_images}
    settings |= {"num_steps": num_steps, "seed": seed, **condition}
    yield None, f"Starting · {model} · seed {seed}", seed
    begin = time.perf_counter()
    steps = {kind.counts: num_steps}
    for frame in ebm.iterate_sample(num_images, sampler, seed, **steps, **condition):
        grid = render(ebm.to_images(frame.x))
        grid.info[PNG_KEY] = json.dumps({**settings, "step": frame.step})
        yield grid, caption(frame, settings, time.perf_counter() - begin), seed


def caption(frame: Frame, settings: dict[str, Any], seconds: float) -> str:
    """Return the progress and the settings of a run, with a warning if HMC rarely accepts."""
    is_done = frame.step == frame.num_steps
    head = f"{settings['num_images']} images" if is_done else progress(frame.step, frame.num_steps)
    parts = [f"{head} in {seconds:.1f} s"]
    if labels := settings.get("labels"):
        classes = "random classes" if labels == RANDOM else "class " + ", ".join(map(str, labels))
        parts.append(f"{classes}, guidance {settings['guidance']:g}")
    parts += [settings["model"], f"seed {settings['seed']}"]
    if frame.acceptance is not None and frame.acceptance < LOW_ACCEPTANCE:
        parts.append(WARNING)
    return " · ".join(parts)


def labels_of(which: str, num_classes: int, num_images: int) -> tuple[int, ...] | str:
    """Return the class labels that the images take in turn, "random" for random classes, or () for
    a model without classes.

    >>> labels_of("7", 10, 2), labels_of("one of each", 3, 9), labels_of("one of each", 3, 2)
    ((7,), (0, 1, 2), (0, 1))
    """
    if not num_classes:
        if which in (ANY, EACH):
            return ()
        raise UserError(f"This model was trained without class labels. Choose {ANY!r}.")
    choose("class", which, [ANY, EACH, *map(str, range(num_classes))])
    if which == ANY:
        return RANDOM
    return tuple(range(min(num_classes, num_images))) if which == EACH else (int(which),)


def model_options(model: str, *, models: Models) -> tuple[dict[str, Any], ...]:
    """Return the updates for a model: of the class choice, of the guidance slider, and of the
    grid, which shows the stored images of the model if there are any."""
    folder = models.folder(model)
    num_classes, stored = read_config(EBMConfig, folder).num_classes, folder / STORED_GRID
    labels = [ANY, EACH, *map(str, range(num_classes))]
    visible = {"visible": num_classes > 0}
    classes = {"choices": labels, "value": EACH if num_classes else ANY, **visible}
    return classes, visible, {"value": str(stored) if stored.exists() else None}


def default_steps(model: str, sampler: str, *, models: Models) -> dict[str, Any]:
    """Return an update that sets the step slider to the default of a sampler for a model."""
    ebm, kind = models.load(model), SAMPLERS[sampler]
    num_steps = kind().count_steps(ebm.density, math.prod(ebm.config.image_shape))
    return gr.update(value=min(num_steps, MAX_STEPS), info=kind.steps)


def crop_cell(grid: Image.Image, config: EBMConfig, place: Sequence[int]) -> Image.Image:
    """Return the image at pixel (x, y) of a grid."""
    settings = json.loads(grid.info.get(PNG_KEY, "{}"))
    num, (height, width) = settings.get("num_images", STORED_IMAGES), config.image_shape[1:]
    columns = math.ceil(math.sqrt(num))
    # cells are separated by one pixel, and all pixels are enlarged by this factor
    factor = grid.width // (columns * (width + 1) - 1)
    column, row = place[0] // (factor * (width + 1)), place[1] // (factor * (height + 1))
    if row * columns + column >= num:
        raise UserError("There is no image at this place. Click on an image.")
    left, top = column * factor * (width + 1), row * factor * (height + 1)
    return grid.crop((left, top, left + factor * width, top + factor * height))


def build(models: Models, model: gr.Dropdown, seed: int) -> gr.Image:
    """Add the tab and its endpoint /generate to the page; return the grid."""
    gr.Markdown(HINT)
    first, kind = next(iter(SAMPLERS.items()))
    classes, guided, stored = model_options(model.value, models=models)
    with gr.Row():
        with gr.Column(scale=1):
            samplers = [(LABELS.get(name, name), name) for name in SAMPLERS]
            sampler = gr.Dropdown(samplers, value=first, label="Sampler")
            which = gr.Radio(label="Class", **classes)
            info = "0: unconditional, 1: the model's own, more: clearer and less varied images"
            bounds = {"minimum": 0, "maximum": MAX_GUIDANCE, "value": 1.5, "step": 0.1}
            guidance = gr.Slider(**bounds, label="Guidance", info=info, **guided)
            num_images = slider(1, MAX_IMAGES, 10, "Images")
            buttons = start_and_stop("Generate")
            with gr.Accordion("Advanced", open=False):
                steps = slider(1, MAX_STEPS, getattr(kind, kind.counts), "Steps", info=kind.steps)
                seeds = seed_box(seed)
                randomise = gr.Checkbox(True, label="New seed for every run")
        with gr.Column(scale=2, elem_classes="first"):
            # without a label, which would cover the picture on narrow screens
            options = {"buttons": ["download", "fullscreen"], "show_label": False, **stored}
            grid = picture("Samples", "Grid of generated images", "min(520px, 104vw)", **options)
            text = text_box("Run")
    inputs = [model, sampler, num_images, steps, seeds, randomise, which, guidance]
    event = start_by(buttons, generate, inputs, [grid, text, seeds], {"models": models})
    update_steps = handler(default_steps, models=models)
    # loading a model may take seconds: the last selection wins
    options = {**AT_ONCE, "trigger_mode": "always_last"}
    gr.on([sampler.change, model.change], update_steps, [model, sampler], steps, **options)

    def reset(name: str) -> list[Any]:
        updates = [gr.update(**option) for option in model_options(name, models=models)]
        return [*updates, ""]

    model.change(None, cancels=[event], **AT_ONCE)
    model.change(handler(reset), model, [which, guidance, grid, text], **AT_ONCE)
    return grid


def send_on_click(
    grid: gr.Image, model: gr.Dropdown, upload: gr.Image, tabs: dict[gr.Tabs, str], models: Models
) -> None:
    """Let a click on an image of the grid upload it and select the tabs given by id."""

    def send(name: str, shown: Upload, event: gr.SelectData) -> list[Any]:
        with Image.open(shown) as whole:
            image = crop_cell(whole, read_config(EBMConfig, models.folder(name)), event.index)
        return [image, *(gr.update(selected=tab) for tab in tabs.values())]

    inputs, outputs = [model, grid], [upload, *tabs]
    sent = grid.select(handler(send), inputs, outputs, preprocess=False, **AT_ONCE)
    sent.then(None, js="() => window.scrollTo(0, 0)", **AT_ONCE)

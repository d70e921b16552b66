"""The tab that draws images."""

import json
import math
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NamedTuple
from zipfile import ZipFile

import gradio as gr
import pandas as pd
from annotated_types import Ge, Le
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from ebm_app.config import EBMConfig
from ebm_app.data.pictures import to_pil, to_uint8
from ebm_app.folders import read_config
from ebm_app.nets.labelled import RANDOM
from ebm_app.sampling.base import Frame
from ebm_app.sampling.samplers import SAMPLERS
from ebm_app.utils.errors import UserError
from ebm_app.utils.registry import choose

from .models import Models
from .runs import AT_ONCE, Upload, explained, start_and_stop, start_by
from .shared import (
    MAX_SEED,
    Seed,
    in_a_row,
    mean_of,
    picture,
    progress,
    render,
    seed_box,
    slider,
    table_box,
    text_box,
)

MAX_IMAGES, MAX_STEPS, MAX_GUIDANCE = 64, 200, 5.0
Guidance = Annotated[float, Ge(0), Le(MAX_GUIDANCE)]
ANY, EACH = "any", "one of each"
#: a grid that a bundled model drew before, in its folder
FIRST_GRID, FIRST_IMAGES = "samples_grid.png", 100
#: where a PNG keeps the settings, as JSON
PNG_KEY = "ebm_app"
#: dequantisation draws of an image
REPEATS = 4
HEADERS = ("Image", "Log p (nats)", "± (nats)", "Bits per dim")
LABELS = {
    "dpm": "DPM-Solver++: the fastest",
    "pf_ode": "Probability-flow ODE by Heun's method: twice the work a step",
    "annealed_hmc": "Annealed HMC: by far the slowest",
}
HINT = (
    "Press **Generate** and watch images come out of noise, of the class that you choose; then "
    "click on one of them to send it to the Score tab, which says whether it is ordinary."
)
#: a mean acceptance below which the chains hardly move
FEW_ACCEPTED = 0.1
WARNING = (
    f"Fewer than {FEW_ACCEPTED:.0%} of the moves are accepted, so that the images may be far from "
    "the model's: take more steps or another sampler"
)


class ShownRun(NamedTuple):
    """What the page shows of a run: the grid, a caption, the seed and the log-likelihoods; of an
    ended run the archive too."""

    grid: Image.Image | str | None
    caption: str
    seed: int
    likelihoods: list[list[float]] | None = None
    archive: str | None = None


def generate(  # noqa: PLR0913 - the inputs of an endpoint
    model: str,
    sampler: str,
    num_images: Annotated[int, Ge(1), Le(MAX_IMAGES)],
    num_steps: Annotated[int, Ge(1), Le(MAX_STEPS)],
    seed: Seed,
    randomise: bool,
    score_images: bool,
    which: str = ANY,
    guidance: Guidance = 1.0,
    *,
    models: Models,
) -> Iterator[ShownRun]:
    """Draw images; returns the grid as a PNG, a caption, the seed that was used, a table of
    log-likelihoods, and a ZIP of all files. ``which`` is a class, "any" or "one of each"."""
    seed = secrets.randbelow(MAX_SEED + 1) if randomise else seed
    ebm = models.load(model)
    kind = SAMPLERS[choose("sampler", sampler, SAMPLERS)]
    labels = labels_of(which, ebm.config.num_classes, num_images)
    told = {"labels": labels, "guidance": guidance} if labels else {}
    settings = {"model": model, "sampler": sampler, "num_images": num_images}
    settings |= {"num_steps": num_steps, "seed": seed, **told}
    yield ShownRun(None, f"Starting · {model} · seed {seed}", seed)
    begin = time.perf_counter()
    steps = {kind.counts: num_steps}
    for frame in ebm.iterate_sample(num_images, sampler, seed, **steps, **told):
        images = ebm.to_images(frame.x)
        grid, text = render(images), caption(frame, settings, time.perf_counter() - begin)
        grid.info[PNG_KEY] = json.dumps({**settings, "step": frame.step})
        yield ShownRun(grid, text, seed)
    with TemporaryDirectory() as folder:  # the page keeps copies
        stem = "-".join(re.sub(r"[^\w.]+", "-", part) for part in (model, sampler, f"seed{seed}"))
        drawn = Path(folder) / f"{stem.strip('-.')}.png"
        info = PngInfo()
        info.add_text(PNG_KEY, grid.info[PNG_KEY])
        grid.save(drawn, pnginfo=info)
        rows: list[list[float]] = []
        for number, image in enumerate(images if score_images else (), 1):
            draws = ebm.likelihood(image.expand(REPEATS, -1, -1, -1), seed=seed)
            mean = mean_of(draws, ebm.default_estimator, image.numel())
            rows.append([number, *in_a_row(mean)])
            done = f"{progress(number, num_images)} log-likelihoods"
            yield ShownRun(str(drawn), f"{done} · {text}", seed, list(rows))
        archive = drawn.with_suffix(".zip")
        with ZipFile(archive, "w") as file:
            file.write(drawn, "grid.png")
            file.writestr("settings.json", json.dumps(settings) + "\n")
            for number, pixels in enumerate(to_uint8(images), 1):
                with file.open(f"{number:02d}.png", "w") as part:
                    to_pil(pixels).save(part, "PNG")
            if rows:
                file.writestr(
                    "scores.csv", pd.DataFrame(rows, columns=HEADERS).to_csv(index=False)
                )
        yield ShownRun(str(drawn), text, seed, rows, str(archive))


def caption(frame: Frame, settings: dict[str, Any], seconds: float) -> str:
    """Where a run stands; where few moves are accepted, a warning."""
    is_done = frame.step == frame.num_steps
    head = f"{settings['num_images']} images" if is_done else progress(frame.step, frame.num_steps)
    parts = [f"{head} in {seconds:.1f} s"]
    if labels := settings.get("labels"):
        named = "any class" if labels == RANDOM else ", ".join(map(str, labels))
        parts.append(f"of {named} with guidance {settings['guidance']:g}")
    parts += [settings["model"], f"seed {settings['seed']}"]
    if frame.acceptance is not None and frame.acceptance < FEW_ACCEPTED:
        parts.append(WARNING)
    return " · ".join(parts)


def labels_of(which: str, num_classes: int, num_images: int) -> tuple[int, ...] | str:
    """The class labels that take turns in a run, the first ones where images are fewer; of any
    class, they are drawn at random.

    >>> labels_of("7", 10, 2), labels_of("one of each", 3, 9), labels_of("one of each", 3, 2)
    ((7,), (0, 1, 2), (0, 1))
    """
    if not num_classes:
        if which in (ANY, EACH):  # what stands there by itself
            return ()
        raise UserError(f"this model was trained without class labels: choose {ANY}")
    choose("class", which, [ANY, EACH, *map(str, range(num_classes))])
    return {ANY: RANDOM, EACH: tuple(range(min(num_classes, num_images)))}.get(which) or (
        int(which),
    )


def own_settings(model: str, *, models: Models) -> tuple[dict[str, Any], ...]:
    """Of a model that knows classes or none: the choice of one, that of the guidance, and the
    picture that it drew before, if its folder holds one."""
    folder = models.folder(model)
    known, before = read_config(EBMConfig, folder).num_classes, folder / FIRST_GRID
    choices = {"choices": [ANY, EACH, *map(str, range(known))], "value": EACH if known else ANY}
    is_shown, picture = {"visible": known > 0}, str(before) if before.exists() else None
    return {**choices, **is_shown}, is_shown, {"value": picture}


def own_steps(model: str, sampler: str, *, models: Models) -> dict[str, Any]:
    """An update of the choice of steps to the sampler's own number for a model, which the page
    limits."""
    ebm, kind = models.load(model), SAMPLERS[sampler]
    own = kind().count_steps(ebm.energy, math.prod(ebm.config.image_shape))
    return gr.update(value=min(own, MAX_STEPS), info=kind.steps)


def cell(picture: Image.Image, config: EBMConfig, place: Sequence[int]) -> Image.Image:
    """The image at a place (x, y) of a grid that a run or ``FIRST_GRID`` shows."""
    settings = json.loads(picture.info.get(PNG_KEY, "{}"))
    num, (height, width) = settings.get("num_images", FIRST_IMAGES), config.image_shape[1:]
    columns = math.ceil(math.sqrt(num))
    # every pixel is repeated, and one lies between two images
    factor = picture.width // (columns * (width + 1) - 1)
    column, row = place[0] // (factor * (width + 1)), place[1] // (factor * (height + 1))
    if row * columns + column >= num:
        raise UserError("there is no image at this place: click on one")
    left, top = column * factor * (width + 1), row * factor * (height + 1)
    return picture.crop((left, top, left + factor * width, top + factor * height))


def build(models: Models, model: gr.Dropdown, seed: int) -> gr.Image:
    """Put the tab on the page, with its endpoint /generate; the picture of its images."""
    gr.Markdown(HINT)
    first, kind = next(iter(SAMPLERS.items()))
    with gr.Row():
        with gr.Column(scale=1):
            choices = [(LABELS.get(name, name), name) for name in SAMPLERS]
            info = "how images are made out of noise"
            sampler = gr.Dropdown(choices, value=first, label="Sampler", info=info)
            classes, guided, before = own_settings(model.value, models=models)
            which = gr.Radio(label="Which", **classes)
            guidance = gr.Slider(
                *(0, MAX_GUIDANCE),
                value=1.5,
                step=0.1,
                label="Guidance",
                info="1 is the model's own, 0 tells it no class; more is clearer and less varied",
                **guided,
            )
            num_images = slider(1, MAX_IMAGES, 10, "Images")
            buttons = start_and_stop("Generate")
            with gr.Accordion("Advanced", open=False):
                steps = slider(1, MAX_STEPS, getattr(kind, kind.counts), "Steps", info=kind.steps)
                seeds = seed_box(seed)
                randomise = gr.Checkbox(True, label="New seed for every run")
                repeats = f"means over {REPEATS} draws of the dequantisation noise"
                scored = gr.Checkbox(False, label="Log-likelihoods of the images", info=repeats)
        with gr.Column(scale=2, elem_classes="first"):
            drawn = "Grid of the images that were drawn"
            # on a telephone a label and buttons lie over what is not lower than the frame
            shown = {"buttons": ["download", "fullscreen"], "show_label": False, **before}
            grid = picture("Samples", drawn, "min(520px, 104vw)", **shown)
            text = text_box("Run")
            archive = gr.File(label="All files (ZIP)", interactive=False, height=80)
            title = "Row by row from the top left; ± holds draws and estimator"
            with gr.Accordion("Log-likelihoods", open=False):
                table = table_box(title, dict(zip(HEADERS, (90, 130, 120, 130), strict=True)))
    shown = list(ShownRun(grid, text, seeds, table, archive))
    inputs = [model, sampler, num_images, steps, seeds, randomise, scored, which, guidance]
    event = start_by(buttons, generate, inputs, shown, {"models": models})
    # the answer to the last choice comes last, however long a model takes to load
    triggers, in_turn = [sampler.change, model.change], {"trigger_mode": "always_last"}
    offer = explained(own_steps, models=models)
    gr.on(triggers, offer, [model, sampler], steps, **AT_ONCE, **in_turn)

    def begin(name: str) -> list[Any]:
        return [*(gr.update(**own) for own in own_settings(name, models=models)), "", None, None]

    model.change(None, cancels=[event], **AT_ONCE)
    emptied = [which, guidance, grid, text, table, archive]
    model.change(explained(begin), model, emptied, **AT_ONCE)
    return grid


def send_on_click(
    grid: gr.Image, model: gr.Dropdown, upload: gr.Image, tabs: dict[gr.Tabs, str], models: Models
) -> None:
    """Let a click on an image of the grid hand it to an upload and open the tabs where that is."""

    def send(name: str, shown: Upload, event: gr.SelectData) -> list[Any]:
        with Image.open(shown) as picture:
            found = cell(picture, read_config(EBMConfig, models.folder(name)), event.index)
        return [found, *(gr.update(selected=tab) for tab in tabs.values())]

    inputs, outputs = [model, grid], [upload, *tabs]
    sent = grid.select(explained(send), inputs, outputs, preprocess=False, **AT_ONCE)
    sent.then(None, js="() => window.scrollTo(0, 0)", **AT_ONCE)

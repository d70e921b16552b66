"""The tab that draws images."""

import secrets
from collections.abc import Callable, Iterator
from dataclasses import astuple, replace
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import gradio as gr
from gradio.components import Component
from PIL import Image

from ebm_app.io.registry import choose
from ebm_app.sampling.samplers import SAMPLERS

from ..models import Models
from ..runs import AT_ONCE, NEVER_BEGUN, explained, start_and_stop, start_by
from ..shared import MAX_SEED, Seed, picture, seed_box, slider, table_box, text_box
from . import gallery
from .files import write_files
from .run import HEADERS, REPEATS, SampleRun, draw, table
from .settings import (
    LABELS,
    MAX_IMAGES,
    MAX_STEPS,
    NumImages,
    NumSteps,
    RunSettings,
    known,
    read_settings,
    remember,
    usable,
)

HINT = (
    "Press **Generate** and watch images come out of noise; then click on one of them below to "
    "send it to the Score tab, which finds its log-likelihood."
)
#: where the browser keeps the last runs; the key hides nothing, but a new one would lose them
STORAGE = {"storage_key": "ebm_app.io", "secret": "ebm_app.io"}
#: how long a run that was left alone can still be stopped, saved and sorted
STATE_SECONDS = 3600


class ShownRun(NamedTuple):
    """What the page shows of a run: the grid, a caption, the seed and the log-likelihoods; of an
    ended run its other files too; the run itself, once it has a step."""

    grid: Image.Image | str | None
    caption: str
    seed: int
    likelihoods: list[list[float]] | None = None
    animation: str | None = None
    settings: str | None = None
    archive: str | None = None
    run: SampleRun | None = None


def generate(
    model: str,
    sampler: str,
    num_images: NumImages,
    num_steps: NumSteps,
    seed: Seed,
    randomise: bool,
    score_images: bool,
    *,
    models: Models,
) -> Iterator[ShownRun]:
    """Draw images; returns the grid as a PNG, a caption, the seed that was used, a table of
    log-likelihoods, an animated PNG, the settings as JSON, and a ZIP of all files."""
    seed = secrets.randbelow(MAX_SEED + 1) if randomise else seed
    ebm = models.load(model)
    settings = RunSettings(
        model, choose("sampler", sampler, SAMPLERS), num_images, num_steps, seed
    )
    yield ShownRun(None, f"Starting · {model} · seed {seed}", seed)
    for run in draw(ebm, settings, score_images):
        yield ShownRun(run.grid(), run.caption(), seed, table(run.likelihoods), run=run)
    yield from finish(run)


def finish(run: SampleRun) -> Iterator[ShownRun]:
    """A run that has ended or was stopped, with its files; of its past they hold all."""
    with TemporaryDirectory() as folder:  # the page keeps copies
        grid, *files = write_files(run, Path(folder))
        rows, seed = table(run.likelihoods), run.settings.seed
        yield ShownRun(grid, run.caption(True), seed, rows, *files, replace(run, past=()))


def halt(run: SampleRun | None, text: str) -> Iterator[ShownRun]:
    """What is shown of a run that was stopped with this caption, all of it of its last step, if it
    has one."""
    if run is not None and text != NEVER_BEGUN:
        yield from finish(run)
    else:
        yield ShownRun(*[gr.skip()] * len(ShownRun._fields))


def own_steps(model: str, sampler: str, *, models: Models) -> dict[str, Any]:
    """An update of the choice of steps to the sampler's own number for a model; where that is more
    than the page allows, the most, and a note of it."""
    ebm, info = models.load(model), SAMPLERS[sampler].steps
    own = SAMPLERS[sampler]().count_steps(ebm.energy, prod(ebm.config.image_shape))
    if own > MAX_STEPS:
        info += f"; by itself the sampler takes {own} for this model, the page {MAX_STEPS}"
    return gr.update(value=min(own, MAX_STEPS), info=info)


def load_settings(path: str, *, models: Models) -> tuple[Any, ...]:
    """Every choice by the settings in a file, whose seed is kept."""
    return *astuple(read_settings(path, models.folders)), False


def load_last(run: str, *, models: Models) -> tuple[Any, ...]:
    """Every choice by one of the last runs, whose seed is kept."""
    return *astuple(usable(run, models.folders)), False


def build(models: Models, model: gr.Dropdown, seed: int) -> gr.Gallery:
    """Put the tab on the page, with its endpoint /generate; the gallery of its images.

    Args:
        model: the page's choice of a model. seed: the one to begin with.
    """
    gr.Markdown(HINT)
    first = next(iter(SAMPLERS))
    names = {name: LABELS.get(name, name) for name in SAMPLERS}
    with gr.Row():
        with gr.Column(scale=1):
            choices = [(label, name) for name, label in names.items()]
            info = "how images are made out of noise"
            sampler = gr.Dropdown(choices, value=first, label="Sampler", info=info)
            num_images = slider(1, MAX_IMAGES, 16, "Images")
            buttons = start_and_stop("Generate")
            with gr.Accordion("Advanced", open=False):
                kind = SAMPLERS[first]
                steps = slider(1, MAX_STEPS, getattr(kind, kind.counts), "Steps", info=kind.steps)
                seeds = seed_box(seed)
                randomise = gr.Checkbox(True, label="New seed for every run")
                repeats = f"means over {REPEATS} draws of the dequantisation noise"
                scored = gr.Checkbox(False, label="Log-likelihoods of the images", info=repeats)
                notes = [f"- **{names[name]}**: {kind.note}." for name, kind in SAMPLERS.items()]
                gr.Markdown("\n".join(notes))
                kinds = [".png", ".json"]
                upload = gr.UploadButton("Load settings (PNG or JSON)", file_types=kinds)
                kept = gr.BrowserState([], **STORAGE)
                info = "choose one to load its settings and its seed"
                last = gr.Dropdown([], value=None, label="Last runs", info=info)
        with gr.Column(scale=2):
            shown = add_outputs(seeds)
    pictures, order = gallery.add_gallery()
    chosen = [model, sampler, num_images, steps, seeds, randomise, scored]
    run = explained(generate, models=models)
    connect_run(run, chosen, shown, buttons, [pictures, order, kept])
    order.input(gallery.show, [shown.run, order], [pictures, order], **AT_ONCE)

    # not on every change: loaded settings bring their own number of steps; the answer to the last
    # choice comes last, however long a model takes to load
    triggers, in_turn = [sampler.input, model.input], {"trigger_mode": "always_last"}
    offer = explained(own_steps, models=models)
    gr.on(triggers, offer, [model, sampler], steps, **AT_ONCE, **in_turn)
    upload.upload(explained(load_settings, models=models), upload, chosen[:-1], **AT_ONCE)
    last.input(explained(load_last, models=models), last, chosen[:-1], **AT_ONCE)
    # without a trigger: when the page opens, and when a run is kept
    gr.on(None, lambda runs: gr.update(choices=known(runs), value=None), kept, last, **AT_ONCE)
    return pictures


def add_outputs(seeds: gr.Number) -> ShownRun:
    """The components that show a run."""
    drawn, buttons = "Grid of the images that were drawn", ["download", "fullscreen"]
    grid = picture("Samples", drawn, "min(520px, 92vw)", buttons=buttons)
    text = text_box("Run")
    with gr.Row():
        archive = gr.DownloadButton("Download all (ZIP)", size="md", interactive=False)
        settings = gr.DownloadButton("Download settings (JSON)", size="md", interactive=False)
    title = "Log-likelihoods, row by row from the top left; ± holds draws and estimator"
    with gr.Accordion("Log-likelihoods", open=False):
        likelihoods = table_box(title, dict(zip(HEADERS, (90, 130, 120, 130), strict=True)))
    with gr.Accordion("From noise to images", open=False):
        way = "Animation of the images from noise to the last step"
        animation = picture("Animation", way, "min(360px, 92vw)")
    run = gr.State(time_to_live=STATE_SECONDS)
    return ShownRun(grid, text, seeds, likelihoods, animation, settings, archive, run)


def connect_run(
    run: Callable[..., Any],
    chosen: list[Component],
    shown: ShownRun,
    buttons: tuple[gr.Button, gr.Button],
    after: list[Component],
) -> None:
    """Let the buttons start and stop a run, which the gallery, its order and the last runs
    follow when it has ended."""
    downloads, (pictures, order, kept) = [shown.settings, shown.archive], after

    def begin() -> tuple[Any, ...]:
        return *gallery.show(None, ""), *[gr.update(interactive=False)] * 2

    def end(run: SampleRun | None, order: str, runs: Any) -> tuple[Any, ...]:
        unlocked = [gr.update(interactive=run is not None)] * 2
        return *gallery.show(run, order), *unlocked, remember(runs, run and run.settings)

    start, stop = buttons
    start.click(begin, None, [pictures, order, *downloads], **AT_ONCE)
    event = start_by(buttons, run, chosen, list(shown), api_name="generate")
    outputs = [pictures, order, *downloads, kept]
    event.then(end, [shown.run, order, kept], outputs, **AT_ONCE)  # after a stop too
    # last, as files take a while to write
    private = {"show_progress": "hidden", "api_visibility": "private"}
    stop.click(explained(halt), [shown.run, shown.caption], list(shown), **private)

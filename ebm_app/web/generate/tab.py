"""The tab that draws images."""

import secrets
from collections.abc import Iterator
from dataclasses import astuple, replace
from typing import NamedTuple

import gradio as gr
from PIL import Image

from ebm_app.sampling.samplers import SAMPLERS

from ..buttons import AT_ONCE, IN_TURN, STARTING, start_and_stop, start_by, stop_by, stopped
from ..explanations import explained
from ..shared import MAX_SEED, Load, picture, slider
from ..training import seed_box
from .files import write_files
from .likelihoods import HEADERS, REPEATS, table
from .run import SampleRun, generate, label
from .settings import MAX_IMAGES, MAX_STEPS, RunSettings, read_settings

STEPS = "of the ODE, or temperatures of annealing"
#: how long a run that was left alone can still be stopped and saved
STATE_SECONDS = 3600


class ShownRun(NamedTuple):
    """What the page shows of a run: the grid, a caption, the seed and the log-likelihoods; of an
    ended run its other files too; of one that can be stopped the run itself."""

    grid: Image.Image | str | None
    caption: str
    seed: int
    likelihoods: list[list[float]] | None = None
    animation: str | None = None
    settings: str | None = None
    archive: str | None = None
    run: SampleRun | None = None


def draw(
    load: Load, settings: RunSettings, with_likelihoods: bool, cache: str
) -> Iterator[ShownRun]:
    """Draw images, and write their files in the end.

    Args:
        load: the model of a name. with_likelihoods: whether the images get theirs.
        cache: the folder in which the files' own folder is made.
    """
    yield ShownRun(None, f"{STARTING} · {label(settings)}", settings.seed)
    for run in generate(load, settings, with_likelihoods):
        yield ShownRun(run.grid(), run.caption, settings.seed, table(run.likelihoods), run=run)
    yield finish(run, cache)


def finish(run: SampleRun, cache: str) -> ShownRun:
    """A run that has ended or was stopped, with its files."""
    files = write_files(run, cache)
    rows, seed = table(run.likelihoods), run.settings.seed
    return ShownRun(
        files.grid, run.caption, seed, rows, files.animation, files.settings, files.archive
    )


def stop(run: SampleRun | None, text: str, cache: str) -> ShownRun:
    """What is shown of a run that was stopped, all of it of the same step.

    Args:
        run: None where there is none with a step. text: the caption on the page.
    """
    if run is None:
        return ShownRun(*[gr.skip()] * len(ShownRun._fields))._replace(caption=stopped(text))
    shown = finish(replace(run, caption=stopped(run.caption)), cache)
    files = {"settings": shown.settings, "archive": shown.archive}
    return shown._replace(
        **{name: gr.update(value=file, interactive=True) for name, file in files.items()}
    )


class Choices(NamedTuple):
    """The components that set a run."""

    model: gr.Dropdown
    sampler: gr.Dropdown
    num_images: gr.Slider
    num_steps: gr.Slider
    seed: gr.Number
    randomise: gr.Checkbox
    with_likelihoods: gr.Checkbox


def build(load: Load, model: gr.Dropdown, seed: int) -> None:
    """Put the tab on the page, with its endpoint /generate.

    Args:
        model: the page's choice of a model. seed: the one to begin with.
    """
    with gr.Row():
        with gr.Column(scale=1):
            chosen = choices(model, seed)
            start, stop_button = start_and_stop("Generate")
            upload = gr.UploadButton("Load settings from a PNG", file_types=[".png"], size="md")
        with gr.Column(scale=2):
            shown = outputs(chosen.seed)
    connect_run(load, chosen, shown, start, stop_button)

    @explained
    def load_settings(path: str) -> tuple:
        settings = read_settings(path, [name for _, name in model.choices])
        return *astuple(settings), False

    upload.upload(
        load_settings,
        upload,
        list(chosen[:-1]),
        show_progress="hidden",  # a mistake would cover all of these
        api_visibility="private",
    )
    chosen.sampler.input(  # not on every change: loaded settings bring their own number of steps
        lambda name: SAMPLERS[name].num_steps or MAX_STEPS,
        chosen.sampler,
        chosen.num_steps,
        api_visibility="private",
    )
    chosen.with_likelihoods.change(
        lambda on: gr.update(visible=on),
        chosen.with_likelihoods,
        shown.likelihoods,
        api_visibility="private",
    )


def connect_run(
    load: Load, chosen: Choices, shown: ShownRun, start: gr.Button, stop_button: gr.Button
) -> None:
    """Let the buttons start and stop a run; its files can be downloaded when it has ended."""

    @explained
    def run(
        model: str,
        sampler: str,
        num_images: int,
        num_steps: int,
        seed: int,
        randomise: bool,
        score_images: bool,
    ) -> Iterator[ShownRun]:
        """Draw images; returns the grid as a PNG, a caption, the seed that was used, a table of
        log-likelihoods, an animated PNG, the settings as JSON, and a ZIP of all files."""
        seed = secrets.randbelow(MAX_SEED + 1) if randomise else seed
        settings = RunSettings(model, sampler, num_images, num_steps, seed)
        yield from draw(load, settings, score_images, shown.archive.GRADIO_CACHE)

    @explained
    def halt(run: SampleRun | None, text: str) -> ShownRun:
        return stop(run, text, shown.archive.GRADIO_CACHE)

    downloads = [shown.settings, shown.archive]
    # the listeners of one button go in turn, each after the one before has ended
    start.click(lambda: locked(True), None, downloads, **AT_ONCE)
    event = start_by(start.click, run, list(chosen), list(shown), api_name="generate", **IN_TURN)
    event.success(lambda: locked(False), None, downloads, **AT_ONCE)
    stop_by(stop_button, [event], halt, [shown.run, shown.caption], list(shown))


def locked(is_locked: bool) -> list[dict]:
    """Both buttons for downloads, which can be pressed or not."""
    return [gr.update(interactive=not is_locked)] * 2


def choices(model: gr.Dropdown, seed: int) -> Choices:
    """The components that set a run, with what to begin with."""
    first = next(iter(SAMPLERS))
    notes = "; ".join(f"{name}: {kind.note}" for name, kind in SAMPLERS.items())
    return Choices(
        model=model,
        sampler=gr.Dropdown(list(SAMPLERS), value=first, label="Sampler", info=notes),
        num_images=slider(1, MAX_IMAGES, 16, "Images"),
        num_steps=slider(1, MAX_STEPS, SAMPLERS[first].num_steps, "Steps", info=STEPS),
        seed=seed_box(seed),
        randomise=gr.Checkbox(True, label="New seed for every run"),
        with_likelihoods=gr.Checkbox(
            False,
            label="Log-likelihoods of the images",
            info=f"means over {REPEATS} draws of the dequantisation noise",
        ),
    )


def outputs(seeds: gr.Number) -> ShownRun:
    """The components that show a run."""
    drawn, buttons = "Grid of the images that were drawn", ["download", "fullscreen"]
    grid = picture("Samples", drawn, "min(520px, 92vw)", buttons=buttons)
    text = gr.Textbox(label="Run", interactive=False)
    with gr.Row():
        archive = gr.DownloadButton("Download all (ZIP)", size="md", interactive=False)
        settings = gr.DownloadButton("Download settings (JSON)", size="md", interactive=False)
    likelihoods = gr.Dataframe(
        headers=list(HEADERS),
        datatype="number",
        interactive=False,
        visible=False,
        wrap=True,
        column_widths=["20%", "30%", "27%", "23%"],
        label="Log-likelihoods, row by row from the top left; ± is the standard error",
    )
    with gr.Accordion("From noise to images", open=False):
        way = "Animation of the images from noise to the last step"
        animation = picture("Animation", way, "min(360px, 92vw)")
    run = gr.State(time_to_live=STATE_SECONDS)
    return ShownRun(grid, text, seeds, likelihoods, animation, settings, archive, run)

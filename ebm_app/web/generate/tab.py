"""The tab that draws images."""

import secrets
from collections.abc import Iterator
from dataclasses import astuple, replace
from typing import NamedTuple

import gradio as gr
from PIL import Image

from ebm_app.sampling.samplers import SAMPLERS

from ..ending import AT_ONCE, IN_TURN, stop_by
from ..shared import MAX_SEED, ONE_AT_A_TIME, Load, explained, explained_once
from .files import write_files
from .likelihoods import HEADERS, REPEATS, table
from .run import Run, generate, label
from .settings import MAX_IMAGES, MAX_STEPS, RunSettings, read_settings

STARTING = "Starting"
#: How long the last step of a run that was left alone can still be stopped and saved.
STATE_SECONDS = 3600


class Shown(NamedTuple):
    """What the page shows of a run: the grid, a caption, the seed and the scores; of an ended run
    its other files too; of one that can be stopped the run itself."""

    grid: Image.Image | str | None
    caption: str
    seed: int
    scores: list[list[float]] | None = None
    animation: str | None = None
    settings: str | None = None
    archive: str | None = None
    run: Run | None = None


def draw(load: Load, settings: RunSettings, scored: bool, cache: str) -> Iterator[Shown]:
    """Draw images, and write their files in the end.

    Args:
        load: the model of a name. scored: whether the images get their log-likelihoods.
        cache: the folder in which the files' own folder is made.
    """
    yield Shown(None, f"{STARTING} · {label(settings)}", settings.seed)
    for run in generate(load, settings, scored):
        yield Shown(run.grid(), run.caption, settings.seed, table(run.scores), run=run)
    yield finish(run, cache)


def finish(run: Run, cache: str) -> Shown:
    """A run that has ended or was stopped, with its files."""
    files = write_files(run, cache)
    text, seed = run.caption, run.settings.seed
    return Shown(
        files.grid, text, seed, table(run.scores), files.animation, files.settings, files.archive
    )


def stop(run: Run | None, text: str, cache: str) -> Shown:
    """What stays of a run that was stopped, all of it of the same step.

    Args:
        run: None where there is none with a step. text: the caption on the page.
    """
    if run is None:
        return Shown(*[gr.skip()] * len(Shown._fields))._replace(caption=stopped(text))
    shown = finish(replace(run, caption=stopped(run.caption)), cache)
    files = {"settings": shown.settings, "archive": shown.archive}
    return shown._replace(
        **{name: gr.update(value=file, interactive=True) for name, file in files.items()}
    )


def stopped(text: str) -> str:
    """The caption of a run that was stopped; that of an ended run stays as it is."""
    if text.startswith(STARTING):
        return text.replace(STARTING, "Stopped before the first step", 1)
    if text.startswith(("Step ", "Score ")):
        return f"Stopped after {text[0].lower()}{text[1:]}"
    return text


def locked(is_locked: bool) -> list[dict]:
    """Both buttons for downloads, which can be pressed or not."""
    return [gr.update(interactive=not is_locked)] * 2


def build(load: Load, model: gr.Dropdown, seed: int) -> None:
    """Put the tab on the page, with its endpoint /generate.

    Args:
        model: the page's choice of a model. seed: the one to begin with.
    """
    first = next(iter(SAMPLERS))
    with gr.Row():
        with gr.Column(scale=1):
            sampler = gr.Dropdown(list(SAMPLERS), value=first, label="Sampler")
            num_images = gr.Slider(1, MAX_IMAGES, value=16, step=1, label="Images")
            num_steps = gr.Slider(
                1,
                MAX_STEPS,
                value=SAMPLERS[first].num_steps,
                step=1,
                label="Steps",
                info="of the ODE, or levels of annealing",
            )
            seed_box = gr.Number(seed, label="Seed", precision=0, minimum=0, maximum=MAX_SEED)
            randomise = gr.Checkbox(True, label="New seed for every run")
            scored = gr.Checkbox(
                False,
                label="Score the images",
                info=f"log-likelihood of each, over {REPEATS} draws of the dequantisation noise",
            )
            with gr.Row():
                start_button = gr.Button("Generate", variant="primary", min_width=120)
                stop_button = gr.Button("Stop", min_width=120)
            upload = gr.UploadButton("Load settings from a PNG", file_types=[".png"], size="md")
        with gr.Column(scale=2):
            shown = outputs(seed_box)

    @explained
    def run(
        model: str,
        sampler: str,
        num_images: int,
        num_steps: int,
        seed: int,
        randomise: bool,
        score_images: bool,
    ) -> Iterator[Shown]:
        """Draw images; returns the grid as a PNG, a caption, the seed that was used, a table of
        log-likelihoods, an animated PNG, the settings as JSON, and a ZIP of all files."""
        seed = secrets.randbelow(MAX_SEED + 1) if randomise else seed
        settings = RunSettings(model, sampler, num_images, num_steps, seed)
        yield from draw(load, settings, score_images, shown.archive.GRADIO_CACHE)

    @explained_once
    def halt(run: Run | None, text: str) -> Shown:
        return stop(run, text, shown.archive.GRADIO_CACHE)

    @explained_once
    def load_settings(path: str) -> tuple:
        settings = read_settings(path, [name for _, name in model.choices])
        return *astuple(settings), False

    downloads = [shown.settings, shown.archive]
    # the listeners of one button go in turn, each after the one before has ended
    start_button.click(lambda: locked(True), None, downloads, **AT_ONCE)
    event = start_button.click(
        run,
        [model, sampler, num_images, num_steps, seed_box, randomise, scored],
        list(shown),
        api_name="generate",
        **IN_TURN,
        **ONE_AT_A_TIME,
    )
    event.success(lambda: locked(False), None, downloads, **AT_ONCE)
    stop_by(stop_button, [event], halt, [shown.run, shown.caption], list(shown))
    upload.upload(
        load_settings,
        upload,
        [model, sampler, num_images, num_steps, seed_box, randomise],
        show_progress="hidden",  # a mistake would cover all of these
        api_visibility="private",
    )
    sampler.input(  # not on every change: loaded settings bring their own number of steps
        lambda name: SAMPLERS[name].num_steps, sampler, num_steps, api_visibility="private"
    )
    scored.change(lambda on: gr.update(visible=on), scored, shown.scores, api_visibility="private")


def outputs(seed_box: gr.Number) -> Shown:
    """The components that show a run."""
    grid = gr.Image(
        label="Samples",
        format="png",
        interactive=False,
        height="min(520px, 92vw)",
        buttons=["download", "fullscreen"],
        alt_text="Grid of the images that were drawn",
        elem_classes="pixels",
    )
    text = gr.Textbox(label="Run", interactive=False)
    with gr.Row():
        archive = gr.DownloadButton("Download all (ZIP)", size="md", interactive=False)
        settings = gr.DownloadButton("Download settings (JSON)", size="md", interactive=False)
    scores = gr.Dataframe(
        headers=list(HEADERS),
        datatype="number",
        interactive=False,
        visible=False,
        wrap=True,
        column_widths=["20%", "30%", "27%", "23%"],
        label="Log-likelihoods, row by row from the top left; ± is the standard error",
    )
    with gr.Accordion("From noise to images", open=False):
        animation = gr.Image(
            label="Animation",
            format="png",
            interactive=False,
            height="min(360px, 92vw)",
            buttons=["download"],
            alt_text="Animation of the images from noise to the last step",
            elem_classes="pixels",
        )
    run = gr.State(time_to_live=STATE_SECONDS)
    return Shown(grid, text, seed_box, scores, animation, settings, archive, run)

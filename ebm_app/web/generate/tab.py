"""The tab that draws images."""

import secrets
from collections.abc import Iterator
from dataclasses import astuple, replace

import gradio as gr

from ..buttons import (
    AT_ONCE,
    IN_TURN,
    STARTING,
    STOPPED,
    start_and_stop,
    start_by,
    stop_by,
    stopped,
)
from ..explanations import explained
from ..shared import MAX_SEED, Load
from . import gallery, history
from .components import Choices, ShownRun, advanced_choices, basic_choices, outputs
from .files import write_files
from .likelihoods import table
from .run import SampleRun, generate, label
from .samplers import offer_steps
from .settings import RunSettings, read_settings, usable

HINT = (
    "Press **Generate** and watch images come out of noise; then click on one of them below to "
    "send it to the Score tab, which finds its log-likelihood."
)


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
    """A run that has ended or was stopped, with its files; of its past they hold all."""
    files = write_files(run, cache)
    rows, seed = table(run.likelihoods), run.settings.seed
    return ShownRun(
        files.grid,
        run.caption,
        seed,
        rows,
        files.animation,
        files.settings,
        files.archive,
        replace(run, past=()),
    )


def stop(run: SampleRun | None, text: str, cache: str) -> ShownRun:
    """What is shown of a run that was stopped, all of it of the same step; any other run stays as
    it is.

    Args:
        run: None where there is none with a step. text: the caption on the page.
    """
    caption = stopped(run.caption) if run else ""
    if run is None or caption == run.caption or not text.startswith(STOPPED):
        return ShownRun(*[gr.skip()] * len(ShownRun._fields))
    shown = finish(replace(run, caption=caption), cache)
    files = {"settings": shown.settings, "archive": shown.archive}
    return shown._replace(
        **{name: gr.update(value=file, interactive=True) for name, file in files.items()}
    )


def build(load: Load, model: gr.Dropdown, seed: int) -> gr.Gallery:
    """Put the tab on the page, with its endpoint /generate; the gallery of its images.

    Args:
        model: the page's choice of a model. seed: the one to begin with.
    """
    gr.Markdown(HINT)
    with gr.Row():
        with gr.Column(scale=1):
            sampler, num_images = basic_choices()
            start, stop_button = start_and_stop("Generate")
            with gr.Accordion("Advanced", open=False):
                chosen = advanced_choices(model, sampler, num_images, seed)
                upload = gr.UploadButton(
                    "Load settings (PNG or JSON)", file_types=[".png", ".json"], size="md"
                )
                kept, last = history.last_runs()
        with gr.Column(scale=2):
            shown = outputs(chosen.seed)
    pictures, order = gallery.gallery()
    connect_choices(load, chosen, shown)
    connect_loading(chosen, upload, last)
    start.click(gallery.hide, None, [pictures, order], **AT_ONCE)
    event = connect_run(load, chosen, shown, start, stop_button)
    # after a cancel too
    event.then(gallery.show, [shown.run, order], [pictures, order], **AT_ONCE)
    event.then(keep, [kept, shown.run], kept, **AT_ONCE)
    order.input(gallery.show, [shown.run, order], [pictures, order], **AT_ONCE)
    return pictures


def keep(runs: list[str], run: SampleRun | None) -> list[str]:
    """The last runs with one that has a step."""
    return history.known(runs) if run is None else history.remember(runs, run.settings)


def connect_choices(load: Load, chosen: Choices, shown: ShownRun) -> None:
    """Let the offered steps follow sampler and model, and the table the choice of its numbers."""

    @explained
    def own_steps(model: str, sampler: str) -> dict:
        return offer_steps(load(model), sampler)

    gr.on(  # not on every change: loaded settings bring their own number of steps
        [chosen.sampler.input, chosen.model.input],
        own_steps,
        [chosen.model, chosen.sampler],
        chosen.num_steps,
        **AT_ONCE,
        **IN_TURN,  # the answer to the last choice comes last, however long a model takes to load
    )
    chosen.with_likelihoods.change(
        lambda on: gr.update(visible=on),
        chosen.with_likelihoods,
        shown.likelihoods,
        api_visibility="private",
    )


def connect_loading(chosen: Choices, upload: gr.UploadButton, last: gr.Dropdown) -> None:
    """Let a file, or one of the last runs, set every choice, and keep its seed."""
    names = [name for _, name in chosen.model.choices]

    @explained
    def load_settings(path: str) -> tuple:
        return *astuple(read_settings(path, names)), False

    @explained
    def load_last(run: str) -> tuple:
        return *astuple(usable(run, names)), False

    private = {"show_progress": "hidden", "api_visibility": "private"}  # a mistake would cover all
    upload.upload(load_settings, upload, list(chosen[:-1]), **private)
    last.input(load_last, last, list(chosen[:-1]), **private)


def connect_run(
    load: Load, chosen: Choices, shown: ShownRun, start: gr.Button, stop_button: gr.Button
) -> gr.events.Dependency:
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
    event = start_by(start.click, run, list(chosen), list(shown), api_name="generate")
    event.success(lambda: locked(False), None, downloads, **AT_ONCE)
    stop_by(stop_button, [event], stopped, [shown.caption])
    # last, as files take a while to write
    stop_button.click(halt, [shown.run, shown.caption], list(shown), **AT_ONCE)
    return event


def locked(is_locked: bool) -> list[dict]:
    """Both buttons for downloads, which can be pressed or not."""
    return [gr.update(interactive=not is_locked)] * 2

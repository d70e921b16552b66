"""What the tab is made of: the components that set a run, and those that show it."""

from typing import NamedTuple

import gradio as gr
from PIL import Image

from ebm_app.sampling.samplers import SAMPLERS

from ..shared import picture, slider
from ..training import seed_box
from .likelihoods import HEADERS, REPEATS
from .run import SampleRun
from .samplers import CHOICES, NOTES
from .settings import MAX_IMAGES, MAX_STEPS

#: how long a run that was left alone can still be stopped, saved and sorted
STATE_SECONDS = 3600


class Choices(NamedTuple):
    """The components that set a run."""

    model: gr.Dropdown
    sampler: gr.Dropdown
    num_images: gr.Slider
    num_steps: gr.Slider
    seed: gr.Number
    randomise: gr.Checkbox
    with_likelihoods: gr.Checkbox


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


def basic_choices() -> tuple[gr.Dropdown, gr.Slider]:
    """The sampler and the number of images, with what to begin with."""
    first = next(iter(SAMPLERS))
    info = "how images are made out of noise"
    sampler = gr.Dropdown(CHOICES, value=first, label="Sampler", info=info)
    return sampler, slider(1, MAX_IMAGES, 16, "Images")


def advanced_choices(
    model: gr.Dropdown, sampler: gr.Dropdown, num_images: gr.Slider, seed: int
) -> Choices:
    """All choices: these, and those that a first visit does not need."""
    kind = SAMPLERS[sampler.value]
    chosen = Choices(
        model=model,
        sampler=sampler,
        num_images=num_images,
        num_steps=slider(1, MAX_STEPS, kind.num_steps, "Steps", info=kind.steps),
        seed=seed_box(seed),
        randomise=gr.Checkbox(True, label="New seed for every run"),
        with_likelihoods=gr.Checkbox(
            False,
            label="Log-likelihoods of the images",
            info=f"means over {REPEATS} draws of the dequantisation noise",
        ),
    )
    gr.Markdown(NOTES)
    return chosen


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
        label="Log-likelihoods, row by row from the top left; ± holds draws and estimator",
    )
    with gr.Accordion("From noise to images", open=False):
        way = "Animation of the images from noise to the last step"
        animation = picture("Animation", way, "min(360px, 92vw)")
    run = gr.State(time_to_live=STATE_SECONDS)
    return ShownRun(grid, text, seeds, likelihoods, animation, settings, archive, run)

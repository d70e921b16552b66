"""The tab that draws images."""

import json
import secrets
import time
from collections.abc import Iterator

import gradio as gr
from PIL import Image
from shared import MAX_SEED, ONE_AT_A_TIME, Load, explained, render

from ebm_app.samplers import SAMPLERS, Frame

MAX_IMAGES, MAX_STEPS = 64, 200
RUNNING, STOPPED = "Step", "Stopped after step"


def generate(
    load: Load,
    model: str,
    sampler: str,
    num_images: int,
    num_steps: int,
    seed: int,
    randomise: bool,
) -> Iterator[tuple[Image.Image | None, str, int]]:
    """Draw images: (grid, caption, seed) after every step of the sampler.

    Whoever stops iterating stops the sampler, and keeps the grid of the last step.

    Args:
        load: the model of a name. seed: used unless ``randomise`` asks for a fresh one.
    """
    ebm = load(model)
    seed = secrets.randbelow(MAX_SEED + 1) if randomise else seed
    settings = {"model": model, "sampler": sampler, "num_images": num_images}
    settings |= {"num_steps": num_steps, "seed": seed}
    label = f"{model} · seed {seed}"
    yield None, f"Starting · {label}", seed
    begin = time.perf_counter()
    for frame in ebm.iterate_sample(num_images, sampler, seed, num_steps=num_steps):
        grid = render(ebm.to_images(frame.x))
        grid.info["ebm_app"] = json.dumps({**settings, "step": frame.step})  # kept in the PNG
        yield grid, caption(frame, label, time.perf_counter() - begin), seed


def caption(frame: Frame, label: str, seconds: float) -> str:
    """Where a run stands and what it cost so far; ``label`` says which run."""
    done = frame.step == frame.num_steps
    parts = [f"{len(frame.x)} images" if done else f"{RUNNING} {frame.step} of {frame.num_steps}"]
    parts += [label, f"{seconds:.1f} s", f"{frame.nfe} evaluations of the score"]
    if frame.acceptance is not None:
        parts.append(f"acceptance {frame.acceptance:.2f}")
    return " · ".join(parts)


def stopped(text: str) -> str:
    """The caption of a run that was stopped; any other caption stays as it is."""
    return text.replace(RUNNING, STOPPED, 1) if text.startswith(RUNNING) else text


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
            with gr.Row():
                start = gr.Button("Generate", variant="primary")
                stop = gr.Button("Stop")
        with gr.Column(scale=2):
            grid = gr.Image(
                label="Samples",
                format="png",
                interactive=False,
                height=520,
                buttons=["download", "fullscreen"],
                alt_text="Grid of the images that were drawn",
                elem_classes="pixels",
            )
            text = gr.Textbox(label="Run", interactive=False)

    @explained
    def run(
        model: str, sampler: str, num_images: int, num_steps: int, seed: int, randomise: bool
    ) -> Iterator[tuple[Image.Image | None, str, int]]:
        """Draw images; returns the grid as a PNG, a caption, and the seed that was used."""
        yield from generate(load, model, sampler, num_images, num_steps, seed, randomise)

    event = start.click(
        run,
        [model, sampler, num_images, num_steps, seed_box, randomise],
        [grid, text, seed_box],
        api_name="generate",
        show_progress="hidden",
        **ONE_AT_A_TIME,
    )
    stop.click(stopped, text, text, cancels=event, queue=False, api_visibility="private")
    sampler.change(
        lambda name: SAMPLERS[name].num_steps, sampler, num_steps, api_visibility="private"
    )

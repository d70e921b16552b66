"""The tab that says what is known about a model, and tests it."""

from collections.abc import Callable, Iterator
from typing import Any

import gradio as gr
from matplotlib.figure import Figure

from ebm_app.errors import UserError

from ..ending import stop_by
from ..models import Models
from ..shared import ONE_AT_A_TIME, explained, explained_once, stopped
from . import card, checks, log_z

SELF_TEST = """### Self-test
Identities that every exact model satisfies, on held-out images of the model's data. With a larger
budget: `python evaluate/selftest.py MODEL`; a record in the folder of the model is shown here."""
LOG_Z = """### log Z, level by level
It is 0 where the time score is exact. Chains go from noise to the model through its levels,
`transported` by its flow or, as plain `ais`, not: then they lag behind. With more chains, and by
four more methods: `python evaluate/ais.py MODEL`."""


def build(models: Models, model: gr.Dropdown, tab: gr.Tab, seed: int) -> None:
    """Put the tab on the page.

    Args:
        model: the page's choice of a model. tab: this one. seed: of all noise.
    """
    with gr.Row():
        with gr.Column(scale=2, min_width=300):
            facts = gr.Markdown(label="What is known")
        with gr.Column(scale=3, min_width=300):
            note = gr.Textbox(label="Training", interactive=False, lines=2)
            curves = hidden_plot("Training curves")
    with gr.Accordion("Description and configuration", open=False):
        readme = gr.Textbox(label="Description", interactive=False, max_lines=30)
        config = gr.JSON(label="Configuration")
    with gr.Row():
        with gr.Column(min_width=300):
            test = build_self_test(models, model, seed)
        with gr.Column(min_width=300):
            paths = build_log_z(models, model, seed)

    @explained_once
    def fill(name: str) -> tuple[Any, ...]:
        return *describe(models, name), None, ""

    gr.on(  # a figure never stands beside another model than its own
        [tab.select, model.change],
        fill,
        model,
        [facts, note, curves, readme, config, *test, *paths],
        queue=False,
        show_progress="hidden",
        api_visibility="private",
    )


def describe(models: Models, name: str) -> tuple[Any, ...]:
    """The card of a model and the record of its self-test, as they stand on the page; of a model
    that cannot be read, the reason."""
    try:
        found = card.card(models, name)
    except UserError as error:
        return str(error), "", show(None), "", None, show(None), "", ""
    plot, text, rows = checks.recorded(models.folder(name))
    shown = (found.facts, found.note, show(found.curves), found.readme, found.config)
    return *shown, show(plot), text, rows


def show(figure: Figure | None) -> dict[str, Any]:
    """A plot; no empty box where there is none."""
    return gr.update(value=figure, visible=figure is not None)


def hidden_plot(label: str) -> gr.Plot:
    """A plot that takes no room until there is one."""
    return gr.Plot(label=label, format="png", visible=False, elem_classes="below-label")


def build_self_test(models: Models, model: gr.Dropdown, seed: int) -> list[gr.Component]:
    """The self-test; its outputs."""
    gr.Markdown(SELF_TEST)
    num_images = gr.Slider(
        *(checks.MIN_IMAGES, checks.MAX_IMAGES),
        value=checks.DEFAULT_IMAGES,
        step=1,
        label="Held-out images",
    )

    @explained
    def run(name: str, num_images: int) -> Iterator[tuple[Any, ...]]:
        for figure, words, rows in checks.self_test(
            models.load, name, num_images, seed, models.data_root
        ):
            yield show(figure), words, rows

    start, stop = build_buttons("Run the self-test")
    text = gr.Textbox(label="Result of the self-test", interactive=False, lines=2)
    plot = hidden_plot("Mean time score: 0 in an exact model")
    table = gr.Markdown(label="Checks")
    connect(run, [model, num_images], [plot, text, table], start, stop, text)
    return [plot, text, table]


def build_log_z(models: Models, model: gr.Dropdown, seed: int) -> list[gr.Component]:
    """log Z by level; its outputs."""
    gr.Markdown(LOG_Z)
    with gr.Row():
        method = gr.Dropdown(list(log_z.METHODS), label="Paths", min_width=110)
        chains = gr.Slider(
            *(2, log_z.MAX_CHAINS), log_z.DEFAULT_CHAINS, step=1, label="Chains", min_width=110
        )
        levels = gr.Slider(
            *(2, log_z.MAX_LEVELS), log_z.DEFAULT_LEVELS, step=1, label="Levels", min_width=110
        )

    @explained
    def run(name: str, method: str, chains: int, levels: int) -> Iterator[tuple[Any, ...]]:
        for figure, words in log_z.log_z(models.load, name, method, chains, levels, seed):
            yield show(figure), words

    start, stop = build_buttons("Estimate log Z")
    text = gr.Textbox(label="log Z", interactive=False, lines=2, max_lines=12)
    plot = hidden_plot("Weights and acceptance by level")
    connect(run, [model, method, chains, levels], [plot, text], start, stop, text)
    return [plot, text]


def build_buttons(action: str) -> tuple[gr.Button, gr.Button]:
    """What starts a run and what stops it."""
    with gr.Row():
        start = gr.Button(action, variant="primary", min_width=110)
        return start, gr.Button("Stop", min_width=110)


def connect(
    run: Callable[..., Iterator[Any]],
    inputs: list[gr.Component],
    outputs: list[gr.Component],
    start: gr.Button,
    stop: gr.Button,
    text: gr.Textbox,
) -> None:
    """Let buttons start and stop a run, whose text says where it stands."""
    event = start.click(
        run,
        inputs,
        outputs,
        show_progress="hidden",
        api_visibility="private",
        **ONE_AT_A_TIME,
    )
    stop_by(stop, [event], stopped, [text])

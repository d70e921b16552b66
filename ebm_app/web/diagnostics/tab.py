"""The tab that shows the card of a model, and tests it."""

from typing import Any

import gradio as gr

from ebm_app.io.errors import UserError

from ..models import Models
from ..runs import AT_ONCE, explained, start_and_stop, start_by
from ..shared import plot_box, slider, text_box
from . import card, checks

SELF_TEST = """### Self-test
Identities that every exact model satisfies, on held-out images of the model's data. For experts,
from a shell: the same with a larger budget by `python evaluate/selftest.py MODEL`, whose record in
the folder of the model is shown here, and log Z by `python evaluate/ais.py MODEL`."""


def build(models: Models, model: gr.Dropdown, line: gr.Markdown, tab: gr.Tab, seed: int) -> None:
    """Put the tab on the page, with its warning ``line`` beside the choice of a model."""
    with gr.Row():
        with gr.Column(scale=2, min_width=300):
            facts = gr.Markdown(label="Card")
        with gr.Column(scale=3, min_width=300):
            curves = plot_box("Training curves")
    with gr.Accordion("Description and configuration", open=False):
        readme = gr.Markdown(label="Description", container=True)
        config = gr.JSON(label="Configuration")
    gr.Markdown(SELF_TEST)
    num_images = slider(*checks.SIZES, checks.DEFAULT_IMAGES, "Held-out images")
    buttons = start_and_stop("Run the self-test")
    text = text_box("Result of the self-test", 6)
    test = [plot_box("Mean time score: 0 in an exact model"), text]
    given = {"models": models, "seed": seed}
    inputs = [model, num_images]
    testing = start_by(buttons, checks.self_test, inputs, test, given, is_public=False)

    def fill(name: str) -> tuple[Any, ...]:
        try:
            return tuple(card.card(models, name))
        except UserError as error:
            return str(error), None, "", None

    def begin(name: str) -> tuple[Any, ...]:
        warning, shown = checks.recorded(models.folder(name), name)
        return gr.update(value=warning, visible=bool(warning)), *shown

    # a run goes on while its card is looked at
    outputs = [facts, curves, readme, config]
    gr.on([tab.select, model.change], explained(fill), model, outputs, **AT_ONCE)
    # a result never stands beside another model than its own, and stays when the tab is left
    model.change(None, cancels=[testing], **AT_ONCE)
    gr.on(None, explained(begin), model, [line, *test], **AT_ONCE)

"""The tab that shows the card of a model, and tests it."""

from typing import Any

import gradio as gr

from ebm_app.io.errors import UserError

from ..models import Models
from ..runs import AT_ONCE, explained, start_and_stop, start_by
from ..shared import plot_box, slider, text_box
from . import card, checks, log_z

SELF_TEST = """### Self-test
Identities that every exact model satisfies, on held-out images of the model's data. With a larger
budget: `python evaluate/selftest.py MODEL`; a record in the folder of the model is shown here."""
LOG_Z = """### log Z, temperature by temperature
It is 0 where the time score is exact. Chains go from noise to the model through intermediate
distributions, with `transported` moved by the probability-flow ODE. More chains and methods:
`python evaluate/ais.py MODEL`."""


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
    with gr.Row():
        with gr.Column(min_width=300):
            gr.Markdown(SELF_TEST)
            sizes = checks.MIN_IMAGES, checks.MAX_IMAGES
            num_images = slider(*sizes, checks.DEFAULT_IMAGES, "Held-out images")
            test_buttons = start_and_stop("Run the self-test")
            text = text_box("Result of the self-test", 6)
            test = [plot_box("Mean time score: 0 in an exact model"), text]
        with gr.Column(min_width=300):
            gr.Markdown(LOG_Z)
            method = gr.Dropdown(list(log_z.METHODS), label="Method")
            with gr.Row():
                num_chains = slider(2, log_z.MAX_CHAINS, 8, "Chains", min_width=110)
                limit = log_z.MAX_TEMPERATURES
                temperatures = slider(2, limit, 16, "Temperatures", min_width=110)
            chain_buttons = start_and_stop("Estimate log Z")
            text = text_box("log Z", 2)
            chains = [plot_box("Weights and acceptance by temperature"), text]

    given = {"given": {"models": models, "seed": seed}, "is_public": False}
    testing = start_by(test_buttons, checks.self_test, [model, num_images], test, **given)
    inputs = [model, method, num_chains, temperatures]
    moving = start_by(chain_buttons, log_z.log_z, inputs, chains, **given)

    def fill(name: str) -> tuple[Any, ...]:
        try:
            return tuple(card.card(models, name))
        except UserError as error:
            return str(error), None, "", None

    def begin(name: str) -> tuple[Any, ...]:
        warning, shown = checks.recorded(models.folder(name), name)
        return gr.update(value=warning, visible=bool(warning)), *shown, None, ""

    # a run goes on while its card is looked at
    outputs = [facts, curves, readme, config]
    gr.on([tab.select, model.change], explained(fill), model, outputs, **AT_ONCE)
    # a result never stands beside another model than its own, and stays when the tab is left
    model.change(None, cancels=[testing, moving], **AT_ONCE)
    gr.on(None, explained(begin), model, [line, *test, *chains], **AT_ONCE)

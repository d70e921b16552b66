"""Page with a model selector and one tab per task."""

import logging
import traceback
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr

from ebm_app.utils.errors import UserError, shorten

from . import complete, diagnostics, generate, information, score, toy
from .models import Models, title_of
from .runs import AT_ONCE, FAILED

#: Seconds: uploaded and generated files are deleted at this age, and checked at this interval
FILE_LIFETIME = 3600


#: Folder of this package
PACKAGE = Path(__file__).resolve().parent.parent


class Page(gr.Blocks):
    """``gr.Blocks`` that report every error in one sentence, also of calls that gradio refuses."""

    async def process_api(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        try:
            return await super().process_api(*args, **kwargs)
        except gr.Error:
            raise
        except Exception as error:
            message = escape(describe_failure(error), quote=False)
            raise gr.Error(message, print_exception=False) from None


def describe_failure(error: Exception) -> str:
    """Return the message of a failed call. A malformed call is logged in one line, an error in
    this package with its traceback."""
    frames = traceback.extract_tb(error.__traceback__)[1:]  # omits the frame of ``process_api``
    if isinstance(error, UserError):
        return str(error)
    if any(PACKAGE in Path(frame.filename).parents for frame in frames):
        logging.getLogger(__name__).error("error in a call", exc_info=error)
        return FAILED
    logging.getLogger(__name__).warning("malformed call: %s", shorten(error))
    return f"Malformed call: {shorten(error)}"


def build_app(models: Models, seed: int = 0) -> gr.Blocks:
    """Build the page.

    Args:
        models: models in the selector; the first one is selected.
        seed: initial value of the seed boxes.
    """
    cache = (FILE_LIFETIME, FILE_LIFETIME)
    with Page(title="ebm_app", analytics_enabled=False, delete_cache=cache) as app:
        gr.Markdown("# ebm_app\nGenerate digits, detect unusual images, and learn density ratios.")
        with gr.Column() as selector:
            titles = [(title_of(name, path), name) for name, path in models.folders.items()]
            model = gr.Dropdown(titles, value=titles[0][1], label="Model")
        with gr.Tabs() as tabs:
            with gr.Tab("Generate") as generate_tab:
                grid = generate.build(models, model, seed)
            with gr.Tab("Score", id=score.TAB) as score_tab:
                upload, sources = score.build(models, model, seed)
            with gr.Tab("Complete") as complete_tab:
                complete.build(models, model, seed)
            with gr.Tab("Toy") as toy_tab:
                toy.build(seed, models.device)
            with gr.Tab("Mutual information") as information_tab:
                information.build(app, seed)
            with gr.Tab("Diagnostics") as diagnostics_tab:
                diagnostics.build(models, model, diagnostics_tab)
        generate.send_on_click(
            grid, model, upload, {tabs: score.TAB, sources: score.UPLOAD}, models
        )
        for selected, visible in (
            ([generate_tab, score_tab, complete_tab, diagnostics_tab], True),
            ([toy_tab, information_tab], "hidden"),  # these tabs do not use the selected model
        ):
            triggers = [tab.select for tab in selected]
            gr.on(triggers, partial(gr.update, visible=visible), outputs=selector, **AT_ONCE)
    return app

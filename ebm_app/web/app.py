"""Page with a model selector and one tab per task."""

import logging
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr
from PIL import Image

from ebm_app.utils.errors import UserError, shorten

from . import diagnostics, generate, information, score, toy
from .models import Models, title_of
from .shared import AT_ONCE, LINK_WAS_READ, MAX_SEED, TITLE, hide_folders, write_link

#: Interval in seconds of the check for old files, and age at which they are deleted
FILE_LIFETIME = (3600, 3600)
#: Folder of this package
PACKAGE = Path(__file__).resolve().parent.parent
FAILED = "Internal error; see the server log. Try another model or other settings."
BAD_IMAGE = "This file cannot be read as an image, or it is too large. Choose another file."
BAD_IMAGE_ERRORS = (Image.UnidentifiedImageError, Image.DecompressionBombError)


class Page(gr.Blocks):
    """``gr.Blocks`` that report any error in one sentence, also those of malformed calls."""

    async def process_api(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        try:
            return await super().process_api(*args, **kwargs)
        except Exception as error:
            # browsers render the message as HTML
            message = escape(describe_failure(error), quote=False)
            raise gr.Error(message, print_exception=False) from None


def describe_failure(error: Exception) -> str:
    """Return the message of a failed call. Log malformed calls in one line, and errors in this
    package with their traceback."""
    frames = traceback.extract_tb(error.__traceback__)[1:]  # omits the frame of ``process_api``
    if isinstance(error, UserError):
        return hide_folders(str(error))
    if isinstance(error, gr.Error):
        return shorten(error.message)
    # gradio wraps the errors of its components
    if isinstance(error.__cause__ or error.__context__ or error, BAD_IMAGE_ERRORS):
        return BAD_IMAGE
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
    with Page(title=TITLE, analytics_enabled=False, delete_cache=FILE_LIFETIME) as app:
        gr.Markdown(f"# {TITLE}")
        with gr.Column() as selector:
            titles = [(title_of(name, path), name) for name, path in models.folders.items()]
            model = gr.Dropdown(titles, value=titles[0][1], label="Model")
        with gr.Tabs() as tabs:
            with gr.Tab("Score", id="score") as score_tab:
                upload, sources = score.build(models, model, seed)
            with gr.Tab("Generate", id="generate") as generate_tab:
                images, linked = generate.build(models, model, seed)
            with gr.Tab("For researchers", id="research") as research_tab:
                with gr.Tab("Model") as model_tab:
                    diagnostics.build(models, model, [research_tab, model_tab])
                with gr.Tab("Toy") as toy_tab:
                    toy.build(seed, models.device)
                with gr.Tab("Mutual information") as information_tab:
                    information.build(seed, models.device)
        generate.send_on_click(images, upload, {tabs: "score", sources: score.UPLOAD})
        for selected, visible in (
            ([score_tab, generate_tab, model_tab], True),
            ([toy_tab, information_tab], "hidden"),  # these tabs do not use the selected model
        ):
            triggers = [tab.select for tab in selected]
            gr.on(triggers, partial(gr.update, visible=visible), outputs=selector, **AT_ONCE)
        top = {tab.id: tab for tab in (score_tab, generate_tab, research_tab)}
        for name, tab in top.items():
            tab.select(None, js=write_link(tab=name), **AT_ONCE)
        model.input(None, model, js=write_link("model"), **AT_ONCE)

        def read_link(request: gr.Request) -> list[Any]:
            return link_updates(request.query_params, models, list(top))

        loaded = app.load(read_link, None, [model, tabs, *linked], **AT_ONCE)
        loaded.then(None, js=LINK_WAS_READ, **AT_ONCE)
    return app


def link_updates(parameters: Mapping[str, str], models: Models, tabs: Sequence[str]) -> list[Any]:
    """Return updates of model, tabs, class, guidance scale, seed and the checkbox for new seeds
    from the query parameters of an address. Invalid values are ignored."""
    name, tab = parameters.get("model"), parameters.get("tab")
    name = name if name in models.folders else next(iter(models.folders))
    which, guided = generate.class_options(name, parameters.get("class"), models=models)
    guidance_scale = read_number(parameters, "guidance_scale", generate.MAX_GUIDANCE)
    seed = read_number(parameters, "seed", MAX_SEED)
    return [
        name,
        gr.update(selected=tab) if tab in tabs else gr.skip(),
        which,
        guided if guidance_scale is None else {**guided, "value": guidance_scale},
        gr.skip() if seed is None else int(seed),
        gr.skip() if seed is None else False,
    ]


def read_number(parameters: Mapping[str, str], name: str, most: float) -> float | None:
    """Return a query parameter as a number from 0 to ``most``, or None if it is invalid.

    >>> read_number({"seed": "7"}, "seed", 9), read_number({"seed": "-1"}, "seed", 9)
    (7.0, None)
    """
    with suppress(KeyError, ValueError):
        value = float(parameters[name])
        return value if 0 <= value <= most else None
    return None

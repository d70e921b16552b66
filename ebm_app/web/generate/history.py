"""The last runs of a visitor, which the visitor's browser keeps."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import gradio as gr

from ebm_app.io.errors import UserError

from ..buttons import AT_ONCE
from .samplers import LABELS
from .settings import RunSettings, parse_settings

MAX_RUNS = 10
#: where the browser keeps them; the key hides nothing, but a new one would lose them
STORAGE = {"storage_key": "ebm_app.io", "secret": "ebm_app.io"}


def remember(runs: Any, settings: RunSettings) -> list[str]:
    """The last runs with another one in front, each as JSON; the same settings are kept once."""
    new = json.dumps(asdict(settings))
    return [new, *(run for run in known(runs) if run != new)][:MAX_RUNS]


def known(runs: Any) -> list[str]:
    """Those of the runs that a browser kept which are settings: it may hold those of an older
    page, or anything."""
    return [run for run in runs if _is_settings(run)] if isinstance(runs, list) else []


def _is_settings(run: Any) -> bool:
    try:
        return isinstance(run, str) and bool(parse_settings(run))
    except UserError:
        return False


def choices(runs: Iterable[str]) -> list[tuple[str, str]]:
    """What a dropdown shows of each of the last runs, and its JSON."""
    return [(describe(parse_settings(run)), run) for run in runs]


def describe(settings: RunSettings) -> str:
    """A run in a line."""
    sampler = LABELS[settings.sampler].partition(" (")[0]
    parts = [settings.model, sampler, f"{settings.num_images} images"]
    return " · ".join([*parts, f"{settings.num_steps} steps", f"seed {settings.seed}"])


def last_runs() -> tuple[gr.BrowserState, gr.Dropdown]:
    """What the browser keeps, and the choice of one of them, which follows it."""
    kept = gr.BrowserState([], **STORAGE)
    chosen = gr.Dropdown(
        [], value=None, label="Last runs", info="choose one to load its settings and its seed"
    )
    gr.on(  # without a trigger: when the page opens, and when a run is kept
        None,
        lambda runs: gr.update(choices=choices(known(runs)), value=None),
        kept,
        chosen,
        show_progress="hidden",
        **AT_ONCE,
    )
    return kept, chosen

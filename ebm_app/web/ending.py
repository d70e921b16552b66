"""The end of a run: by a button, or by another choice, with which its results no longer belong."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import gradio as gr
from gradio.components import Component

AT_ONCE = {"queue": False, "api_visibility": "private"}
#: of a run that can be ended: a press while it ends is not lost, but starts the next one
IN_TURN = {"trigger_mode": "always_last", "show_progress": "hidden"}


def stop_by(
    button: gr.Button,
    events: Sequence[Any],
    stopped: Callable[..., Any],
    inputs: list[Component],
    outputs: list[Component] | None = None,
) -> None:
    """Let a button end runs and then say so in their texts, or in other outputs."""
    button.click(None, cancels=list(events), **AT_ONCE)
    # after the cancel no step comes any more
    button.click(stopped, inputs, inputs if outputs is None else outputs, **AT_ONCE)


def empty_by(
    triggers: Sequence[Callable], events: Sequence[Any], outputs: list[Component]
) -> None:
    """Let another choice end runs and then empty what they filled: no result stands beside another
    image or model than its own.

    The emptying is the browser's, at once: an answer of a server might come after a new result.
    """
    gr.on(triggers, None, cancels=list(events), **AT_ONCE)
    blanks = json.dumps([_blank(output) for output in outputs])
    gr.on(triggers, None, None, outputs, js=f"() => {blanks}", **AT_ONCE)


def _blank(output: Component) -> Any:
    if isinstance(output, gr.Textbox):
        return ""
    value = output.postprocess(None)
    return value.model_dump() if hasattr(value, "model_dump") else value

"""The buttons of a run: one starts it, one stops it; another choice stops it and empties what it
filled."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import gradio as gr
from gradio.components import Component
from gradio.events import Dependency

#: what a device computes for visitors, one at a time
ONE_AT_A_TIME = {"concurrency_id": "device", "concurrency_limit": 1}
AT_ONCE = {"queue": False, "api_visibility": "private"}
#: a press of the start button while its run ends is kept, and starts the next run
IN_TURN = {"trigger_mode": "always_last"}
#: beginnings of the text of a run that has not ended
STARTING, RUNNING = "Starting", "Step"


def stopped(text: str) -> str:
    """What the text of a run becomes when it is stopped; that of an ended run stays as it is."""
    if text.startswith(STARTING):
        return text.replace(STARTING, "Stopped before the first step", 1)
    if text.startswith(RUNNING):
        return text.replace(RUNNING, "Stopped after step", 1)
    return text


def start_and_stop(action: str) -> tuple[gr.Button, gr.Button]:
    """What starts a run and what stops it."""
    with gr.Row():
        start = gr.Button(action, variant="primary", min_width=110)
        return start, gr.Button("Stop", min_width=110)


def start_by(
    trigger: Callable[..., Dependency],
    run: Callable[..., Any],
    inputs: list[Component],
    outputs: list[Component],
    **settings: Any,
) -> Dependency:
    """Let a trigger, e.g. ``button.click``, start a run in the one slot of the device.

    Args:
        settings: of gradio's listener, e.g. ``api_name``.
    """
    return trigger(run, inputs, outputs, show_progress="hidden", **ONE_AT_A_TIME, **settings)


def stop_by(
    button: gr.Button,
    events: Sequence[Dependency],
    stopped: Callable[..., Any],
    inputs: list[Component],
    outputs: list[Component] | None = None,
) -> None:
    """Let a button end runs and then say so in their texts, or in other outputs."""
    button.click(None, cancels=list(events), **AT_ONCE)
    # after the cancel no step comes any more
    button.click(stopped, inputs, inputs if outputs is None else outputs, **AT_ONCE)


def empty_by(
    triggers: Sequence[Callable], events: Sequence[Dependency], outputs: list[Component]
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

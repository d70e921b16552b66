"""The buttons of a run: one starts it, one stops it; another choice stops it and empties what it
filled."""

import json
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import gradio as gr
from gradio.components import Component
from gradio.events import Dependency

from .device import LONG, Lane, on_device

AT_ONCE = {"queue": False, "api_visibility": "private"}
#: a press of the start button while its run ends is kept, and starts the next run
IN_TURN = {"trigger_mode": "always_last"}
#: the text of a run between the press and its beginning, and when it is stopped before that
WAITING = "Waiting for a free place: one run of its kind is computed at a time"
NEVER_BEGUN, STOPPED = "Stopped before the first step", "Stopped after step"
#: beginnings of the text of a run that has not ended
STARTING, RUNNING = "Starting", "Step"
LEFT = re.compile(r", about \d+ (?:s|min) left")


def time_left(seconds: float, done: int, total: int) -> str:
    """What to write after the seconds that ``done`` of ``total`` equal parts of a run took: how
    long the rest will take; "" where nothing is left. (gr.Progress is gone when a run is stopped.)

    >>> time_left(3.0, 1, 5), time_left(100.0, 1, 5), time_left(3.0, 5, 5)
    (', about 12 s left', ', about 7 min left', '')
    """
    if done == total:
        return ""
    left = math.ceil(seconds / done * (total - done))
    return f", about {left} s left" if left < 120 else f", about {round(left / 60)} min left"


def stopped(text: str) -> str:
    """What the text of a run becomes when it is stopped, without the time that was left; that of
    an ended run stays as it is."""
    text = LEFT.sub("", text)
    if text.startswith(STARTING):
        return text.replace(STARTING, NEVER_BEGUN, 1)
    if text.startswith(RUNNING):
        return text.replace(RUNNING, STOPPED, 1)
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
    lane: Lane = LONG,
    **settings: Any,
) -> Dependency:
    """Let a trigger, e.g. ``button.click``, start a run, which waits for the others of its lane.

    The first text box among the outputs says at once that the run waits, and gradio adds the place
    in the queue.

    Args:
        run: a generator. settings: of gradio's listener, e.g. ``api_name``.
    """
    text = next(output for output in outputs if isinstance(output, gr.Textbox))
    trigger(None, None, text, js=f"() => {json.dumps(WAITING)}", **AT_ONCE)
    progress = {"show_progress": "minimal", "show_progress_on": text}
    one_at_a_time = {"concurrency_id": lane.name, "concurrency_limit": 1}
    settings = {**one_at_a_time, **IN_TURN, **progress, **settings}
    event = trigger(on_device(run, lane), inputs, outputs, **settings)
    event.failure(None, text, text, js=_instead_of_waiting(""), **AT_ONCE)
    return event


def _instead_of_waiting(text: str) -> str:
    return f"(found) => found === {json.dumps(WAITING)} ? {json.dumps(text)} : found"


def stop_by(
    button: gr.Button,
    events: Sequence[Dependency],
    stopped: Callable[..., Any],
    texts: list[gr.Textbox],
) -> None:
    """Let a button end runs and then say so in their texts."""
    button.click(None, cancels=list(events), **AT_ONCE)
    for text in texts:
        button.click(None, text, text, js=_instead_of_waiting(NEVER_BEGUN), **AT_ONCE)
    # after the cancel no step comes any more
    button.click(stopped, texts, texts, **AT_ONCE)


def empty_by(
    triggers: Sequence[Callable], events: Sequence[Dependency], outputs: list[Component]
) -> None:
    """Let another choice end runs and then empty what they filled: no result stands beside another
    image or model than its own.

    The emptying is the browser's, at once: an answer of a server might come after a new result.
    """
    gr.on(triggers, None, cancels=list(events), **AT_ONCE)
    gr.on(triggers, None, None, outputs, js=f"() => {_blanks(outputs)}", **AT_ONCE)


def empty_own_by(
    trigger: Callable[..., Dependency],
    start: gr.Button,
    others: Sequence[gr.Button],
    event: Dependency,
    outputs: list[Component],
) -> None:
    """The same for a trigger that may come without a visitor's doing: only what ``start`` began,
    with its ``event``, is ended and emptied, and not what other buttons began.

    A canvas says that it was drawn on when it is ready, which may be long after the page is.
    """
    own = json.dumps(f"run of {start._id}")
    start.click(None, js=f"() => {{ window[{own}] = true }}", **AT_ONCE)
    for other in others:
        other.click(None, js=f"() => {{ window[{own}] = false }}", **AT_ONCE)
    trigger(None, cancels=[event], **AT_ONCE)
    same = json.dumps([gr.skip()] * len(outputs))
    trigger(
        None, None, outputs, js=f"() => window[{own}] ? {_blanks(outputs)} : {same}", **AT_ONCE
    )


def _blanks(outputs: list[Component]) -> str:
    return json.dumps([_blank(output) for output in outputs])


def _blank(output: Component) -> Any:
    if isinstance(output, gr.Textbox):
        return ""
    if isinstance(output, gr.Plot) and not output.visible:  # it takes no room without a figure
        return gr.update(value=None, visible=False)
    value = output.postprocess(None)
    return value.model_dump() if hasattr(value, "model_dump") else value

"""Runs on the page: how they start, share the processor, stop, and report errors.

A run is a generator that yields the values of its outputs at every step.
"""

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import wraps
from html import escape, unescape
from typing import Annotated, Any

import gradio as gr
from gradio.components import Component
from gradio.events import Dependency
from pydantic import BeforeValidator, ConfigDict, ValidationError, validate_call

from ebm_app.utils.errors import UserError, describe_errors

#: Threads that compute the steps of runs. Runs of one lane alternate step by step; quick runs,
#: which take seconds, do not wait for long ones.
LANES = {name: ThreadPoolExecutor(1, name) for name in ("long", "quick")}
#: Max concurrent runs of a lane. Further runs wait in the queue.
MAX_RUNS = 8
WAITING = "Waiting for other runs"
FAILED = "Internal error; see the server log. Try another model or other settings."
STOPPED, NOT_STARTED, NOT_DONE = "Stopped · ", "Stopped before the first step", "Not done: "
#: Options of an event that bypasses the queue and is hidden from the API
AT_ONCE = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}


def path_of(value: Any) -> Any:
    """Return the path of an uploaded file, or of the flattened image of a canvas; other values
    unchanged. Gradio has checked that the path is an upload."""
    value = value.get("composite", value) or "" if isinstance(value, dict) else value
    return value["path"] if isinstance(value, dict) and "path" in value else value


#: Path of an uploaded file or a drawing, as an argument of a run
Upload = Annotated[str, BeforeValidator(path_of)]


def handler(function: Callable[..., Any], **fixed: Any) -> Callable[..., Any]:
    """Return a function or generator as an event handler.

    Arguments are validated against the annotations. A UserError or an invalid argument becomes a
    message to the visitor; any other exception is logged and becomes ``FAILED``.

    Args:
        function: the function. Its parameters, without the fixed ones, are those of the endpoint.
        fixed: keyword arguments that the page sets, hidden from visitors.
    """
    signature = inspect.signature(function)
    parameters = [part for name, part in signature.parameters.items() if name not in fixed]
    checked = validate_call(function, config=ConfigDict(arbitrary_types_allowed=True))

    @contextmanager
    def reported() -> Iterator[None]:
        try:
            yield
        except (UserError, ValidationError) as error:
            message = describe_errors(error)
        except Exception:
            logging.getLogger(__name__).exception("error in %s", function.__name__)
            message = FAILED
        else:
            return
        # browsers render the message as HTML
        raise gr.Error(escape(message, quote=False), print_exception=False) from None

    def call(*args: Any) -> Any:
        names = (part.name for part in parameters)
        return checked(**dict(zip(names, args, strict=False)), **fixed)

    @wraps(function)
    def iterate(*args: Any) -> Iterator[Any]:
        with reported():
            yield from call(*args)

    is_generator = inspect.isgeneratorfunction(function)
    wrapped = iterate if is_generator else wraps(function)(reported()(call))
    wrapped.__signature__ = signature.replace(parameters=parameters)
    return wrapped


def in_lane(
    run: Callable[..., Iterator[Any]], lane: str, outputs: Sequence[Component], text: Component
) -> Callable[..., AsyncIterator[Any]]:
    """Return a run as an async generator whose steps are computed by the thread of a lane.

    An error message is also written into the output ``text``, where it outlives the pop-up.
    Cancelling returns at once: the current step finishes in the background, its result is
    dropped, and other runs of the lane continue after it.
    """

    async def steps(*args: Any) -> AsyncIterator[Any]:
        iterator, loop = run(*args), asyncio.get_running_loop()
        try:
            while (
                values := await loop.run_in_executor(LANES[lane], next, iterator, None)
            ) is not None:
                yield values
        except gr.Error as error:
            reason = f"{NOT_DONE}{unescape(error.message)}"
            # keep the seed; skipping other outputs would exempt their files from deletion
            kept = {output: gr.skip() for output in outputs if isinstance(output, gr.Number)}
            yield [reason if output is text else kept.get(output) for output in outputs]
            raise
        finally:
            LANES[lane].submit(iterator.close)  # in the same thread, after the current step

    steps.__signature__ = inspect.signature(run)
    steps.__name__, steps.__doc__ = run.__name__, run.__doc__
    return steps


def start_and_stop(action: str) -> tuple[gr.Button, gr.Button]:
    """Buttons that start and stop a run."""
    with gr.Row():
        start = gr.Button(action, variant="primary", min_width=110)
        return start, gr.Button("Stop", min_width=110, interactive=False)


def start_by(
    buttons: Sequence[gr.Button],
    run: Callable[..., Iterator[Any]],
    inputs: Sequence[Component],
    outputs: Sequence[Component],
    fixed: dict[str, Any] | None = None,
    lane: str = "long",
) -> Dependency:
    """Let the first button start a run and the second one stop it; return the event of the run.

    All buttons except the second one are disabled while the run lasts. The first text box among
    the outputs shows the progress.
    """
    start, stop, *_ = buttons
    text = next(output for output in outputs if isinstance(output, gr.Textbox))

    def pressed(is_running: bool) -> list[dict[str, Any]]:
        return [gr.update(interactive=is_running == (button is stop)) for button in buttons]

    start.click(lambda: [WAITING, *pressed(True)], None, [text, *buttons], **AT_ONCE)
    event = start.click(
        in_lane(handler(run, **fixed or {}), lane, outputs, text),
        list(inputs),
        list(outputs),
        preprocess=False,
        concurrency_id=lane,
        concurrency_limit=MAX_RUNS,
        show_progress="hidden",  # gradio's estimate ignores other runs of the lane
        api_name=run.__name__,
    )
    # the queue is full; all other failures have replaced the text
    event.failure(lambda t: NOT_STARTED if t == WAITING else gr.skip(), text, text, **AT_ONCE)
    event.then(lambda: pressed(False), None, list(buttons), **AT_ONCE)  # also after a stop
    stop.click(None, cancels=[event], **AT_ONCE)
    stop.click(stopped_text, text, text, **AT_ONCE)
    return event


def stopped_text(text: str) -> str:
    """Return the progress text of a run that was stopped."""
    if text.startswith((STOPPED, NOT_STARTED, NOT_DONE)):
        return text
    return NOT_STARTED if text == WAITING else f"{STOPPED}{text}"


def clear_on(
    triggers: Sequence[Callable[..., Any]],
    events: Sequence[Dependency],
    outputs: Sequence[Component],
) -> None:
    """Let a change of an input stop the runs and clear their outputs, so that no result of an
    earlier input is shown."""
    gr.on(triggers, None, cancels=list(events), **AT_ONCE)
    gr.on(triggers, lambda: [None] * len(outputs), None, list(outputs), **AT_ONCE)

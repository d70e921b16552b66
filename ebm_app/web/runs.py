"""Runs on the page: what a press starts, step by step, how it is stopped, and how mistakes reach
the visitor."""

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import wraps
from html import escape, unescape
from typing import Annotated, Any
from weakref import WeakValueDictionary

import gradio as gr
from gradio.components import Component
from gradio.events import Dependency
from pydantic import BeforeValidator, ConfigDict, ValidationError, validate_call

from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import describe_errors

#: runs of minutes take turns, a step each, and so do those of seconds, which wait for no others
LANES = {name: ThreadPoolExecutor(1, name) for name in ("long", "quick")}
#: runs of a lane that take turns; others wait until one of them has ended
MAX_RUNS = 8
#: of every visitor, the turn of a run of minutes
TURNS: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
WAITING = "Waiting: visitors take turns, and each has one run at a time"
FAILED = "This failed on the server, whose log says why: try another model or other settings"
STOPPED, NEVER_BEGUN, NOT_DONE = "Stopped · ", "Stopped before the first step", "Not done: "
#: settings of an event that is answered at once, and is no endpoint for programs
AT_ONCE = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}


def path_of(value: Any) -> Any:
    """The path of an uploaded file, or of all strokes of a canvas on its ground, which gradio has
    checked to be one; other values as they are."""
    value = value.get("composite", value) or "" if isinstance(value, dict) else value
    return value["path"] if isinstance(value, dict) and "path" in value else value


#: an uploaded file or a drawing, as an argument of a run
Upload = Annotated[str, BeforeValidator(path_of)]


def explained(handler: Callable[..., Any], **given: Any) -> Callable[..., Any]:
    """A function or generator for an event: its arguments are held to its annotations, those
    ``given`` being the page's own, and its mistakes are told to the visitor; those of the program
    go to the log."""
    signature = inspect.signature(handler)
    parameters = [part for name, part in signature.parameters.items() if name not in given]
    checked = validate_call(handler, config=ConfigDict(arbitrary_types_allowed=True))

    @contextmanager
    def explaining() -> Iterator[None]:
        try:
            yield
        except UserError as error:
            message = str(error)
        except ValidationError as error:
            message = describe_errors(error)
        except Exception:
            logging.getLogger(__name__).exception("error in %s", handler.__name__)
            message = FAILED
        else:
            return
        # a browser takes the message for HTML
        raise gr.Error(escape(message, quote=False), print_exception=False) from None

    def call(*args: Any) -> Any:
        names = (part.name for part in parameters)
        return checked(**dict(zip(names, args, strict=False)), **given)

    @wraps(handler)
    def iterate(*args: Any) -> Iterator[Any]:
        with explaining():
            yield from call(*args)

    is_stepwise = inspect.isgeneratorfunction(handler)
    found = iterate if is_stepwise else wraps(handler)(explaining()(call))
    found.__signature__ = signature.replace(parameters=parameters)
    return found


def stepwise(
    run: Callable[..., Iterator[Any]], lane: str, outputs: Sequence[Component], text: Component
) -> Callable[..., AsyncIterator[Any]]:
    """A generator whose steps are computed by the thread of a lane, in turns with others; of
    "long" ones, those of a visitor are computed one after the other. Why it fails is written into
    the text among its outputs, where the reason stays when the message of it is gone.

    Whoever cancels it is let go at once. The step at which it was is computed to its end, since no
    thread can be interrupted; its result is dropped, and the steps of others come after it.
    """

    async def steps(request: gr.Request, *args: Any) -> AsyncIterator[Any]:
        iterator, loop = run(*args), asyncio.get_running_loop()
        visitor = f"{lane}{request.session_hash if lane == 'long' else id(iterator)}"
        async with TURNS.setdefault(visitor, asyncio.Lock()):
            try:
                while True:
                    shown = await loop.run_in_executor(LANES[lane], next, iterator, None)
                    if shown is None:
                        return
                    yield shown
            except gr.Error as error:
                reason = f"{NOT_DONE}{unescape(error.message)}"
                # a component that is skipped no longer has its files deleted in time
                kept = {output: gr.skip() for output in outputs if isinstance(output, gr.Number)}
                yield [reason if output is text else kept.get(output) for output in outputs]
                raise
            finally:
                LANES[lane].submit(iterator.close)  # by that thread: after the step

    signature = inspect.signature(run)
    asked = inspect.Parameter("request", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = [asked.replace(annotation=gr.Request), *signature.parameters.values()]
    steps.__signature__ = signature.replace(parameters=parameters)
    steps.__name__, steps.__doc__ = run.__name__, run.__doc__
    return steps


def start_and_stop(action: str) -> tuple[gr.Button, gr.Button]:
    """What starts a run and what stops it."""
    with gr.Row():
        start = gr.Button(action, variant="primary", min_width=110)
        return start, gr.Button("Stop", min_width=110, interactive=False)


def start_by(
    buttons: Sequence[gr.Button],
    run: Callable[..., Iterator[Any]],
    inputs: Sequence[Component],
    outputs: Sequence[Component],
    given: dict[str, Any] | None = None,
    lane: str = "long",
    is_public: bool = True,
) -> Dependency:
    """Let the first of some buttons start a run, a generator to be ``explained``, which takes
    turns with others of its lane, and the second stop it while it waits or goes on. The first text
    among its outputs says where it stands."""
    start, stop, *_ = buttons
    text = next(output for output in outputs if isinstance(output, gr.Textbox))

    def pressed(is_running: bool) -> list[dict[str, Any]]:
        return [gr.update(interactive=is_running == (button is stop)) for button in buttons]

    start.click(lambda: [WAITING, *pressed(True)], None, [text, *buttons], **AT_ONCE)
    # the listeners of a button are called in turn. Arguments are checked by ``explained``
    event = start.click(
        stepwise(explained(run, **given or {}), lane, outputs, text),
        list(inputs),
        list(outputs),
        preprocess=False,
        concurrency_id=lane,
        concurrency_limit=MAX_RUNS,
        show_progress="hidden",  # its waiting time is that of an empty queue
        api_name=run.__name__,
        api_visibility="public" if is_public else "private",
    )
    # where the queue is full; later a run says why by itself, or another choice has ended it
    event.failure(lambda t: NEVER_BEGUN if t == WAITING else gr.skip(), text, text, **AT_ONCE)
    event.then(lambda: pressed(False), None, list(buttons), **AT_ONCE)  # after a stop too
    stop.click(None, cancels=[event], **AT_ONCE)
    # after the cancel no step comes any more
    stop.click(ended, text, text, **AT_ONCE)
    return event


def ended(text: str) -> str:
    """What the text of a run becomes when it is stopped."""
    if text.startswith((STOPPED, NEVER_BEGUN, NOT_DONE)):
        return text
    return NEVER_BEGUN if text == WAITING else f"{STOPPED}{text}"


def empty_by(
    triggers: Sequence[Callable[..., Any]],
    events: Sequence[Dependency],
    outputs: Sequence[Component],
) -> None:
    """Let another choice end runs and then empty what they filled: no result stands beside another
    image or model than its own."""
    gr.on(triggers, None, cancels=list(events), **AT_ONCE)
    gr.on(triggers, lambda: [None] * len(outputs), None, list(outputs), **AT_ONCE)

"""Components, event options and links that the tabs share."""

import json
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

import gradio as gr
from gradio.events import Dependency
from gradio.processing_utils import save_pil_to_cache
from gradio.utils import get_upload_folder
from PIL import Image
from torch import Tensor

from ebm_app.data.pictures import image_grid, to_pil
from ebm_app.sampling.base import Frame

Outputs = TypeVar("Outputs")
TITLE = "Draw a digit: how likely is it?"
MAX_SEED = 2**31 - 1
#: Min seconds between two updates of the images of a run
INTERVAL = 0.5
#: Options of an event that bypasses the queue and is hidden from the API
AT_ONCE = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
#: Options of a queued event by its kind. Events above the limit of their kind wait.
QUEUES = {
    kind: {"concurrency_id": kind, "concurrency_limit": limit}
    for kind, limit in (("sample", 2), ("score", 2), ("research", 1))
}
#: Folder of an absolute path in a message, quoted or not
FOLDER = re.compile(r"(?<=')/[^']*/|(?<![\w:/])/(?:[^/\s']+/)+")
#: JavaScript that records that the page has read its address
LINK_WAS_READ = "() => { window.linkWasRead = true; }"
#: JavaScript that writes values by name into the address of the browser. It does nothing until the
#: page has read its address, because the first tab is selected before that.
WRITE_LINK = """(...values) => {
  if (!window.linkWasRead) return;
  const names = NAMES, address = new URL(window.location);
  for (const [name, value] of Object.entries(FIXED)) address.searchParams.set(name, value);
  names.forEach((name, place) => address.searchParams.set(name, values[place]));
  window.history.replaceState(window.history.state, "", address);
}"""


class NewestRun:
    """Stops the run of a visitor when the same visitor starts another one.

    An event with ``cancels`` may also cancel the run that follows, because it cancels all runs of
    an event in a session, and the browser does not wait for it.
    """

    def __init__(self) -> None:
        #: Session -> its newest run
        self.runs: dict[object, object] = {}

    def follow(self, outputs: Iterator[Outputs], request: gr.Request | None) -> Iterator[Outputs]:
        """Yield outputs until a newer run starts. A client of the API, unlike a browser, may have
        several runs at a time."""
        run = session = object()
        if request is not None and request.headers.get("x-gradio-user") == "app":
            session = request.session_hash
        self.runs[session] = run
        try:
            for output in outputs:
                if self.runs.get(session) is not run:
                    return
                yield output
        finally:
            if self.runs.get(session) is run:
                del self.runs[session]


def hide_folders(message: str) -> str:
    """Remove the folders of files on the server from a message.

    >>> hide_folders("Cannot read '/srv/my runs/a/config.json': no such file.")
    "Cannot read 'config.json': no such file."
    """
    return FOLDER.sub("", message)


def start_and_stop(action: str) -> tuple[gr.Button, gr.Button]:
    """Return buttons that start and stop a run."""
    with gr.Row():
        start = gr.Button(action, variant="primary", min_width=110)
        return start, gr.Button("Stop", min_width=110)


def start_by(
    buttons: tuple[gr.Button, gr.Button],
    run: Callable[..., Any],
    inputs: list[gr.Component],
    outputs: list[gr.Component],
    kind: str,
    **fixed: Any,
) -> Dependency:
    """Start an endpoint with the first button and stop it with the second. Return its event.

    ``fixed`` are keyword arguments of ``run`` that are not inputs of the endpoint.
    """
    start, stop = buttons
    text = [output for output in outputs if isinstance(output, gr.Textbox)]
    options = {"api_name": run.__name__, "show_progress_on": text, **QUEUES[kind]}
    bound = partial(run, **fixed)
    bound.__doc__ = run.__doc__  # the description of the API
    event = start.click(bound, inputs, outputs, **options)
    stop.click(None, cancels=[event], **AT_ONCE)
    return event


def clear_on(
    triggers: list[Callable[..., Any]], events: list[Dependency], outputs: list[gr.Component]
) -> None:
    """Stop the events and clear their outputs on an action of the visitor, so that no outdated
    result is shown. ``triggers`` cannot be change events, which may fire during the next run."""
    gr.on(triggers, None, cancels=events, **AT_ONCE)
    gr.on(triggers, lambda: [None] * len(outputs), None, outputs, **AT_ONCE)


def render(images: Tensor, min_pixels: int = 480) -> Image.Image:
    """Return images (B, C, H, W) in [0, 1] as a grid, enlarged by repeating pixels."""
    return to_pil(image_grid(images, min_pixels))


def save_once(image: Image.Image) -> str:
    """Save an image and return its path. Gradio writes the file of an image again for every output
    of a run, also while the browser reads it, but not that of a path."""
    return save_pil_to_cache(image, get_upload_folder(), format="png")


def at_intervals(frames: Iterable[Frame]) -> Iterator[Frame]:
    """Yield the first and the last frame, and between them frames at least ``INTERVAL`` apart."""
    shown = -math.inf
    for frame in frames:
        if frame.step in (1, frame.num_steps) or time.perf_counter() - shown > INTERVAL:
            shown = time.perf_counter()
            yield frame


def progress(frame: Frame, result: str, begin: float) -> str:
    """Return the step of a run, or at its end the result, and the seconds since ``begin``."""
    head = result if frame.step == frame.num_steps else f"Step {frame.step} of {frame.num_steps}"
    return f"{head} in {time.perf_counter() - begin:.1f} s"


def write_link(*names: str, **fixed: str) -> str:
    """Return JavaScript that writes the inputs of an event, by ``names``, and ``fixed`` values
    into the address of the browser.

    >>> "tab" in write_link("model", tab="score")
    True
    """
    return WRITE_LINK.replace("NAMES", json.dumps(names)).replace("FIXED", json.dumps(fixed))


def selected_file(images: list[tuple[str, str | None]] | None, event: gr.SelectData) -> Any:
    """Return the file of the selected image of a gallery, whose pixels are unchanged."""
    is_valid = images and event.index in range(len(images))
    return images[event.index][0] if is_valid else gr.skip()


#: Slider for an integer; arguments: min, max, value
slider = partial(gr.Slider, step=1, precision=0)
#: Slider for a place on the way from noise (0) to an image (1)
share_slider = partial(gr.Slider, 0, 1, 0.5, step=1 / 40)
seed_box = partial(gr.Number, label="Seed", precision=0, minimum=0, maximum=MAX_SEED)
text_box = partial(gr.Textbox, interactive=False, placeholder="Not run yet")
#: Plot in PNG, hidden while it is empty
plot_box = partial(gr.Plot, format="png", elem_classes="hide-empty")
#: Gallery of small PNG images, five in a row, hidden while it is empty
gallery = partial(
    gr.Gallery,
    format="png",
    columns=5,
    height="auto",
    object_fit="contain",
    interactive=False,
    allow_preview=False,
    elem_classes=["small", "pixels", "hide-empty"],
)


def picture(label: str, alt_text: str, height: int | str, **options: Any) -> gr.Image:
    """Return an image output with a download button and sharp pixels."""
    options = {"label": label, "alt_text": alt_text, "height": height, **options}
    classes = ["pixels", "hide-empty"]
    return gr.Image(
        buttons=["download"], format="png", interactive=False, elem_classes=classes, **options
    )


def metrics_box() -> gr.JSON:
    """Return a collapsed JSON output for the metrics of a run."""
    with gr.Accordion("Metrics", open=False):
        return gr.JSON(label="Metrics", show_label=False)

"""Components, event options and the wrapper of endpoints that the pages share."""

import inspect
import json
import math
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr
import matplotlib as mpl
from gradio.events import Dependency
from gradio.utils import get_upload_folder
from PIL import Image
from torch import Tensor

from ebm_app.data.pictures import image_grid, to_pil
from ebm_app.sampling.base import Frame
from ebm_app.utils.errors import UserError

from .models import Models

TITLE = "How likely is this image?"
SUMMARY = (
    "A model that learned the density of its training images computes how likely yours is among "
    "them, whether it is unusual, and what it may show."
)
#: Link to the paper, in Markdown
PAPER = "[conditional time score matching](https://arxiv.org/abs/2502.02300)"
MAX_SEED = 2**31 - 1
#: Min seconds between two updates of a run
INTERVAL = 0.5
#: Options of an event that bypasses the queue and is hidden from the API
AT_ONCE = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
#: Options of a queued event by its kind. Events above the limit of their kind wait.
QUEUES = {
    kind: {"concurrency_id": kind, "concurrency_limit": limit}
    for kind, limit in (("sample", 2), ("score", 2), ("research", 1))
}
#: JavaScript that shows the stop button instead of the start button, or the other way round
SWITCH = """() => [!{running}, {running}].map(
  visible => ({{ __type__: "update", visible }})
)"""
#: JavaScript that returns the model of the address, which is refused if it does not exist, or else
#: the one that was selected before
RESTORE_MODEL = """(model) => {
  const linked = new URLSearchParams(location.search).get("model");
  if (linked !== null && !NAMES.includes(linked)) return linked;
  const wanted = linked ?? localStorage.model;
  return localStorage.model = NAMES.includes(wanted) ? wanted : model;
}"""
#: JavaScript that stores the selected model, and removes what was shared from the address
STORE_MODEL = """(model) => {
  localStorage.model = model;
  const address = new URL(location), names = [...address.searchParams.keys()];
  names.filter(name => name !== "__theme").forEach(name => address.searchParams.delete(name));
  history.replaceState(history.state, "", address);
}"""
#: Folder of an absolute path in a message, quoted or not
FOLDER = re.compile(r"(?<=')/[^']*/|(?<![\w:/])/(?:[^/\s']+/)+")
#: Grey that is legible on light and on dark pages
INK = "#808080"
# plots are transparent, with grey text, so that they fit the light and the dark theme
mpl.rcParams.update(
    {
        **dict.fromkeys(("figure.facecolor", "axes.facecolor", "legend.facecolor"), "none"),
        **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor"), INK),
        **dict.fromkeys(("xtick.color", "ytick.color"), INK),
        "legend.framealpha": 0,
    }
)


def hide_folders(message: str) -> str:
    """Remove the folders of files on the server from a message.

    >>> hide_folders("Cannot read '/srv/my runs/a/config.json': no such file.")
    "Cannot read 'config.json': no such file."
    """
    return FOLDER.sub("", message)


def as_text(value: str) -> str:
    """Escape text for Markdown, so that it is shown as it is.

    >>> as_text("a_b <i>")
    'a&#95;b &#60;i&#62;'
    """
    return re.sub(r"[^\w\s]|_", lambda match: f"&#{ord(match[0])};", value)


@contextmanager
def reported() -> Iterator[None]:
    """Raise a ``UserError`` as ``gr.Error``, without folders of the server and HTML. Gradio hides
    the messages of other errors and logs them."""
    try:
        yield
    except UserError as error:
        message = escape(hide_folders(str(error)), quote=False)
        raise gr.Error(message, print_exception=False) from None


def endpoint(run: Callable[..., Any], **fixed: Any) -> Callable[..., Any]:
    """Return a function or a generator function with fixed keyword arguments, whose ``UserError``
    is ``reported``."""

    def iterate(*args: Any) -> Iterator[Any]:
        with reported():
            yield from run(*args, **fixed)

    call = reported()(partial(run, **fixed))
    return wraps(run)(iterate if inspect.isgeneratorfunction(run) else call)


def start_by(
    action: str,
    run: Callable[..., Any],
    inputs: list[gr.Component],
    outputs: list[gr.Component],
    kind: str,
    cancels: Sequence[Dependency] = (),
    **fixed: Any,
) -> Dependency:
    """Add a button that starts an endpoint, and is a stop button while it runs. Return the event
    of the start, which cancels other events. ``fixed`` are passed to ``run`` and are not inputs of
    the endpoint."""
    start = gr.Button(action, variant="primary", elem_id=run.__name__)
    stop = gr.Button("Stop", variant="stop", visible=False)

    buttons, idle = [start, stop], SWITCH.format(running="false")
    # first, since the browser runs the events of a click one after the other
    running = SWITCH.format(running="true")
    start.click(None, None, buttons, js=running, cancels=[*cancels], **AT_ONCE)
    options = {"api_name": run.__name__, **QUEUES[kind]}
    event = start.click(endpoint(run, **fixed), inputs, outputs, **options)
    for end in (event.success, event.failure):  # `then` does not run after an error
        end(None, None, buttons, js=idle, **AT_ONCE)
    stop.click(None, None, buttons, js=idle, cancels=[event], **AT_ONCE)
    return event


def model_selector(app: gr.Blocks, models: Models) -> tuple[gr.Dropdown, Dependency]:
    """Add a selector of the model. Return it and the event after which it has the model of the
    address, or the one that the visitor selected before."""
    choices = models.choices()
    model = gr.Dropdown(choices, value=choices[0][1], label="Model")
    restore = RESTORE_MODEL.replace("NAMES", json.dumps([*models.folders]))
    loaded = app.load(None, model, model, js=restore, **AT_ONCE)
    model.input(None, model, None, js=STORE_MODEL, **AT_ONCE)
    return model, loaded


def render(images: Tensor, min_pixels: int = 480) -> Image.Image:
    """Return images (B, C, H, W) in [0, 1] as a grid, enlarged by repeating pixels."""
    return to_pil(image_grid(images, min_pixels))


def save_file(image: Image.Image, name: str) -> str:
    """Save an image for downloads as a PNG with a name, and return its path."""
    folder = Path(get_upload_folder()) / secrets.token_hex(16)
    folder.mkdir(parents=True)
    image.save(folder / name)
    return str(folder / name)


def at_intervals(frames: Iterable[Frame]) -> Iterator[Frame]:
    """Yield the first and the last frame, and between them frames at least ``INTERVAL`` apart."""
    shown = -math.inf
    for frame in frames:
        if frame.step in (1, frame.num_steps) or time.perf_counter() - shown > INTERVAL:
            shown = time.perf_counter()
            yield frame


#: Slider for an integer; arguments: min, max, value
slider = partial(gr.Slider, step=1, precision=0)
#: Metrics of a run, for clients of the API
metrics_box = partial(gr.JSON, label="Metrics", visible=False)
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


def picture(label: str, alt_text: str, height: int) -> gr.Image:
    """Return an image output with a download button and sharp pixels, hidden while it is empty."""
    return gr.Image(
        label=label,
        alt_text=alt_text,
        height=height,
        buttons=["download"],
        format="png",
        interactive=False,
        elem_classes=["pixels", "hide-empty"],
    )

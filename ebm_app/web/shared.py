"""What the tabs share: exact pixels, one device, and errors a visitor can read."""

import logging
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import gradio as gr
from gradio.components.image import ImageData
from PIL import Image
from torch import Tensor

from ebm_app.data.png import grid_of, to_picture
from ebm_app.ebm import EBM
from ebm_app.errors import UserError

MAX_SEED = 2**31 - 1
#: What a device computes for visitors, one at a time.
ONE_AT_A_TIME = {"concurrency_id": "device", "concurrency_limit": 1}
Load = Callable[[str], EBM]
RUNNING, STOPPED = "Step", "Stopped after step"


def stopped(text: str) -> str:
    """What a text that begins with ``RUNNING`` becomes when its run is stopped; any other stays
    as it is."""
    return text.replace(RUNNING, STOPPED, 1) if text.startswith(RUNNING) else text


def render(images: Tensor, min_pixels: int = 480) -> Image.Image:
    """Images (B, C, H, W) in [0, 1] as one picture; every pixel is repeated, none is blended."""
    return to_picture(grid_of(images, min_pixels))


def explained(handler: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    """A handler whose UserErrors reach the visitor as they are, and whose other errors go to the
    log, under a number that the visitor is told."""

    @wraps(handler)
    def run(*args: Any) -> Iterator[Any]:
        with explaining(handler.__name__):
            yield from handler(*args)

    return run


def explained_once(handler: Callable[..., Any]) -> Callable[..., Any]:
    """The same for a handler that returns its answer at once."""

    @wraps(handler)
    def run(*args: Any) -> Any:
        with explaining(handler.__name__):
            return handler(*args)

    return run


@contextmanager
def explaining(name: str) -> Iterator[None]:
    """Turn the errors of a handler into ones that a visitor can read."""
    try:
        yield
    except UserError as error:
        raise gr.Error(str(error), print_exception=False) from None
    except Exception:
        number = secrets.token_hex(4)
        logging.getLogger(__name__).exception("error %s in %s", number, name)
        raise gr.Error(
            f"This failed on the server, whose log says why under {number}: try another model "
            "or other settings",
            print_exception=False,
        ) from None


def explain_unreadable(upload: gr.Image) -> None:
    """Let an upload answer a file that is no image with a sentence.

    Its method is replaced, because gradio writes a file beside the source of every subclass.
    """
    read = upload.preprocess

    def preprocess(payload: ImageData | None) -> str | None:
        try:
            return read(payload)
        except Image.DecompressionBombError:
            raise gr.Error(
                f"this image has more than {2 * Image.MAX_IMAGE_PIXELS:,} pixels: make it smaller",
                print_exception=False,
            ) from None
        except Exception:
            raise gr.Error(
                "this file cannot be read as an image: save it as PNG or JPEG",
                print_exception=False,
            ) from None

    upload.preprocess = preprocess

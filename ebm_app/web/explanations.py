"""Errors that a visitor can read, and that tell nothing about the server."""

import logging
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import isgeneratorfunction
from typing import Any

import gradio as gr
from gradio.components.image import ImageData
from PIL import Image

from ebm_app.errors import UserError


def explained(handler: Callable[..., Any]) -> Callable[..., Any]:
    """A function or generator whose UserErrors reach the visitor as they are. Its other errors go
    to the log under a number, which the visitor is told."""

    @wraps(handler)
    def run(*args: Any) -> Any:
        with _explaining(handler.__name__):
            return handler(*args)

    @wraps(handler)
    def iterate(*args: Any) -> Iterator[Any]:
        with _explaining(handler.__name__):
            yield from handler(*args)

    return iterate if isgeneratorfunction(handler) else run


@contextmanager
def _explaining(name: str) -> Iterator[None]:
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

"""Errors that a visitor can read, and that tell nothing about the server."""

import logging
import secrets
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from html import escape
from inspect import isgeneratorfunction
from typing import Any

import gradio as gr
from gradio.components.image import ImageData
from PIL import Image

from ebm_app.data.folder import UNREADABLE
from ebm_app.io.errors import UserError


def explained(handler: Callable[..., Any]) -> Callable[..., Any]:
    """A function or generator whose UserErrors reach the visitor as they are. Its other errors go
    to the log under a number, which the visitor is told."""

    @wraps(handler)
    def run(*args: Any) -> Any:
        with explaining(handler.__name__):
            return handler(*args)

    @wraps(handler)
    def iterate(*args: Any) -> Iterator[Any]:
        with explaining(handler.__name__):
            yield from handler(*args)

    return iterate if isgeneratorfunction(handler) else run


@contextmanager
def explaining(name: str) -> Iterator[None]:
    """Let errors reach the visitor of an event as ``explained`` does.

    Args:
        name: of the event, for the log.
    """
    try:
        yield
    except UserError as error:
        raise answer(str(error)) from None
    except gr.Error as error:  # gradio's own, some with a traceback for the log
        raise answer(error.message) from None
    except Exception:
        number = secrets.token_hex(4)
        logging.getLogger(__name__).exception("error %s in %s", number, name)
        raise answer(
            f"This failed on the server, whose log says why under {number}: try another model "
            "or other settings"
        ) from None


def answer(message: str) -> gr.Error:
    """An error with a message for the visitor, whose browser takes it for HTML."""
    return gr.Error(escape(message, quote=False), print_exception=False)


def explain_unreadable(upload: gr.Image) -> None:
    """Let an upload answer a file that is no image, or too large a one, with a sentence.

    Its method is replaced, because gradio writes a file beside the source of every subclass.
    """
    read = upload.preprocess

    def preprocess(payload: ImageData | None) -> str | None:
        try:
            with warnings.catch_warnings():  # Pillow's own limit is twice that of its warning
                warnings.simplefilter("error", Image.DecompressionBombWarning)
                return read(payload)
        except (Image.DecompressionBombError, Image.DecompressionBombWarning):
            raise gr.Error(  # gradio lets no other through
                f"this image has more than {Image.MAX_IMAGE_PIXELS} pixels: make it smaller"
            ) from None
        except (*UNREADABLE, gr.Error):
            raise gr.Error(
                "this file cannot be read as an image: save it as PNG or JPEG"
            ) from None

    upload.preprocess = preprocess

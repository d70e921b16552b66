"""Safetensors files, read and written, and the tensors that a user gives."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor

from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import shortened
from ebm_app.utils.records import open_plain
from ebm_app.utils.writing import replace_file

ERRORS = (SafetensorError, OSError, ValueError, AttributeError)


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file with the permissions of any other: the library's own way to a file
    leaves it unreadable for everyone else."""
    ready = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    replace_file(path, save(ready))


@contextmanager
def whole(path: Path) -> Iterator[None]:
    """Within it, a safetensors file is read; a missing, truncated or other one is a UserError."""
    open_plain(path).close()
    try:
        yield
    except ERRORS as error:
        text = f"{path} is damaged or truncated ({shortened(error)}): copy it anew"
        raise UserError(text) from None


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file."""
    with whole(path):
        return load_file(path)


def read_forms(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The tensors of a safetensors file by name, from its header alone: dtype in the words of
    safetensors, such as "F32", and shape."""
    with whole(path), safe_open(path, "pt") as file:
        parts = {name: file.get_slice(name) for name in file.keys()}
        return {name: (x.get_dtype(), tuple(x.get_shape())) for name, x in parts.items()}


def as_tensor(value: Any, what: str) -> Tensor:
    """A tensor of what a user gives: one, which loses its gradient, an array, lists of numbers."""
    if isinstance(value, Tensor):
        if value.layout != torch.strided or value.is_meta or value.is_quantized or value.is_nested:
            raise UserError(f"{what}: give a dense tensor of numbers")
        return value.detach()
    try:
        array = np.asarray(value)
        return torch.tensor(array.astype(array.dtype.newbyteorder("=")))
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        reason = shortened(error)
        raise UserError(f"{what}: give a tensor or an array of numbers ({reason})") from None

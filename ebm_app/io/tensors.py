"""Safetensors files, read and written, and the tensors that a user gives."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor

from ebm_app.io.errors import UserError
from ebm_app.io.fields import shortened
from ebm_app.io.records import open_plain
from ebm_app.io.writing import replace_file

ERRORS = (SafetensorError, OSError, ValueError, AttributeError)


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file with the permissions of any other: the library's own way to a file
    leaves it unreadable for everyone else."""
    ready = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    replace_file(path, save(ready))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file."""
    open_plain(path).close()
    try:
        return load_file(path)
    except ERRORS as error:
        raise _damaged(path, error) from None


def read_forms(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The tensors of a safetensors file by name, from its header alone: dtype in the words of
    safetensors, such as "F32", and shape. Raises as ``read_tensors`` does."""
    open_plain(path).close()
    try:
        with safe_open(path, "pt") as file:
            parts = {name: file.get_slice(name) for name in file.keys()}
            return {name: (x.get_dtype(), tuple(x.get_shape())) for name, x in parts.items()}
    except ERRORS as error:
        raise _damaged(path, error) from None


def as_tensor(value: Any, what: str) -> Tensor:
    """What a user gives as a tensor: one, which loses its gradient, an array or lists of numbers."""
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


def _damaged(path: Path, reason: object) -> UserError:
    text = f"{path} is damaged or truncated ({shortened(reason)}): copy it anew"
    return UserError(text)

"""Safetensors files, read and written."""

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from ebm_app.errors import UserError
from ebm_app.fields import shortened
from ebm_app.files.writing import replace_file


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None
) -> None:
    """Write a safetensors file with the permissions of any other: the library's own way to a file
    leaves it unreadable for everyone else."""
    ready = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    replace_file(path, save(ready, metadata))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file.

    Raises:
        UserError: where the file is missing, truncated or not safetensors.
    """
    if path.exists() and not path.is_file():
        raise UserError(f"{path} is not a plain file")
    try:
        return load_file(path)
    except FileNotFoundError:
        raise UserError(f"{path} is missing: the folder is incomplete") from None
    except SafetensorError as error:
        raise UserError(f"{path} is damaged or truncated ({shortened(error)})") from None

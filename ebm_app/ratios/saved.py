"""Files of fitted ratios: fitted_ratio.safetensors and fitted_ratio.json, without pickle."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ebm_app.ratios.gaussians import GaussianRatio
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import PathArgument, check_argument
from ebm_app.utils.files import read_json, read_tensors, write_json, write_tensors

TENSORS_FILE, RECORD_FILE = "fitted_ratio.safetensors", "fitted_ratio.json"


def write_ratio(
    folder: str | os.PathLike, record: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> None:
    """Write the record and the tensors of a fitted ratio."""
    folder = Path(check_argument(PathArgument, "folder", folder))
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder / TENSORS_FILE, tensors)
    write_json(folder / RECORD_FILE, record)


def read_ratio(folder: str | os.PathLike) -> tuple[Path, dict[str, Any], dict[str, Tensor]]:
    """Return the path of the tensors, the record and the tensors of a fitted ratio.

    Raises:
        UserError: if there is none, or the files are damaged.
    """
    folder = Path(check_argument(PathArgument, "folder", folder))
    path, record = folder / TENSORS_FILE, folder / RECORD_FILE
    if not (path.exists() and record.exists()):
        raise UserError(f"{folder} has no fitted ratio. Fit a ratio and call `save`.")
    return path, read_json(record), read_tensors(path)


def add_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors whose names begin with a prefix and a dot."""
    return {f"{prefix}.{name}": values for name, values in tensors.items()}


def select_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of ``add_prefix`` by their names without the prefix."""
    start = f"{prefix}."
    names = [name for name in tensors if name.startswith(start)]
    return {name.removeprefix(start): tensors[name] for name in names}


def pack_network(base: GaussianRatio, network: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a network on top of the log ratio of two Gaussians."""
    return {
        **add_prefix("base", base._asdict()),
        **add_prefix("network", network.state_dict()),
    }


def unpack_network(kind: type[nn.Module], tensors: Mapping[str, Tensor]) -> nn.Module:
    """Return the network of class ``kind`` from ``pack_network``.

    Raises:
        ValueError: if the tensors do not have the names, shapes or values of the network.
    """
    if not all(values.isfinite().all() for values in tensors.values()):
        raise ValueError("non-finite values")
    network = kind(GaussianRatio(**select_prefix("base", tensors)))
    try:
        network.load_state_dict(select_prefix("network", tensors))
    except RuntimeError as error:
        raise ValueError(error) from None
    return network

"""Folders that hold a model: config.json and model.safetensors, written and read as one."""

import os
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from ebm_app.io.errors import UserError
from ebm_app.io.fields import shortened
from ebm_app.io.records import from_dict, read_json, to_dict, write_json
from ebm_app.io.tensors import read_forms, read_tensors, write_tensors
from ebm_app.models.config import FORMAT_VERSION

#: kinds of model; a config.json that names none is of the first
ENERGY_MODEL, FLOW = "energy model", "flow"
CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"
#: bytes of a config.json; those of models have a thousand
LARGEST_CONFIG = 2**18
#: kinds of numbers that weights may be stored in, as safetensors writes them
FLOATS = ("F64", "F32", "F16", "BF16")
BUNDLED = Path(__file__).parent.parent / "pretrained"
T = TypeVar("T")


def read_config(cls: type[T], folder: Path, kind: str = ENERGY_MODEL) -> T:
    """The configuration of a folder that holds a model of this kind.

    Raises:
        UserError: where it is missing, of another kind, or of another version.
    """
    data = read_json(folder / CONFIG_FILE, LARGEST_CONFIG)
    version = data.get("format_version")
    if version != FORMAT_VERSION or isinstance(version, bool):
        raise UserError(
            f"{folder} has format_version {shortened(version)}, this version of ebm_app reads "
            f"{FORMAT_VERSION}: save the model anew or install the version that wrote it"
        )
    found = data.pop("kind", ENERGY_MODEL)
    if found != kind:
        raise UserError(
            f"{folder} holds another kind of model ({shortened(found)}): give a folder of "
            f"kind {kind}"
        )
    return from_dict(cls, data, str(folder / CONFIG_FILE))


def write_folder(
    model: nn.Module, config: Any, folder: str | os.PathLike, kind: str = ENERGY_MODEL
) -> None:
    """Write config.json and model.safetensors, each aside first and then renamed."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder / WEIGHTS_FILE, model.state_dict())
    write_json(folder / CONFIG_FILE, {"kind": kind, **to_dict(config)})


def find_folder(name_or_path: str | os.PathLike) -> Path:
    """The folder of a model: a path, a bundled name, or a download of a hub id.

    Raises:
        UserError: where there is none of these.
    """
    path, name = Path(name_or_path), os.fspath(name_or_path)
    try:
        if path.is_dir():
            return path
    except OSError as error:
        raise UserError(
            f"the folder '{shortened(name)}' cannot be read: {error.strerror}"
        ) from None
    bundled = sorted(p.name for p in BUNDLED.iterdir() if p.is_dir()) if BUNDLED.is_dir() else []
    if name in bundled:
        return BUNDLED / name
    if name.count("/") == 1 and not name.startswith((".", "/", "~")):
        return _from_hub(name)
    raise UserError(
        f"no model at '{shortened(name)}': give a folder that holds {CONFIG_FILE}, a bundled name "
        f"({', '.join(bundled) or 'none installed'}) or a hub id owner/name"
    )


def _from_hub(repository: str) -> Path:
    from huggingface_hub import snapshot_download  # network code, only where it is asked for

    try:
        return Path(snapshot_download(repository, allow_patterns=[CONFIG_FILE, WEIGHTS_FILE]))
    except Exception as error:
        raise UserError(
            f"no folder '{shortened(repository)}', and the hub did not give a model of that id: "
            f"{_first_line(error)}"
        ) from None


def upload_folder(folder: Path, repository: str, private: bool) -> str:
    """Upload config.json and model.safetensors of a folder to a repository of the hub, which is
    made if it is missing; the address of the commit.

    Raises:
        UserError: where the hub refuses.
    """
    from huggingface_hub import HfApi  # network code, only where it is asked for

    api = HfApi()
    try:
        api.create_repo(repository, private=private, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repository, folder_path=folder, allow_patterns=[CONFIG_FILE, WEIGHTS_FILE]
        )
    except Exception as error:
        raise UserError(
            f"the hub did not take the model as '{repository}': {_first_line(error)}"
        ) from None
    return commit.commit_url


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0][:200] if text else type(error).__name__


def check_weights(model: nn.Module, path: Path) -> None:
    """Compare a model with the header of a file of weights, before any weight is read. The
    model may be on the device "meta", where it takes no memory.

    Raises:
        UserError: naming the first missing, unexpected or misshapen tensors.
    """
    found, expected = read_forms(path), model.state_dict()
    problems = [f"lacks {shortened(key)}" for key in expected if key not in found]
    problems += [f"has unexpected {shortened(key)}" for key in found if key not in expected]
    for key in (key for key in expected if key in found):
        (dtype, shape), wanted = found[key], tuple(expected[key].shape)
        if shape != wanted:
            problems.append(f"has {key} of shape {shortened(shape)}, not {wanted}")
        if dtype not in FLOATS:
            problems.append(f"has {key} of {shortened(dtype)}, which are no floats")
    if problems:
        more = f" and {len(problems) - 2} more problems" if len(problems) > 2 else ""
        raise UserError(f"{path} does not fit its config.json: it {'; '.join(problems[:2])}{more}")


def load_weights(model: nn.Module, path: Path) -> None:
    """Load weights, all of them and no others.

    Raises:
        UserError: as ``check_weights``, and naming the first tensor that is not finite.
    """
    check_weights(model, path)
    weights = read_tensors(path)
    for key, value in weights.items():
        if not value.isfinite().all():
            raise UserError(
                f"{path} holds numbers in {key} that are not finite: take another checkpoint"
            )
    model.load_state_dict(weights)

"""Folders that hold a model: config.json and model.safetensors, written and read as one."""

import os
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from ebm_app.errors import UserError
from ebm_app.files.records import from_dict, read_json, to_dict, write_json
from ebm_app.files.tensors import read_tensors, write_tensors
from ebm_app.models.config import FORMAT_VERSION

#: kinds of model; a config.json that names none is of the first
ENERGY_MODEL, FLOW = "energy model", "flow"
CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"
BUNDLED = Path(__file__).parent.parent / "pretrained"
T = TypeVar("T")


def read_config(cls: type[T], folder: Path, kind: str = ENERGY_MODEL) -> T:
    """The configuration of a folder that holds a model of this kind.

    Raises:
        UserError: where it is missing, of another kind, or of another version.
    """
    data = read_json(folder / CONFIG_FILE)
    version = data.get("format_version")
    if version != FORMAT_VERSION:
        raise UserError(
            f"{folder} has format_version {version}, this version of ebm_app reads "
            f"{FORMAT_VERSION}: save the model anew or install the version that wrote it"
        )
    found = data.pop("kind", ENERGY_MODEL)
    if found != kind:
        raise UserError(
            f"{folder} holds another kind of model ({found}): give a folder of kind {kind}"
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
    path = Path(name_or_path)
    if path.is_dir():
        return path
    name = os.fspath(name_or_path)
    bundled = sorted(p.name for p in BUNDLED.iterdir() if p.is_dir()) if BUNDLED.is_dir() else []
    if name in bundled:
        return BUNDLED / name
    if name.count("/") == 1 and not name.startswith((".", "/", "~")):
        return _from_hub(name)
    raise UserError(
        f"no model at '{name}': give a folder that holds {CONFIG_FILE}, a bundled name "
        f"({', '.join(bundled) or 'none installed'}) or a hub id owner/name"
    )


def _from_hub(repository: str) -> Path:
    from huggingface_hub import snapshot_download  # network code, only where it is asked for

    try:
        return Path(snapshot_download(repository, allow_patterns=[CONFIG_FILE, WEIGHTS_FILE]))
    except Exception as error:
        raise UserError(
            f"no folder '{repository}', and the hub did not give a model of that id: "
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
    return text.splitlines()[0] if text else type(error).__name__


def load_weights(model: nn.Module, path: Path) -> None:
    """Load weights, all of them and no others.

    Raises:
        UserError: naming the first missing, unexpected or misshapen tensors.
    """
    weights, expected = read_tensors(path), model.state_dict()
    problems = [f"lacks {key}" for key in expected if key not in weights]
    problems += [f"has unexpected {key}" for key in weights if key not in expected]
    problems += [
        f"has {key} of shape {tuple(weights[key].shape)}, not {tuple(value.shape)}"
        for key, value in expected.items()
        if key in weights and weights[key].shape != value.shape
    ]
    if problems:
        more = f" and {len(problems) - 3} more problems" if len(problems) > 3 else ""
        raise UserError(f"{path} does not fit its config.json: it {'; '.join(problems[:3])}{more}")
    model.load_state_dict(weights)

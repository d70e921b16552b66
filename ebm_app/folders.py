"""Folders that hold a model: config.json and model.safetensors, written and read as one."""

import os
from pathlib import Path
from typing import TypeVar

from torch import nn

from ebm_app.config import FORMAT_VERSION
from ebm_app.utils.errors import UserError, shorten
from ebm_app.utils.fields import check_argument, from_dict
from ebm_app.utils.files import read_json, read_tensor_info, read_tensors

#: kinds of model; a config.json that names none is of the first
ENERGY_MODEL, FLOW = "energy model", "flow"
CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"
#: of a pipeline of diffusers: what names its parts, and the files of those that are read
PIPELINE_FILE = "model_index.json"
PIPELINE_FILES = [PIPELINE_FILE, "unet/*.json", "unet/*.safetensors", "scheduler/*.json"]
#: kinds of numbers that weights may be stored in, as safetensors writes them
FLOATS = ("F64", "F32", "F16", "BF16")
BUNDLED = Path(__file__).parent / "pretrained"
T = TypeVar("T")


def read_config(cls: type[T], folder: Path, kind: str = ENERGY_MODEL) -> T:
    """The configuration of a folder that holds a model of this kind.

    Raises:
        UserError: where it is missing, of another kind, or of another version.
    """
    data = read_json(folder / CONFIG_FILE)
    version = data.get("format_version")
    if version != FORMAT_VERSION or isinstance(version, bool):
        raise UserError(
            f"{folder} has format_version {shorten(version)}, this version of ebm_app reads "
            f"{FORMAT_VERSION}: save the model anew or install the version that wrote it"
        )
    found = data.pop("kind", ENERGY_MODEL)
    if found != kind:
        raise UserError(
            f"{folder} holds another kind of model ({shorten(found)}): give a folder of "
            f"kind {kind}"
        )
    return from_dict(cls, data, str(folder / CONFIG_FILE))


def find_folder(name_or_path: str | os.PathLike) -> Path:
    """The folder of a model: a path, a bundled name, or a download of a hub id.

    Raises:
        UserError: where there is none of these.
    """
    name = os.fspath(check_argument(str | os.PathLike, "name_or_path", name_or_path))
    if os.path.isdir(name):  # nor one that cannot be read
        return Path(name)
    bundled = sorted(p.name for p in BUNDLED.iterdir() if p.is_dir())
    if name in bundled:
        return BUNDLED / name
    if name.count("/") == 1 and not name.startswith((".", "/", "~")):
        return _from_hub(name)
    raise UserError(
        f"no model at '{shorten(name)}': give a folder that holds {CONFIG_FILE}, a bundled name "
        f"({', '.join(bundled)}) or a hub id owner/name"
    )


def _from_hub(repository: str) -> Path:
    from huggingface_hub import snapshot_download  # network code, only where it is asked for

    patterns = [CONFIG_FILE, WEIGHTS_FILE, *PIPELINE_FILES]
    try:
        return Path(snapshot_download(repository, allow_patterns=patterns))
    except Exception as error:
        raise UserError(
            f"no folder '{shorten(repository)}', and the hub did not give a model of that id: "
            f"{first_line(error)}"
        ) from None


def first_line(error: Exception) -> str:
    """What the hub says of a failure, shortened."""
    return shorten((str(error).strip() or type(error).__name__).splitlines()[0])


def check_weights(model: nn.Module, path: Path) -> None:
    """Compare a model with what a file of weights says of itself, before any of it is read. The
    model may be on the device "meta", where it takes no memory.

    Raises:
        UserError: naming the first missing, unexpected or unfit tensor.
    """
    found, expected = read_tensor_info(path), model.state_dict()
    for key in [*expected, *found]:
        dtype, shape = found.get(key, (None, None))
        if key not in found:
            problem = f"lacks {shorten(key)}"
        elif key not in expected:
            problem = f"has unexpected {shorten(key)}"
        elif shape != tuple(expected[key].shape):
            wanted = tuple(expected[key].shape)
            problem = f"has {key} of shape {shorten(shape)}, not {wanted}"
        elif dtype not in FLOATS:
            problem = f"has {key} of {shorten(dtype)}, which are no floats"
        else:
            continue
        raise UserError(f"{path} does not fit its config.json: it {problem}")


def load_weights(model: nn.Module, path: Path) -> None:
    """Load weights that ``check_weights`` has compared with a model.

    Raises:
        UserError: naming the first tensor that is not finite.
    """
    weights = read_tensors(path)
    for key, value in weights.items():
        if not value.isfinite().all():
            raise UserError(
                f"{path} holds numbers in {key} that are not finite: take another checkpoint"
            )
    model.load_state_dict(weights)

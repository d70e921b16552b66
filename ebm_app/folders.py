"""Model folders with config.json and model.safetensors, by path, bundled name or hub id."""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ebm_app.config import FORMAT_VERSION, without_removed
from ebm_app.utils.errors import UserError, shorten
from ebm_app.utils.fields import PathArgument, check_argument, from_dict
from ebm_app.utils.files import read_header, read_json, read_tensors

if TYPE_CHECKING:
    from torch import nn

#: Kinds of model in config.json
ENERGY_MODEL, FLOW = "energy model", "flow"
CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"
#: Prefix of the names of the checkpoints in the folder of a run
PREFIX = "checkpoint-"
#: Index of a diffusers pipeline
PIPELINE_FILE = "model_index.json"
#: Patterns of the files to download
DOWNLOADED = ["*.json", WEIGHTS_FILE]
DOWNLOADED += ["unet/*.safetensors", "diffusion_pytorch_model*.safetensors"]
BUNDLED = Path(__file__).parent / "pretrained"
T = TypeVar("T")


def read_config(cls: type[T], folder: Path, kind: str = ENERGY_MODEL) -> T:
    """Read the configuration of a model folder.

    Args:
        cls: class of the configuration.
        kind: expected kind of model.

    Raises:
        UserError: for a missing file, an invalid value, or another kind or version of model.
    """
    data = read_json(folder / CONFIG_FILE)
    version = data.get("format_version")
    if version != FORMAT_VERSION or isinstance(version, bool):
        raise UserError(
            f"{folder} has format_version {shorten(version)}, but this version of ebm_app reads "
            f"{FORMAT_VERSION}. Install the version of ebm_app that wrote it."
        )
    data = without_removed(data, folder / CONFIG_FILE)
    own = data.pop("kind", None)
    if own != kind:
        raise UserError(f"Expected a folder with a model of kind {kind}, got {shorten(own)}.")
    return from_dict(cls, data, str(folder / CONFIG_FILE))


def find_folder(name_or_path: str | os.PathLike) -> Path:
    """Return the folder of a model, given its path, bundled name or hub id (downloaded). For the
    folder of a run without a validated model, return its last checkpoint.

    Raises:
        UserError: if there is no such model.
    """
    name = os.fspath(check_argument(PathArgument, "name_or_path", name_or_path))
    if os.path.isdir(name):  # also true without read permission
        folder = Path(name)
        saved = [] if (folder / CONFIG_FILE).exists() else checkpoints(folder)
        return saved[-1] if saved else folder
    bundled = sorted(p.name for p in BUNDLED.iterdir() if p.is_dir())
    if name in bundled:
        return BUNDLED / name
    if name.count("/") == 1 and not name.startswith((".", "/", "~")):
        return _download(name)
    raise UserError(
        f"There is no model '{shorten(name)}'. Use a folder with a {CONFIG_FILE}, a bundled name "
        f"({', '.join(bundled)}) or a hub id owner/name."
    )


def checkpoints(output_dir: Path, suffix: str = "") -> list[Path]:
    """Return the checkpoints of a run whose names end with ``suffix``, oldest first."""
    pattern = re.compile(PREFIX + r"(\d{1,12})" + re.escape(suffix))
    matches = {folder: pattern.fullmatch(folder.name) for folder in output_dir.glob(PREFIX + "*")}
    steps = {folder: int(match[1]) for folder, match in matches.items() if match}
    folders = (folder for folder in steps if folder.is_dir() and not folder.is_symlink())
    return sorted(folders, key=steps.get)


def _download(repository: str) -> Path:
    from huggingface_hub import snapshot_download  # network code, imported only when used

    try:
        return Path(snapshot_download(repository, allow_patterns=DOWNLOADED))
    except Exception as error:
        raise UserError(
            f"'{shorten(repository)}' is not a folder, and could not be downloaded from the hub: "
            f"{first_line(error)}"
        ) from None


def first_line(error: Exception) -> str:
    """Return the first line of an error message, shortened."""
    return shorten((str(error).strip() or type(error).__name__).splitlines()[0])


def is_pipeline(folder: Path) -> bool:
    """Whether a folder holds a pipeline of diffusers, also in the flat layout of older ones."""
    if (folder / PIPELINE_FILE).exists():
        return True
    return (folder / CONFIG_FILE).is_file() and "_class_name" in read_json(folder / CONFIG_FILE)


def check_weights(model: "nn.Module", path: Path) -> None:
    """Compare the names and shapes in a weights file with a model, without reading the weights.
    The model may be on the meta device.

    Raises:
        UserError: for the first tensor that differs.
    """
    expected = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    actual = read_header(path)
    for key in expected | actual:
        if expected.get(key) != actual.get(key):
            raise UserError(
                f"{path} does not match its {CONFIG_FILE}: {shorten(key)} has shape "
                f"{shorten(actual.get(key))}, expected {expected.get(key)}."
            )


def load_weights(model: "nn.Module", path: Path) -> None:
    """Load a weights file that has passed ``check_weights``.

    Raises:
        UserError: for non-finite weights.
    """
    weights, expected = read_tensors(path), model.state_dict()
    for key, value in weights.items():
        is_same_kind = value.is_floating_point() == expected[key].is_floating_point()
        if not (is_same_kind and value.isfinite().all()):
            raise UserError(f"The weights {key} in {path} are not finite. Use another file.")
    model.load_state_dict(weights)

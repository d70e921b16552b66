"""Model folders: config.json and model.safetensors, by path, bundled name or hub id."""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ebm_app.config import FORMAT_VERSION
from ebm_app.utils.errors import UserError, shorten
from ebm_app.utils.fields import check_argument, from_dict
from ebm_app.utils.files import read_header, read_json, read_tensors

if TYPE_CHECKING:
    from torch import nn

#: Kinds of model; a config.json without a kind is of the first.
ENERGY_MODEL, FLOW = "energy model", "flow"
CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"
#: Hashes of the training images.
HASHES_FILE = "training_images.safetensors"
#: Folder of the amortised likelihood in that of a model
AMORTISED_FOLDER = "amortised"
#: Index of a diffusers pipeline
PIPELINE_FILE = "model_index.json"
#: Patterns of the files that are downloaded
DOWNLOADED = ["*.json", WEIGHTS_FILE, HASHES_FILE, f"{AMORTISED_FOLDER}/{WEIGHTS_FILE}"]
DOWNLOADED += ["unet/*.safetensors", "diffusion_pytorch_model*.safetensors"]
#: Key of the configuration's digest in the metadata of a weights file
DIGEST = "config_sha256"
BUNDLED = Path(__file__).parent / "pretrained"
#: Settings that were added since format 1, and the value that a file without them had.
ADDED: dict[str, Any] = {
    "max_train_minutes": None,
    "optimizer": "adam",
    "label_dropout": 0.4,
    "gradient_checkpointing": False,
    "compile": None,
    "network": "unet",
    "num_classes": 0,
    "early": None,
    "calibration": None,
}
#: Keys of files of earlier versions, and their new names; a key without a new name always had an
#: empty value.
OLD_KEYS = {
    "residual": "calibration",
    "palette": None,
    "ddp_args": None,
    "space_arguments": None,
    "arguments": None,
}
#: Values of settings in files of earlier versions, and their new names.
RENAMED: dict[str, dict[str, str]] = {
    "time_input": {"clock": "arc_length"},
    "weighting": {"time_score": "inverse_variance"},
    "objective": {"ctsm_m_deviance": "ctsm_m"},
}
#: Objective that was called ctsm_m in files without ``label_dropout``; it is no longer available.
RETIRED_OBJECTIVE = "ctsm_m with the gamma deviance"
T = TypeVar("T")


def read_config(cls: type[T], folder: Path, kind: str = ENERGY_MODEL) -> T:
    """Read the configuration of a model folder.

    Args:
        cls: class of the configuration.
        kind: expected kind of model.
    """
    data = read_json(folder / CONFIG_FILE)
    version = data.get("format_version")
    if version != FORMAT_VERSION or isinstance(version, bool):
        raise UserError(
            f"{folder} has format_version {shorten(version)}, but this version of ebm_app reads "
            f"{FORMAT_VERSION}. Save the model again, or install the version that wrote it."
        )
    own = data.pop("kind", ENERGY_MODEL)
    if own != kind:
        raise UserError(f"Expected a folder with a model of kind {kind}, got {shorten(own)}.")
    keys = [item.name for item in fields(cls)]
    return from_dict(cls, upgrade(data, keys), str(folder / CONFIG_FILE))


def upgrade(data: Mapping[str, Any], keys: Iterable[str] = ()) -> dict[str, Any]:
    """Return settings of an earlier version, as JSON data, with keys and values of this version.

    Args:
        data: a model configuration, or settings of a training.
        keys: settings of this version. Those that ``data`` lacks get the value that they had
            before they became settings.

    >>> upgrade({"palette": [], "path": {"name": "vp", "arguments": {}}}, ["network"])
    {'network': 'unet', 'path': {'name': 'vp'}}
    """
    values = {
        OLD_KEYS.get(key) or key: upgrade(value) if isinstance(value, Mapping) else value
        for key, value in data.items()
        if value or OLD_KEYS.get(key, key) is not None
    }
    if values.get("objective") == "ctsm_m" and "label_dropout" not in values:
        values["objective"] = RETIRED_OBJECTIVE
    for key, names in RENAMED.items():
        if isinstance(values.get(key), str):
            values[key] = names.get(values[key], values[key])
    return {key: ADDED[key] for key in keys if key in ADDED} | values


def config_digest(data: Mapping[str, Any]) -> str:
    """Return the SHA-256 digest of the data of a config.json, independent of order and layout. The
    calibration, which is measured after the weights are saved, does not count."""
    settings = {key: None if key == "calibration" else value for key, value in data.items()}
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def check_digest(folder: Path) -> None:
    """Compare config.json with the digest in the weights file. Files of earlier versions have
    none.

    Raises:
        UserError: if the configuration was edited after the weights were saved.
    """
    saved = read_header(folder / WEIGHTS_FILE)[1].get(DIGEST)
    if saved is not None and saved != config_digest(read_json(folder / CONFIG_FILE)):
        raise UserError(
            f"{folder / CONFIG_FILE} was changed after it was saved with {WEIGHTS_FILE}, so "
            "likelihoods may be wrong. Restore it. If the change is intended, load the model "
            "with from_pretrained(folder, allow_edited_config=True) and save it again."
        )


def find_folder(name_or_path: str | os.PathLike) -> Path:
    """Return the folder of a model by its path, bundled name or hub id, which is downloaded."""
    name = os.fspath(check_argument(str | os.PathLike, "name_or_path", name_or_path))
    if os.path.isdir(name):  # also a folder without read permission
        return Path(name)
    bundled = sorted(p.name for p in BUNDLED.iterdir() if p.is_dir())
    if name in bundled:
        return BUNDLED / name
    if name.count("/") == 1 and not name.startswith((".", "/", "~")):
        return _download(name)
    raise UserError(
        f"No model at '{shorten(name)}'. Give a folder with a {CONFIG_FILE}, a bundled name "
        f"({', '.join(bundled)}) or a hub id owner/name."
    )


def _download(repository: str) -> Path:
    from huggingface_hub import snapshot_download  # network code, imported only when used

    try:
        return Path(snapshot_download(repository, allow_patterns=DOWNLOADED))
    except Exception as error:
        raise UserError(
            f"No folder '{shorten(repository)}', and the hub has no model of that id: "
            f"{first_line(error)}"
        ) from None


def first_line(error: Exception) -> str:
    """Return the first line of an error of the hub, shortened."""
    return shorten((str(error).strip() or type(error).__name__).splitlines()[0])


def is_pipeline(folder: Path) -> bool:
    """Whether a folder has files of diffusers: a pipeline, a checkpoint or a network."""
    if any((folder / name).exists() for name in (PIPELINE_FILE, "unet", "unet_ema")):
        return True
    return (folder / CONFIG_FILE).is_file() and "_class_name" in read_json(folder / CONFIG_FILE)


def check_weights(model: "nn.Module", path: Path) -> None:
    """Compare names and shapes of a weights file with a model, before reading the weights. The
    model may be on the device "meta"."""
    expected = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    actual, _ = read_header(path)
    for key in expected | actual:
        if expected.get(key) != actual.get(key):
            raise UserError(
                f"{path} does not match its {CONFIG_FILE}: {shorten(key)} has shape "
                f"{shorten(actual.get(key))}, expected {expected.get(key)}."
            )


def load_weights(model: "nn.Module", path: Path) -> None:
    """Load weights that ``check_weights`` has compared with a model."""
    weights = read_tensors(path)
    for key, value in weights.items():
        if not (value.is_floating_point() and value.isfinite().all()):
            raise UserError(f"{key} in {path} has values that are not finite. Use another file.")
    model.load_state_dict(weights)

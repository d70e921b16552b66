"""Models that are stored in a folder with config.json and model.safetensors, or on the hub."""

import hashlib
import os
import re
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Self, TypeVar

import torch
from safetensors import safe_open
from torch import Tensor, nn

from ebm_app.config import FORMAT_VERSION
from ebm_app.utils.errors import UserError, shorten
from ebm_app.utils.fields import PathArgument, check_argument, from_dict, to_dict
from ebm_app.utils.files import open_file, read_json, report_damage, write_json, write_tensors
from ebm_app.utils.registry import choose
from ebm_app.utils.tensors import as_tensor

#: Kinds of model in config.json
ENERGY_MODEL, FLOW = "energy model", "flow"
CONFIG_FILE, WEIGHTS_FILE, CARD_FILE = "config.json", "model.safetensors", "README.md"
#: Prefix of the names of the checkpoints in the folder of a run
PREFIX = "checkpoint-"
#: Index of a diffusers pipeline
PIPELINE_FILE = "model_index.json"
#: Patterns of the files to download
DOWNLOADED = ["*.json", WEIGHTS_FILE]
DOWNLOADED += ["unet/*.safetensors", "diffusion_pytorch_model*.safetensors"]
BUNDLED = Path(__file__).parent / "pretrained"
#: Dtypes of stored weights that are converted to the dtype of the model
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
#: README.md of a model on the hub
CARD = """---
library_name: ebm_app
pipeline_tag: unconditional-image-generation
---

# {repository}

A density model of {dataset} images ({shape}), trained with `ebm_app` by conditional time score
matching ([arXiv:2502.02300](https://arxiv.org/abs/2502.02300)).

```python
from ebm_app import {kind}

model = {kind}.from_pretrained("{repository}")
images = model.sample(4)  # (4, C, H, W) in [0, 1]
print(model.likelihood(images).bits_per_dim)
```
"""
T = TypeVar("T")


def find_folder(name_or_path: str | os.PathLike) -> Path:
    """Return the folder of a model, given its path, bundled name or hub id (downloaded). For the
    folder of a run without a validated model, return its last checkpoint."""
    name = os.fspath(check_argument(PathArgument, "name_or_path", name_or_path))
    if os.path.isdir(name):  # also true without read permission
        folder = Path(name)
        saved = [] if (folder / CONFIG_FILE).exists() else checkpoints(folder)
        return saved[-1] if saved else folder
    bundled = sorted(p.name for p in BUNDLED.iterdir() if p.is_dir())
    if name in bundled:
        return BUNDLED / name
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise UserError(
            f"There is no model '{shorten(name)}'. Use a folder with a {CONFIG_FILE}, a bundled "
            f"name ({', '.join(bundled)}) or a hub id owner/name."
        )
    from huggingface_hub import snapshot_download  # network code, imported only when used

    try:
        return Path(snapshot_download(name, allow_patterns=DOWNLOADED))
    except Exception as error:
        raise UserError(
            f"'{shorten(name)}' is not a folder, and could not be downloaded from the hub: "
            f"{shorten(error)}"
        ) from None


def checkpoints(output_dir: Path, suffix: str = "") -> list[Path]:
    """Return the checkpoints of a run whose names end with ``suffix``, oldest first."""
    pattern = re.compile(PREFIX + r"(\d{1,12})" + re.escape(suffix))
    folders = (f for f in output_dir.glob(PREFIX + "*") if f.is_dir() and not f.is_symlink())
    steps = {folder: pattern.fullmatch(folder.name) for folder in folders}
    return sorted(filter(steps.get, steps), key=lambda folder: int(steps[folder][1]))


def is_pipeline(folder: Path) -> bool:
    """Whether a folder holds a pipeline of diffusers."""
    return (folder / PIPELINE_FILE).exists()


def read_config(cls: type[T], folder: Path, kind: str = ENERGY_MODEL) -> T:
    """Read the configuration of a model folder as an instance of ``cls``.

    Raises:
        UserError: for a missing file, an invalid value, or another kind or version of model.
    """
    path = folder / CONFIG_FILE
    data = read_json(path)
    version = data.get("format_version")
    if version != FORMAT_VERSION or isinstance(version, bool):
        raise UserError(
            f"{folder} has format_version {shorten(version)}, but this version of ebm_app reads "
            f"{FORMAT_VERSION}. Install the version of ebm_app that wrote it."
        )
    own = data.pop("kind", None)
    if own != kind:
        raise UserError(f"Expected a folder with a model of kind {kind}, got {shorten(own)}.")
    return from_dict(cls, data, str(path))


def read_weights(path: Path, model: nn.Module) -> dict[str, Tensor]:
    """Read the weights of a model, which may be on the meta device, in its dtypes. Their names and
    shapes are compared with those of the model before they are read.

    Raises:
        UserError: for the first tensor that differs, or is not finite.
    """
    expected = model.state_dict()
    open_file(path).close()
    with report_damage(path), safe_open(path, "pt") as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}
        for name in expected | shapes:
            shape = tuple(expected[name].shape) if name in expected else None
            if shape != shapes.get(name):
                raise UserError(
                    f"{path} does not match its {CONFIG_FILE}: {shorten(name)} has shape "
                    f"{shorten(shapes.get(name))}, expected {shape}."
                )
        weights: dict[str, Tensor] = {}
        for name, value in expected.items():
            stored = file.get_tensor(name)
            if stored.dtype in (FLOATS if value.is_floating_point() else [value.dtype]):
                # a copy, because the stored tensor is a part of the file
                weights[name] = stored.to(value.dtype, copy=True)
            if name not in weights or not weights[name].isfinite().all():
                raise UserError(
                    f"The weights {name} in {path}, of dtype {stored.dtype}, are not finite as "
                    f"{value.dtype}, or cannot be converted. Use another file."
                )
    return weights


class PretrainedModel(nn.Module):
    """Model built from a configuration and stored as config.json and model.safetensors. Subclasses
    define ``likelihood``.

    Attributes:
        config_class: class of the configuration.
        kind: value of "kind" in config.json.
    """

    config_class: ClassVar[type]
    kind: ClassVar[str]

    def __init__(self, config: Any) -> None:
        super().__init__()
        if not isinstance(config, self.config_class):
            name = self.config_class.__name__
            raise UserError(f"Expected config to be a {name}, got {shorten(repr(config))}.")
        self.config = config

    def __repr__(self) -> str:
        config, weights = self.config, sum(weight.numel() for weight in self.parameters())
        shape = "x".join(map(str, config.image_shape))
        return (
            f"{type(self).__name__} of {config.dataset}: images {shape} with {config.num_levels} "
            f"levels, {weights:,} weights on {self.device}"
        )

    @property
    def device(self) -> torch.device:
        """Device of the weights; the CPU for a flow without any."""
        return self._first_tensor().device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights, float32 or float64. Others are too imprecise for a likelihood."""
        dtype = self._first_tensor().dtype
        if dtype not in (torch.float32, torch.float64):
            raise UserError(f"The weights are {dtype}. Convert the model to float32 or float64.")
        return dtype

    def _first_tensor(self) -> Tensor:
        return next(chain(self.parameters(), self.buffers()), torch.empty(0))

    def points(self, x: Any) -> Tensor:
        """Convert points (B, C, H, W), a tensor, an array or nested lists, to a tensor on the
        model's device.

        Raises:
            UserError: for a wrong shape, or values that are not floating-point.
        """
        values, shape = as_tensor(x, "x"), self.config.image_shape
        if not values.is_floating_point() or not values.numel() or values.shape[1:] != shape:
            expected = ", ".join(map(str, shape))
            raise UserError(
                f"Expected floating-point x of shape (B, {expected}), got {values.dtype} of shape "
                f"{tuple(values.shape)}."
            )
        return (x if isinstance(x, Tensor) else values).to(self.device)

    @classmethod
    def from_pretrained(cls, name_or_path: str | os.PathLike, device: str = "cpu") -> Self:
        """Load a model from a folder, by its bundled name, or by its Hugging Face hub id.

        >>> from ebm_app import EBM
        >>> EBM.from_pretrained("digits").config.image_shape
        (1, 8, 8)

        Raises:
            UserError: for a missing or incomplete folder, weights that are damaged, not finite or
                do not match the configuration, or another kind or version of model.
        """
        folder, device = find_folder(name_or_path), available_device(device)
        config = read_config(cls.config_class, folder, cls.kind)
        with torch.device("meta"):  # allocates no weights
            model = cls(config)
        model.load_state_dict(read_weights(folder / WEIGHTS_FILE, model), assign=True)
        return model.to(device).eval()

    def save_pretrained(self, folder: str | os.PathLike) -> None:
        """Write config.json and model.safetensors. Each file is written atomically."""
        folder = Path(check_argument(PathArgument, "folder", folder))
        folder.mkdir(parents=True, exist_ok=True)
        write_tensors(folder / WEIGHTS_FILE, self.state_dict())
        self.save_config(folder)

    def save_config(self, folder: Path) -> None:
        """Write config.json atomically."""
        write_json(folder / CONFIG_FILE, {"kind": self.kind, **to_dict(self.config)})

    def log_prob(self, images: Tensor, **options: Any) -> Tensor:
        """Return the log-likelihood (B,) of quantised images (B, C, H, W), in nats.

        >>> from ebm_app import EBM
        >>> EBM.from_pretrained("digits").log_prob(torch.zeros(2, 1, 8, 8)).shape
        torch.Size([2])

        Args:
            images, options: arguments of ``likelihood``, which also returns bits and errors.
        """
        return self.likelihood(images, **options).log_prob

    def push_to_hub(self, repository: str, private: bool = False) -> str:
        """Upload the model and a card to the Hugging Face hub; return the URL of the commit.

        Args:
            repository: hub id "owner/name". A missing repository is created.
            private: whether a new repository is private.

        Raises:
            UserError: if the upload fails, for instance without a login.
        """
        from huggingface_hub import HfApi  # network code, imported only when used

        api = HfApi()
        with TemporaryDirectory() as folder:
            self.save_pretrained(folder)
            card = CARD.format(
                repository=repository,
                dataset=self.config.dataset.partition(":")[0],
                shape=" × ".join(map(str, self.config.image_shape)),
                kind=type(self).__name__,
            )
            (Path(folder) / CARD_FILE).write_text(card, encoding="utf-8")
            try:
                api.create_repo(repository, private=private, exist_ok=True)
                commit = api.upload_folder(repo_id=repository, folder_path=folder)
            except Exception as error:
                text = f"Could not upload the model to '{repository}': {shorten(error)}"
                raise UserError(text) from None
        return commit.commit_url


def available_device(device: str) -> torch.device:
    """Return the torch device of a name, such as "cuda" or "cuda:0".

    Raises:
        UserError: for a device that is not available, or neither a CPU nor a CUDA device.
    """
    try:
        choose("device", torch.device(device).type, ("cpu", "cuda"))
        return torch.empty(0, device=device).device
    except (RuntimeError, TypeError, ValueError, AssertionError):
        raise UserError(
            f"Device {shorten(repr(device))} is not available. Use cpu, or cuda."
        ) from None


def fingerprint(model: nn.Module) -> str:
    """Return the SHA-256 digest of a model's weights."""
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()

"""``PretrainedModel``: base class of models that are stored in a folder or on the hub."""

import hashlib
import os
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from ebm_app.folders import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    check_weights,
    find_folder,
    first_line,
    load_weights,
    read_config,
)
from ebm_app.utils.errors import UserError, shorten
from ebm_app.utils.fields import PathArgument, check_argument, to_dict
from ebm_app.utils.files import write_json, write_tensors
from ebm_app.utils.random import initial_weights
from ebm_app.utils.tensors import as_tensor

CARD_FILE = "README.md"
#: README.md of a model on the hub
CARD = """---
library_name: ebm_app
pipeline_tag: unconditional-image-generation
tags: [energy-based-model, density-estimation, time-score-matching]
---

# {repository}

A density model of {dataset} images ({shape}) with likelihoods and samples, trained with `ebm_app`
by conditional time score matching ([arXiv:2502.02300](https://arxiv.org/abs/2502.02300)).

```python
from ebm_app import {kind}

model = {kind}.from_pretrained("{repository}")
images = model.sample(4)  # (4, C, H, W) in [0, 1]
print(model.likelihood(images).bits_per_dim)
```
"""


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
        """Dtype of the weights, float32 or float64.

        Raises:
            UserError: for a lower precision, which is too imprecise for a likelihood.
        """
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
        folder = find_folder(name_or_path)
        device = available_device(device)
        config = read_config(cls.config_class, folder, cls.kind)
        # check names and shapes on the meta device before allocating weights
        with torch.device("meta"):
            check_weights(cls(config), folder / WEIGHTS_FILE)
        with initial_weights(0):  # keeps the global random state
            model = cls(config)
        load_weights(model, folder / WEIGHTS_FILE)
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
        """Upload the model and a model card to the Hugging Face hub; return the URL of the commit.
        Creates the repository if it does not exist.

        Args:
            repository: hub id "owner/name", as for ``from_pretrained``.
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
                raise UserError(
                    f"Could not upload the model to '{repository}': {first_line(error)}"
                ) from None
        return commit.commit_url


def available_device(device: str) -> torch.device:
    """Return the torch device of a name, such as "cuda".

    Raises:
        UserError: for a device that is not available.
    """
    try:
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

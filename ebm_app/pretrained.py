"""``PretrainedModel``: a model that is built from its configuration and kept in a folder."""

import hashlib
import os
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from ebm_app.card import CARD_FILE, model_card
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
from ebm_app.utils.fields import check_argument, to_dict
from ebm_app.utils.files import write_json, write_tensors
from ebm_app.utils.random import initial_weights
from ebm_app.utils.tensors import as_tensor


class PretrainedModel(nn.Module):
    """A model that is built from its configuration and kept in a folder of config.json and
    model.safetensors.

    A subclass names the dataclass of its configuration, ``config_class``, and its ``kind`` in
    config.json.
    """

    config_class: ClassVar[type]
    kind: ClassVar[str]

    def __init__(self, config: Any) -> None:
        super().__init__()
        if not isinstance(config, self.config_class):
            name = self.config_class.__name__
            raise UserError(f"config: give a {name}, not {shorten(repr(config))}")
        self.config = config

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(chain(self.parameters(), self.buffers())).device

    @property
    def dtype(self) -> torch.dtype:
        """What the weights are kept in.

        Raises:
            UserError: where that has too few digits for a likelihood.
        """
        found = next(chain(self.parameters(), self.buffers())).dtype
        if found not in (torch.float32, torch.float64):
            raise UserError(f"weights are {found}: convert the model to float32 or float64")
        return found

    def points(self, x: Any) -> Tensor:
        """Points (B, C, H, W) of a user's, in any form, on the model's device."""
        values, shape = as_tensor(x, "x"), self.config.image_shape
        if not values.is_floating_point() or not values.numel() or values.shape[1:] != shape:
            raise UserError(f"x: give floats of shape (B, *{shape}), not {tuple(values.shape)}")
        return (x if isinstance(x, Tensor) else values).to(self.device)

    @classmethod
    def from_pretrained(cls, name_or_path: str | os.PathLike, device: str = "cpu") -> Self:
        """Load a folder, a bundled model by name, or a repository of the Hugging Face hub by its
        id. A folder from elsewhere takes no more memory than its weights do.

        >>> from ebm_app import EBM
        >>> EBM.from_pretrained("digits").config.image_shape
        (1, 8, 8)

        Raises:
            UserError: for a folder that is missing or incomplete, weights that are damaged, not
                finite or do not fit the configuration, a format of another version, or another
                kind of model.
        """
        folder = find_folder(name_or_path)
        try:
            device = torch.empty(0, device=device).device
        except (RuntimeError, TypeError, ValueError, AssertionError):
            raise UserError(
                f"{shorten(repr(device))} is no device: give cpu, or cuda where there is one"
            ) from None
        config = read_config(cls.config_class, folder, cls.kind)
        with torch.device("meta"):  # names and shapes alone: no model is larger than its file
            check_weights(cls(config), folder / WEIGHTS_FILE)
        with initial_weights(0):  # no thread that draws weights of its own is disturbed
            model = cls(config)
        load_weights(model, folder / WEIGHTS_FILE)
        return model.to(device).eval()

    def save_pretrained(self, folder: str | os.PathLike) -> None:
        """Write config.json and model.safetensors, each aside first and then renamed."""
        folder = Path(check_argument(str | os.PathLike, "folder", folder))
        folder.mkdir(parents=True, exist_ok=True)
        write_tensors(folder / WEIGHTS_FILE, self.state_dict())
        write_json(folder / CONFIG_FILE, {"kind": self.kind, **to_dict(self.config)})

    def push_to_hub(self, repository: str, private: bool = False, **card: Any) -> str:
        """Upload the two files and a card to a repository of the Hugging Face hub, which is made
        if it is missing; the address of the commit.

        Args:
            repository: "owner/name", what ``from_pretrained`` then takes. private: if it is
                made. card: ``license`` and ``bits_per_dim`` of ``model_card``.

        Raises:
            UserError: where the hub refuses, for instance without a login.
        """
        from huggingface_hub import HfApi  # network code, only where it is asked for

        api = HfApi()
        with TemporaryDirectory() as folder:
            self.save_pretrained(folder)
            text = model_card(repository, type(self).__name__, self.config, **card)
            (Path(folder) / CARD_FILE).write_text(text, encoding="utf-8")
            try:
                api.create_repo(repository, private=private, exist_ok=True)
                commit = api.upload_folder(
                    repo_id=repository,
                    folder_path=folder,
                    allow_patterns=[CONFIG_FILE, WEIGHTS_FILE, CARD_FILE],
                )
            except Exception as error:
                raise UserError(
                    f"the hub did not take the model as '{repository}': {first_line(error)}"
                ) from None
        return commit.commit_url


def fingerprint(model: nn.Module) -> str:
    """A digest of a model's weights."""
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()

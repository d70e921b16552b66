"""Held-out images of a model's own data, whose log-likelihoods are read from the model's folder or
computed once a model."""

import hashlib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ebm_app.data.images import DATASETS, load_images
from ebm_app.image_models.ebm import EBM
from ebm_app.io.errors import UserError
from ebm_app.likelihood.bits import to_bits_per_dim
from ebm_app.likelihood.dequantisation import dequantisation_noise
from ebm_app.models.config import EBMConfig

from ..models import without_path
from .shipped import read_likelihoods

MAX_IMAGES, PIXELS_AT_ONCE = 297, 2048
#: of the noise of held-out images
SEED = 0
#: shares of the held-out images between which a typical one lies
TYPICAL = (0.05, 0.95)
ABSENT = (
    "There is no percentile: held-out images of this model's data, in the form that it takes, are "
    "not on the server."
)


class HeldOutLikelihoods(NamedTuple):
    """Log-likelihoods in nats (N,) float64 of the first N of ``total`` held-out images."""

    log_prob: Tensor
    total: int

    @property
    def complete(self) -> bool:
        """Whether all of them are there."""
        return len(self.log_prob) == self.total


class HeldOutImages:
    """Held-out images with their log-likelihoods, of one dequantisation draw each. Those in a
    model's folder are read where they are of its weights; others are computed, and kept in memory
    for each model's weights.

    Args:
        data_root: folder of the data sets. folders: of the models, by name.
    """

    def __init__(
        self, data_root: str | Path = "data", folders: Mapping[str, Path] | None = None
    ) -> None:
        self.data_root, self.folders = data_root, folders or {}
        self._kept: dict[str, dict[int, Tensor]] = {}

    def images(self, config: EBMConfig) -> Tensor | None:
        """Levels (N, C, H, W) of the first held-out images of a model's data set, None where they
        are not on this machine or do not fit the model."""
        if config.dataset not in DATASETS:
            return None
        try:
            images = _test_images(config.dataset, self.data_root, MAX_IMAGES)
        except UserError:
            return None
        form = (tuple(images.shape[1:]), DATASETS[config.dataset].num_levels)
        return images if form == (tuple(config.image_shape), config.num_levels) else None

    def likelihoods(self, ebm: EBM, name: str) -> Iterator[HeldOutLikelihoods]:
        """The log-likelihoods of the model of a name so far, after every group of images; the last
        are complete. Nothing where there are neither a record nor images.

        What was computed before is not computed again, also where a run was stopped.

        Raises:
            UserError: for a damaged record in the model's folder.
        """
        digest = fingerprint(ebm)
        if (found := self._shipped(ebm, name, digest)) is not None:
            yield HeldOutLikelihoods(found, len(found))
        elif (images := self.images(ebm.config)) is not None:
            yield from _computed(ebm, images, self._kept.setdefault(digest, {}))

    def _shipped(self, ebm: EBM, name: str, digest: str) -> Tensor | None:
        if name not in self.folders:
            return None
        with without_path(self.folders[name], name):
            return read_likelihoods(self.folders[name], ebm, digest)


def _computed(ebm: EBM, images: Tensor, kept: dict[int, Tensor]) -> Iterator[HeldOutLikelihoods]:
    """The log-likelihoods of images, group by group; ``kept`` has and gets the groups."""
    noise = dequantisation_noise(1, images, SEED)  # the same, however images are grouped
    size = max(1, PIXELS_AT_ONCE // images[0].numel())
    missing = [start for start in range(0, len(images), size) if start not in kept]
    if not missing:
        yield _gather(kept, len(images))
    for start in missing:
        group = slice(start, start + size)
        found = ebm.log_prob(images[group], noise=noise[:, group], seed=SEED)
        kept[start] = found.log_prob.cpu()
        yield _gather(kept, len(images))


def _gather(groups: dict[int, Tensor], total: int) -> HeldOutLikelihoods:
    return HeldOutLikelihoods(torch.cat([groups[start] for start in sorted(groups)]), total)


@lru_cache
def _test_images(dataset: str, data_root: str | Path, num: int) -> Tensor:
    return load_images(dataset, data_root).test[:num].clone()  # a view would keep the others too


def fingerprint(ebm: EBM) -> str:
    """A digest of a model's configuration and weights."""
    digest = hashlib.sha256(repr(ebm.config).encode())
    for tensor in ebm.state_dict().values():
        digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def percentile(value: float, found: HeldOutLikelihoods) -> float:
    """Share of the held-out log-likelihoods below a value in nats, in percent."""
    return 100 * (found.log_prob < value).double().mean().item()


def describe(value: float, found: HeldOutLikelihoods, num_dims: int) -> str:
    """The place of a log-likelihood in nats among the held-out ones, and where most of those lie,
    in words."""
    below, num = int((found.log_prob < value).sum()), len(found.log_prob)
    those = f"{num}" if found.complete else f"the first {num} of {found.total}"
    bits = to_bits_per_dim(found.log_prob, num_dims)
    low, high = bits.quantile(torch.tensor(TYPICAL, dtype=bits.dtype)).tolist()
    return (
        f"Percentile {percentile(value, found):.0f}: higher than {below} of {those} held-out "
        "images of the model's data, each with one dequantisation draw.\n"
        f"Nine in ten of those cost between {low:.2f} and {high:.2f} bits per dim."
    )

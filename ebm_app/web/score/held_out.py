"""Held-out images of a model's own data, whose log-likelihoods are computed once a model."""

import hashlib
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from ebm_app.data.images import DATASETS, load_images
from ebm_app.ebm import EBM
from ebm_app.errors import UserError
from ebm_app.models.config import EBMConfig

MAX_IMAGES, PIXELS_AT_ONCE = 297, 2048
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
    """Held-out images with their log-likelihoods, of one dequantisation draw each, kept in memory
    for each model's weights.

    Args:
        data_root: folder of the data sets.
    """

    def __init__(self, data_root: str = "data") -> None:
        self.data_root = data_root
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

    def likelihoods(self, ebm: EBM) -> Iterator[HeldOutLikelihoods]:
        """The log-likelihoods so far, after every group of images; the last are complete. Nothing
        where there are no images.

        What was computed before is not computed again, also where a run was stopped.
        """
        images = self.images(ebm.config)
        if images is None:
            return
        kept = self._kept.setdefault(fingerprint(ebm), {})
        size = max(1, PIXELS_AT_ONCE // images[0].numel())
        missing = [start for start in range(0, len(images), size) if start not in kept]
        if not missing:
            yield _gather(kept, len(images))
        for start in missing:
            kept[start] = ebm.log_prob(images[start : start + size], seed=start).log_prob.cpu()
            yield _gather(kept, len(images))


def _gather(groups: dict[int, Tensor], total: int) -> HeldOutLikelihoods:
    return HeldOutLikelihoods(torch.cat([groups[start] for start in sorted(groups)]), total)


@lru_cache
def _test_images(dataset: str, data_root: str, num: int) -> Tensor:
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


def describe(value: float, found: HeldOutLikelihoods) -> str:
    """The place of a log-likelihood in nats among the held-out ones, in words."""
    below, num = int((found.log_prob < value).sum()), len(found.log_prob)
    those = f"{num}" if found.complete else f"the first {num} of {found.total}"
    return (
        f"Percentile {percentile(value, found):.0f}: higher than {below} of {those} held-out "
        "images of the model's data, each with one dequantisation draw."
    )

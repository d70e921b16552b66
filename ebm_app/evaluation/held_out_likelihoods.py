"""Held-out images of a model's own data with their log-likelihoods, which are read from the
model's folder or computed once a model."""

import hashlib
import math
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor

from ebm_app.data.images import DATASETS, load_images
from ebm_app.data.levels import to_display
from ebm_app.data.palette import form_of
from ebm_app.data.png import grid_of, to_picture
from ebm_app.image_models.ebm import EBM
from ebm_app.io.errors import UserError
from ebm_app.io.records import as_written, read_json, write_json
from ebm_app.likelihood.bits import to_bits_per_dim
from ebm_app.likelihood.dequantisation import dequantisation_noise
from ebm_app.models.config import EBMConfig
from ebm_app.models.folders import BUNDLED, read_config

HELD_OUT_FILE, EXAMPLE_FILE = "held_out.json", "example_{}.png"
NUM_EXAMPLES = 10
#: every pixel of an example is repeated until it is as wide: a page shows an image no larger
EXAMPLE_PIXELS = 224
MAX_IMAGES, PIXELS_AT_ONCE = 297, 2048
#: of the noise of held-out images
SEED = 0
#: shares of the held-out images between which a typical one lies
TYPICAL = (0.05, 0.95)


class HeldOutLikelihoods(NamedTuple):
    """Log-likelihoods in nats (N,) float64 of the first N of ``total`` held-out images."""

    log_prob: Tensor
    total: int

    @property
    def complete(self) -> bool:
        """Whether all of them are there."""
        return len(self.log_prob) == self.total

    def percentile(self, value: float) -> float:
        """Share of the held-out log-likelihoods below a value in nats, in percent."""
        return 100 * (self.log_prob < value).double().mean().item()

    def describe(self, value: float, num_dims: int) -> str:
        """The place of a log-likelihood in nats among these, and where most of them lie."""
        below, num = int((self.log_prob < value).sum()), len(self.log_prob)
        those = f"{num}" if self.complete else f"the first {num} of {self.total}"
        bits = to_bits_per_dim(self.log_prob, num_dims)
        low, high = bits.quantile(torch.tensor(TYPICAL, dtype=bits.dtype)).tolist()
        return (
            f"Percentile {self.percentile(value):.0f}: higher than {below} of {those} held-out "
            "images of the model's data, each with one dequantisation draw.\n"
            f"Nine in ten of those cost between {low:.2f} and {high:.2f} bits per dim."
        )


class HeldOutImages:
    """Held-out images with their log-likelihoods, of one dequantisation draw each. Those in a
    model's folder are read where they are of its weights; others are computed, and kept in memory
    for each model's weights.

    Args:
        data_root: folder of the data sets.
    """

    def __init__(self, data_root: str | Path = "data") -> None:
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

    def examples(self, folder: Path) -> list[Path | Image.Image]:
        """Held-out images for the model in a folder: its own files, or those of a bundled model
        of the same data, or from data on this machine."""
        try:
            config = read_config(EBMConfig, folder)
        except UserError:  # such a model is explained when it is chosen
            return []
        bundled = BUNDLED / config.dataset
        for place in (folder, bundled):
            files = [place / EXAMPLE_FILE.format(index) for index in range(NUM_EXAMPLES)]
            is_own = place == folder or (
                place.is_dir() and form_of(read_config(EBMConfig, place)) == form_of(config)
            )
            if is_own and files[0].is_file():
                return files
        images = self.images(config)
        return [] if images is None else example_pictures(config, images)

    def likelihoods(self, ebm: EBM, folder: Path | None = None) -> Iterator[HeldOutLikelihoods]:
        """The log-likelihoods of a model so far, after every group of images; the last are
        complete. Nothing where there are neither a record in its folder nor images.

        What was computed before is not computed again, also where a run was stopped.

        Raises:
            UserError: for a damaged record.
        """
        digest = fingerprint(ebm)
        found = read_likelihoods(folder, ebm, digest) if folder else None
        if found is not None:
            yield HeldOutLikelihoods(found, len(found))
        elif (images := self.images(ebm.config)) is not None:
            yield from _computed(ebm, images, self._kept.setdefault(digest, {}))


def _computed(ebm: EBM, images: Tensor, kept: dict[int, Tensor]) -> Iterator[HeldOutLikelihoods]:
    """The log-likelihoods of images, group by group; ``kept`` has and gets the groups."""
    noise = dequantisation_noise(1, images, SEED)  # the same, however images are grouped
    size = max(1, PIXELS_AT_ONCE // math.prod(images.shape[1:]))
    starts = range(0, len(images), size)
    for start in starts:
        if start not in kept:
            group = slice(start, start + size)
            found = ebm.log_prob(images[group], noise=noise[:, group], seed=SEED)
            kept[start] = found.log_prob.cpu()
        elif start != starts[-1]:
            continue
        yield HeldOutLikelihoods(torch.cat([kept[at] for at in sorted(kept)]), len(images))


@lru_cache
def _test_images(dataset: str, data_root: str | Path, num: int) -> Tensor:
    return load_images(dataset, data_root).test[:num].clone()  # a view would keep the others too


def fingerprint(ebm: EBM) -> str:
    """A digest of a model's weights."""
    digest = hashlib.sha256()
    for tensor in ebm.state_dict().values():
        digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def read_likelihoods(folder: Path, ebm: EBM, digest: str) -> Tensor | None:
    """Log-likelihoods in nats (N,) float64 of held-out images, where the folder has them, and for
    these weights, this default estimator and dequantisation; otherwise None."""
    path = folder / HELD_OUT_FILE
    if not path.exists():
        return None
    with as_written(path):
        record = read_json(path)
        same = [record[key] for key in ("weights", "estimator", "dequantisation", "eps")]
        if same != [digest, ebm.default_estimator, ebm.config.dequantisation, ebm.config.eps]:
            return None
        return torch.tensor(record["log_prob"], dtype=torch.float64)


def write_held_out(folder: Path, ebm: EBM, log_prob: Tensor, images: Tensor) -> None:
    """Write log-likelihoods in nats (N,) of images (N, C, H, W) as held_out.json, rounded to 0.01,
    with the digest of the weights that they are of; and the first of these images."""
    config = ebm.config
    record = {
        "dataset": config.dataset,
        "split": "test",
        "estimator": ebm.default_estimator,
        "dequantisation": config.dequantisation,
        "eps": config.eps,
        "seed": SEED,
        "weights": fingerprint(ebm),
        "log_prob": [round(value, 2) for value in log_prob.tolist()],
    }
    write_json(folder / HELD_OUT_FILE, record)
    for index, picture in enumerate(example_pictures(config, images)):
        picture.save(folder / EXAMPLE_FILE.format(index))


def example_pictures(config: EBMConfig, levels: Tensor) -> list[Image.Image]:
    """The first images (N, C, H, W) of a model's levels, every pixel repeated."""
    images = to_display(levels[:NUM_EXAMPLES], config.num_levels, config.palette)
    return [to_picture(grid_of(image, EXAMPLE_PIXELS)) for image in images.split(1)]

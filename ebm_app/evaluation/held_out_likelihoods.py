"""Held-out images of a model's own data with their log-likelihoods, which are read from the
model's folder or computed once a model."""

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
from ebm_app.models.folders import read_config
from ebm_app.models.pretrained import fingerprint

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


def held_out_images(config: EBMConfig, data_root: str) -> Tensor | None:
    """Levels (N, C, H, W) of the first held-out images of a model's data set, None where they are
    not on this machine or do not fit the model."""
    if config.dataset not in DATASETS:
        return None
    try:
        form, images = _first_images(config.dataset, data_root, MAX_IMAGES)
    except UserError:
        return None
    return images if form == form_of(config) else None


@lru_cache
def _first_images(dataset: str, data_root: str, num: int) -> tuple[str, Tensor]:
    data = load_images(dataset, data_root)
    return form_of(data), data.test[:num].clone()  # a view would keep the others too


def examples(folder: Path, data_root: str) -> list[Path | Image.Image]:
    """Held-out images for the model in a folder: its own files, or from data on this machine."""
    files = [folder / EXAMPLE_FILE.format(index) for index in range(NUM_EXAMPLES)]
    if files[0].is_file():
        return files
    try:
        config = read_config(EBMConfig, folder)
    except UserError:  # such a model is explained when it is chosen
        return []
    images = held_out_images(config, data_root)
    return [] if images is None else example_pictures(config, images)


def likelihoods(ebm: EBM, images: Tensor) -> Iterator[HeldOutLikelihoods]:
    """The log-likelihoods of held-out images (N, C, H, W), of one dequantisation draw each: those
    so far after every group of images."""
    noise = dequantisation_noise(1, images, SEED)  # the same, however images are grouped
    size = max(1, PIXELS_AT_ONCE // math.prod(images.shape[1:]))
    found = []
    for start in range(0, len(images), size):
        group = slice(start, start + size)
        result = ebm.log_prob(images[group], noise=noise[:, group], seed=SEED)
        found.append(result.log_prob.cpu())
        yield HeldOutLikelihoods(torch.cat(found), len(images))


def read_likelihoods(folder: Path, ebm: EBM, digest: str) -> HeldOutLikelihoods | None:
    """The log-likelihoods of held-out images, where the folder has them, and for these weights,
    this default estimator and dequantisation; otherwise None.

    Raises:
        UserError: for a damaged record.
    """
    path = folder / HELD_OUT_FILE
    if not path.exists():
        return None
    with as_written(path):
        record = read_json(path)
        same = [record[key] for key in ("weights", "estimator", "dequantisation", "eps")]
        if same != [digest, ebm.default_estimator, ebm.config.dequantisation, ebm.config.eps]:
            return None
        found = torch.tensor(record["log_prob"], dtype=torch.float64)
        return HeldOutLikelihoods(found, len(found))


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

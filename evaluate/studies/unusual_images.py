"""Unusual images made from ordinary ones, for the benchmark of anomaly detection."""

from collections.abc import Callable
from functools import cache, partial

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from scipy import ndimage
from torch import Tensor

from ebm_app.config import EBMConfig
from ebm_app.data.images import load_images
from ebm_app.data.levels import to_display
from ebm_app.data.pictures import convert_image, to_pil

#: Digits that are not digits when mirrored or upside down
CHIRAL = (2, 3, 4, 5, 7)
#: Letters that do not look like digits
LETTERS = "ABCDEFGHJKLMNPQRTUVWXYadefhkmnrtuwxy"
#: Fonts of matplotlib that have symbols in place of letters
SYMBOLS = ("cm", "STIX", "Last Resort")

#: Images (N, C, H, W) in [0, 1], labels (N,) or None, generator -> unusual images (M, C, H, W)
Maker = Callable[[Tensor, Tensor | None, np.random.Generator], Tensor]


def _chiral(images: Tensor, labels: Tensor | None) -> Tensor:
    return images if labels is None else images[torch.isin(labels, torch.tensor(CHIRAL))]


@cache
def fonts() -> list[str]:
    """Return the font files of this machine and of matplotlib that have all letters, one per file
    name."""
    from matplotlib.font_manager import fontManager, get_font  # takes half a second to import

    known = [font.fname for font in fontManager.ttflist if not font.name.startswith(SYMBOLS)]
    files, needed = {file.rpartition("/")[2]: file for file in known}, set(map(ord, LETTERS))
    return [f for _, f in sorted(files.items()) if needed <= get_font(f).get_charmap().keys()]


def _letters(images: Tensor, labels: Tensor | None, rng: np.random.Generator) -> Tensor:
    """Draw letters of the size of MNIST's digits, in random fonts."""
    (height, width), letters = images.shape[-2:], []
    for _ in range(len(images)):
        font = ImageFont.truetype(fonts()[rng.integers(len(fonts()))], height * 26 // 28)
        letter, picture = LETTERS[rng.integers(len(LETTERS))], Image.new("L", (width, height))
        ImageDraw.Draw(picture).text((width / 2, height / 2), letter, 255, font, anchor="mm")
        letters.append(np.asarray(picture) / 255)
    return torch.tensor(np.stack(letters)[:, None], dtype=images.dtype).expand_as(images)


def _shuffled(images: Tensor, labels: Tensor | None, rng: np.random.Generator) -> Tensor:
    pixels = images.flatten(2)
    orders = [torch.from_numpy(rng.permutation(pixels.shape[-1])) for _ in images]
    return torch.stack([x[:, k] for x, k in zip(pixels, orders, strict=True)]).view_as(images)


def _filtered(images: Tensor, by: Callable[[np.ndarray], np.ndarray]) -> Tensor:
    filtered = np.stack([by(x) for x in images.flatten(0, 1).numpy()])
    return torch.from_numpy(filtered).view_as(images)


def _noisy(images: Tensor, labels: Tensor | None, rng: np.random.Generator, std: float) -> Tensor:
    return images + std * torch.from_numpy(rng.standard_normal(images.shape)).to(images)


def _constant(images: Tensor, labels: Tensor | None, rng: np.random.Generator) -> Tensor:
    """Return images of one random grey or colour; every third image is black."""
    colours = torch.from_numpy(rng.random(images.shape[:2])).to(images)
    colours[::3] = 0
    return colours[:, :, None, None].expand_as(images)


def _halves(images: Tensor, labels: Tensor | None, rng: np.random.Generator) -> Tensor:
    """Join the upper half of an image and the lower half of another, of another class if the
    labels are known."""
    other = torch.from_numpy(rng.permutation(len(images)))
    height = images.shape[-2] // 2
    mixed = torch.cat([images[:, :, :height], images[other, :, height:]], 2)
    return mixed if labels is None else mixed[labels != labels[other]]


#: Kinds of unusual images of any data set
GENERAL: dict[str, Maker] = {
    "rotated by 90 degrees": lambda x, y, rng: x.rot90(1, (-2, -1)),
    "shuffled pixels": _shuffled,
    "blurred": lambda x, y, rng: _filtered(
        x, partial(ndimage.gaussian_filter, sigma=1.5 * x.shape[-1] / 28)
    ),
    "noise 0.1": partial(_noisy, std=0.1),
    "noise 0.3": partial(_noisy, std=0.3),
    "uniform noise": lambda x, y, rng: torch.from_numpy(rng.random(x.shape)).to(x),
    "inverted": lambda x, y, rng: 1 - x,
    "constant": _constant,
    "halves of two": _halves,
}
#: Kinds of unusual images of digits
OF_DIGITS: dict[str, Maker] = {
    "rotated by 180 degrees": lambda x, y, rng: _chiral(x, y).rot90(2, (-2, -1)),
    "rotated by 270 degrees": lambda x, y, rng: x.rot90(3, (-2, -1)),
    "mirrored": lambda x, y, rng: _chiral(x, y).flip(-1),
    "letters": _letters,
    "thick strokes": lambda x, y, rng: _filtered(x, partial(ndimage.grey_dilation, size=3)),
    "thin strokes": lambda x, y, rng: _filtered(x, partial(ndimage.grey_erosion, size=2)),
}
#: Data sets whose test images are unusual for a model of another one
OTHER_DATASETS = {"fashion_mnist": "mnist", "cifar10": "fashion_mnist"}


def kinds_of(dataset: str) -> list[str]:
    """Return the kinds of unusual images for a model of a data set."""
    if dataset in OTHER_DATASETS:
        return [OTHER_DATASETS[dataset], *GENERAL]
    return [*GENERAL, *OF_DIGITS]


def unusual_images(
    kind: str, images: Tensor, labels: Tensor | None, form: EBMConfig, data_root: str, seed: int
) -> Tensor:
    """Return unusual images of a kind, in [0, 1] on the grid of the grey levels of a model."""
    if kind in OTHER_DATASETS.values():
        others = load_images(kind, data_root).test[: len(images)]
        pictures = [to_pil(x.permute(1, 2, 0).numpy()) for x in others]
        converted = [convert_image(x, kind, form, ("resize", "rgb")) for x in pictures]
        return to_display(torch.stack(converted), form.num_levels)
    made = (GENERAL | OF_DIGITS)[kind](images, labels, np.random.default_rng(seed)).clamp(0, 1)
    return to_display((made * (form.num_levels - 1)).round(), form.num_levels)

"""Odd images made of ordinary ones, for the benchmark of anomaly detection."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from scipy import ndimage
from torch import Tensor

from ebm_app.config import EBMConfig
from ebm_app.data.images import load_images
from ebm_app.data.named import DATASETS
from ebm_app.data.pictures import prepare_image, to_pil, to_uint8
from ebm_app.utils.errors import UserError

#: digits that are no digit in a mirror or upside down
CHIRAL = (2, 3, 4, 5, 7)
#: letters that are no digits in shape
LETTERS = "ABCDEFGHJKLMNPQRTUVWXYadefhkmnrtuwxy"
#: fonts of matplotlib that have symbols in the place of letters
SYMBOLS = ("cm", "STIX", "Last Resort")

#: images (N, C, H, W) in [0, 1] with labels (N,) or None -> odd ones (M, C, H, W)
Maker = Callable[[Tensor, Tensor | None, np.random.Generator], Tensor]


def _chiral(images: Tensor, labels: Tensor | None) -> Tensor:
    return images if labels is None else images[torch.isin(labels, torch.tensor(CHIRAL))]


@cache
def fonts() -> list[str]:
    """Files of the fonts of this machine and of matplotlib that have the letters, one of a
    name."""
    from matplotlib.font_manager import fontManager, get_font  # half a second to import

    known = [font.fname for font in fontManager.ttflist if not font.name.startswith(SYMBOLS)]
    files, needed = {Path(file).name: file for file in known}, set(map(ord, LETTERS))
    return [f for _, f in sorted(files.items()) if needed <= get_font(f).get_charmap().keys()]


def _letters(images: Tensor, labels: Tensor | None, draw: np.random.Generator) -> Tensor:
    """Letters as large as digits of MNIST, in ``fonts``."""
    (height, width), found = images.shape[-2:], []
    for _ in range(len(images)):
        font = ImageFont.truetype(fonts()[draw.integers(len(fonts()))], height * 26 // 28)
        letter, picture = LETTERS[draw.integers(len(LETTERS))], Image.new("L", (width, height))
        ImageDraw.Draw(picture).text((width / 2, height / 2), letter, 255, font, anchor="mm")
        found.append(np.asarray(picture) / 255)
    return torch.tensor(np.stack(found)[:, None], dtype=images.dtype).expand_as(images)


def _shuffled(images: Tensor, labels: Tensor | None, draw: np.random.Generator) -> Tensor:
    pixels = images.flatten(2)
    orders = [torch.from_numpy(draw.permutation(pixels.shape[-1])) for _ in images]
    return torch.stack([x[:, k] for x, k in zip(pixels, orders, strict=True)]).view_as(images)


def _filtered(images: Tensor, by: Callable[[np.ndarray], np.ndarray]) -> Tensor:
    found = np.stack([by(x) for x in images.flatten(0, 1).numpy()])
    return torch.from_numpy(found).view_as(images)


def _noisy(images: Tensor, labels: Tensor | None, draw: np.random.Generator, by: float) -> Tensor:
    return images + by * torch.from_numpy(draw.standard_normal(images.shape)).to(images)


def _constant(images: Tensor, labels: Tensor | None, draw: np.random.Generator) -> Tensor:
    """A third of them black."""
    grey = torch.from_numpy(draw.random(len(images))).to(images)
    grey[::3] = 0
    return grey[:, None, None, None].expand_as(images)


def _halves(images: Tensor, labels: Tensor | None, draw: np.random.Generator) -> Tensor:
    """The upper half of one image and the lower half of another, of another class if known."""
    other = torch.from_numpy(draw.permutation(len(images)))
    height = images.shape[-2] // 2
    mixed = torch.cat([images[:, :, :height], images[other, :, height:]], 2)
    return mixed if labels is None else mixed[labels != labels[other]]


ODD: dict[str, Maker] = {
    "rotated by 90 degrees": lambda x, y, draw: x.rot90(1, (-2, -1)),
    "rotated by 180 degrees": lambda x, y, draw: _chiral(x, y).rot90(2, (-2, -1)),
    "rotated by 270 degrees": lambda x, y, draw: x.rot90(3, (-2, -1)),
    "mirrored": lambda x, y, draw: _chiral(x, y).flip(-1),
    "letters": _letters,
    "shuffled pixels": _shuffled,
    "blurred": lambda x, y, draw: _filtered(
        x, partial(ndimage.gaussian_filter, sigma=1.5 * x.shape[-1] / 28)
    ),
    "noise 0.1": partial(_noisy, by=0.1),
    "noise 0.3": partial(_noisy, by=0.3),
    "inverted": lambda x, y, draw: 1 - x,
    "thick strokes": lambda x, y, draw: _filtered(x, partial(ndimage.grey_dilation, size=3)),
    "thin strokes": lambda x, y, draw: _filtered(x, partial(ndimage.grey_erosion, size=2)),
    "constant": _constant,
    "halves of two": _halves,
}


def _square(images: Tensor, draw: np.random.Generator) -> Tensor:
    """With a square of another image, a third of a side wide, in the place of its own."""
    found, side = images.clone(), min(images.shape[-2:]) // 3
    corners = draw.integers(0, min(images.shape[-2:]) - side + 1, (len(images), 2))
    for row, (top, left) in enumerate(corners):
        part = np.s_[:, top : top + side, left : left + side]
        found[row][part] = images[row - 1][part]
    return found


def _scratch(images: Tensor, draw: np.random.Generator) -> Tensor:
    """With a straight line of full ink, half a side long."""
    height, width = images.shape[-2:]
    found = []
    for image in images:
        angle, line = draw.uniform(0, np.pi), Image.new("L", (width, height))
        reach = np.array([np.cos(angle) * width, np.sin(angle) * height]) / 4
        middle = draw.uniform(0.25, 0.75, 2) * (width, height)
        ImageDraw.Draw(line).line([*(middle - reach), *(middle + reach)], 255)
        found.append(torch.where(torch.from_numpy(np.asarray(line) > 0), 1.0, image))
    return torch.stack(found)


#: images with a part that is not theirs: where they differ from the given ones
PLANTED = {"a square of another": _square, "a scratch": _scratch}


def odd_images(
    kind: str, images: Tensor, labels: Tensor | None, num_levels: int, seed: int = 0
) -> Tensor:
    """Images of a kind in ``ODD``, in [0, 1] on the grid of as many levels."""
    found = ODD[kind](images, labels, np.random.default_rng(seed)).clamp(0, 1)
    return (found * (num_levels - 1)).round() / (num_levels - 1)


def of_other_data(config: EBMConfig, data_root: str, num: int) -> Iterator[tuple[str, Tensor]]:
    """The names of the data sets that are on this machine and not the model's own, with test
    images of each, brought to the model's form."""
    for name in [name for name in DATASETS if name != config.dataset]:
        with suppress(UserError):  # its files are not there
            data = load_images(name, data_root)
            pictures = map(to_pil, to_uint8(data.display(data.test[:num])))
            yield name, torch.cat([prepare_image(x, config) for x in pictures])

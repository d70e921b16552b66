"""Odd images made of ordinary ones, for the benchmark of anomaly detection."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from scipy import ndimage
from torch import Tensor
from torch.nn.functional import interpolate, pad

from ebm_app.io.errors import UserError

#: digits that are no digit in a mirror or upside down
CHIRAL = (2, 3, 4, 5, 7)
#: letters that are no digits in shape
LETTERS = "ABCDEFGHJKLMNPQRTUVWXYadefhkmnrtuwxy"

#: images (N, C, H, W) in [0, 1] with labels (N,) or None -> odd ones (M, C, H, W)
Maker = Callable[[Tensor, Tensor | None, np.random.Generator], Tensor]


def _chiral(images: Tensor, labels: Tensor | None) -> Tensor:
    return images if labels is None else images[torch.isin(labels, torch.tensor(CHIRAL))]


def _letters(images: Tensor, labels: Tensor | None, draw: np.random.Generator) -> Tensor:
    """Letters as large and as centred as digits of MNIST: in a box of 20 / 28 of the side, the
    centre of mass in the middle."""
    from matplotlib import get_data_path
    from matplotlib.font_manager import findSystemFonts

    fonts = sorted({*Path(get_data_path(), "fonts/ttf").glob("DejaVu*.ttf")})
    fonts += sorted(Path(path) for path in findSystemFonts())
    fonts = [path for path in fonts if "Display" not in path.name]
    side, found = images.shape[-1], []
    for _ in range(len(images)):
        font = ImageFont.truetype(str(fonts[draw.integers(len(fonts))]), 80)
        letter = LETTERS[draw.integers(len(LETTERS))]
        large = Image.new("L", (160, 160))
        ImageDraw.Draw(large).text((30, 30), letter, fill=255, font=font)
        if large.getbbox() is None:  # a font of other signs
            continue
        ink = large.crop(large.getbbox())
        ink.thumbnail((side * 20 // 28, side * 20 // 28), Image.Resampling.BOX)
        canvas = np.zeros((side, side))
        pixels = np.asarray(ink) / 255.0
        height, width = pixels.shape
        centre = ndimage.center_of_mass(pixels)
        top, left = (
            int(np.clip(round((side - 1) / 2 - c), 0, side - n))
            for c, n in zip(centre, (height, width), strict=True)
        )
        canvas[top : top + height, left : left + width] = pixels
        found.append(canvas)
    return torch.tensor(np.stack(found)[:, None], dtype=images.dtype).expand(
        -1, images.shape[1], -1, -1
    )


def _shuffled(images: Tensor, labels: Tensor | None, draw: np.random.Generator) -> Tensor:
    pixels = images.flatten(2)
    orders = [torch.from_numpy(draw.permutation(pixels.shape[-1])) for _ in images]
    return torch.stack([x[:, k] for x, k in zip(pixels, orders, strict=True)]).view_as(images)


def _filtered(images: Tensor, by: Callable[[np.ndarray], np.ndarray]) -> Tensor:
    return torch.from_numpy(np.stack([by(x) for x in images.flatten(0, 1).numpy()])).view_as(
        images
    )


def _blur(pixels: np.ndarray) -> np.ndarray:
    return ndimage.gaussian_filter(pixels, 1.5 * pixels.shape[-1] / 28)


def _noisy(images: Tensor, labels: Tensor | None, draw: np.random.Generator, by: float) -> Tensor:
    return images + by * torch.from_numpy(draw.standard_normal(images.shape)).to(images)


def _constant(images: Tensor, labels: Tensor | None, draw: np.random.Generator) -> Tensor:
    """A third of them black."""
    grey = torch.from_numpy(draw.random(len(images))).to(images)
    grey[::3] = 0
    return grey[:, None, None, None].expand_as(images).clone()


def _halves(images: Tensor, labels: Tensor | None, draw: np.random.Generator) -> Tensor:
    """The upper half of one image and the lower half of another, of another class if known."""
    other = torch.from_numpy(draw.permutation(len(images)))
    height = images.shape[-2] // 2
    mixed = torch.cat([images[:, :, :height], images[other, :, height:]], 2)
    return mixed if labels is None else mixed[labels != labels[other]]


def _enlarged(images: Tensor, labels: Tensor | None, draw: np.random.Generator) -> Tensor:
    if images.shape[1] != 1 or images.shape[-1] < 16:
        raise UserError("the 8x8 digits are enlarged for larger grey images only: no such row")
    from sklearn.datasets import load_digits  # a second to import

    small = torch.from_numpy(load_digits().images[: len(images), None] / 16).to(images)
    side, inner = images.shape[-1], images.shape[-1] * 22 // 28
    large = interpolate(small, (inner, inner), mode="bilinear", antialias=True)
    before = (side - inner) // 2
    return pad(large, (before, side - inner - before) * 2)


ODD: dict[str, Maker] = {
    "rotated by 90 degrees": lambda x, y, draw: x.rot90(1, (-2, -1)),
    "rotated by 180 degrees": lambda x, y, draw: _chiral(x, y).rot90(2, (-2, -1)),
    "rotated by 270 degrees": lambda x, y, draw: x.rot90(3, (-2, -1)),
    "mirrored": lambda x, y, draw: _chiral(x, y).flip(-1),
    "letters": _letters,
    "shuffled pixels": _shuffled,
    "blurred": lambda x, y, draw: _filtered(x, _blur),
    "noise 0.1": partial(_noisy, by=0.1),
    "noise 0.3": partial(_noisy, by=0.3),
    "noise 1": partial(_noisy, by=1.0),
    "inverted": lambda x, y, draw: 1 - x,
    "thick strokes": lambda x, y, draw: _filtered(x, partial(ndimage.grey_dilation, size=3)),
    "thin strokes": lambda x, y, draw: _filtered(x, partial(ndimage.grey_erosion, size=2)),
    "constant": _constant,
    "halves of two": _halves,
    "8x8 digits enlarged": _enlarged,
}


def odd_images(
    kind: str, images: Tensor, labels: Tensor | None, num_levels: int, seed: int = 0
) -> Tensor:
    """Images of a kind in ``ODD``, in [0, 1] on the grid of as many levels.

    Raises:
        UserError: for a kind that is not made of such images.
    """
    found = ODD[kind](images, labels, np.random.default_rng(seed)).clamp(0, 1)
    return (found * (num_levels - 1)).round() / (num_levels - 1)


def planted(images: Tensor, what: str, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Images (N, C, H, W) in [0, 1] with a square of the middle of another one somewhere, a
    quarter of a side wide, or a white scratch of as many pixels, and where it is, (N, H, W)."""
    draw, side = np.random.default_rng(seed), images.shape[-1] // 4
    found, where = images.clone(), torch.zeros_like(images[:, 0], dtype=torch.bool)
    others = images.roll(1, 0)
    height, width = images.shape[-2:]
    top, left = (height - side) // 2, (width - side) // 2
    for image, mask, other in zip(found, where, others, strict=True):
        y, x = draw.integers(height - side), draw.integers(width - side)
        if what == "square":
            patch = other[:, top : top + side, left : left + side]
            image[:, y : y + side, x : x + side] = patch
            mask[y : y + side, x : x + side] = True
        else:
            steps = torch.arange(side)
            image[:, y + steps, x + steps] = 1
            mask[y + steps, x + steps] = True
    return found, where

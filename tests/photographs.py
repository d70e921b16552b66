"""Pictures of handwritten digits: paper, shadow, rotation, ruled lines, noise."""

import numpy as np
from PIL import Image
from scipy import ndimage

from ebm_app.pretrained import BUNDLED

#: Height and width in pixels
SHAPE = (480, 640)
#: Name -> number of an example image of ``mnist``, and arguments of ``photograph``
SCENES = {
    "scan_ruled": (2, {"height": 180, "paper": 248, "ink": 40, "ruled": 60}),
    "photo": (0, {"height": 220, "paper": 190, "shadow": 0.2}),
    "shadow": (1, {"height": 220, "shadow": 0.6}),
    "corner": (3, {"height": 130, "paper": 180, "ink": 40, "centre": (110, 500), "shadow": 0.4}),
    "blackboard": (5, {"paper": 45, "ink": 220, "shadow": 0.2}),
    "thin": (7, {"height": 260, "angle": -8, "shadow": 0.4, "thinning": 8}),
}


def example(number: int) -> Image.Image:
    """Return an example image of ``mnist``, of 28 x 28 pixels."""
    path = BUNDLED / "mnist" / f"example_{number}.png"
    return Image.open(path).convert("L").resize((28, 28), Image.Resampling.NEAREST)


def photograph(
    digit: Image.Image,
    height: int = 200,
    paper: int = 200,
    ink: int = 50,
    centre: tuple[int, int] = (240, 320),
    angle: int = 0,
    shadow: float = 0.0,
    ruled: int = 0,
    thinning: int = 0,
) -> Image.Image:
    """Return a picture of a digit.

    Args:
        height: height of the digit in pixels.
        paper, ink: grey values from 0 to 255.
        centre: row and column of the digit's centre.
        angle: rotation in degrees.
        shadow: fraction of the light that the shadow takes.
        ruled: distance of ruled lines in pixels, or 0.
        thinning: pixels by which strokes are thinner.
    """
    random = np.random.default_rng(0)
    large = digit.crop(digit.getbbox())
    large = large.resize((round(large.width * height / large.height), height), 3)
    mask = np.pad(np.asarray(large) > 110, 20)
    mask = ndimage.distance_transform_edt(mask) > thinning
    whole, lines = np.zeros(SHAPE), np.zeros(SHAPE)
    top, left = (round(c - side / 2) for c, side in zip(centre, mask.shape, strict=True))
    whole[top : top + mask.shape[0], left : left + mask.shape[1]] = mask
    if ruled:
        lines[ruled // 2 :: ruled] = lines[ruled // 2 + 1 :: ruled] = 1
    turn = {"angle": angle, "reshape": False, "order": 1}
    pixels = paper - 0.25 * paper * ndimage.rotate(lines, **turn)
    pixels = pixels + (ink - pixels) * ndimage.rotate(whole, **turn)
    y, x = np.mgrid[: SHAPE[0], : SHAPE[1]] / max(SHAPE)
    light = 1 - shadow / (1 + np.exp(-12 * (x + y - 0.9)))
    texture = ndimage.gaussian_filter(random.normal(size=SHAPE), 3) * 12
    pixels = ndimage.gaussian_filter(pixels * light + texture, 1.2) + random.normal(0, 3, SHAPE)
    colour = pixels[..., None] * np.array([1, 0.97, 0.9])
    return Image.fromarray(colour.clip(0, 255).astype(np.uint8))

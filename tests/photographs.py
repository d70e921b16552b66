"""Pictures of handwritten digits: strokes, paper, shadow, rotation, ruled lines, noise."""

import numpy as np
from PIL import Image, ImageDraw
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


def arc(x: float, y: float, a: float, b: float, begin: int, end: int) -> list[tuple[float, float]]:
    """Return points of an ellipse around (x, y) with half axes a and b between two angles in
    degrees."""
    angles = np.radians(np.linspace(begin, end, 25))
    return [*zip(x + a * np.cos(angles), y + b * np.sin(angles), strict=True)]


#: Strokes of each digit in a unit square, with y downwards
STROKES = (
    [arc(0.5, 0.5, 0.28, 0.42, -90, 270)],
    [[(0.42, 0.15), (0.52, 0.08), (0.5, 0.92)]],
    [[*arc(0.5, 0.3, 0.24, 0.22, -170, 30), (0.3, 0.9), (0.78, 0.88)]],
    [arc(0.47, 0.28, 0.22, 0.2, -150, 90) + arc(0.47, 0.69, 0.26, 0.22, -90, 150)],
    [[(0.38, 0.08), (0.25, 0.55), (0.78, 0.52)], [(0.66, 0.25), (0.62, 0.93)]],
    [[(0.74, 0.1), (0.36, 0.1), (0.33, 0.45), *arc(0.48, 0.66, 0.24, 0.23, -110, 150)]],
    [[(0.62, 0.07), (0.38, 0.45), *arc(0.5, 0.7, 0.2, 0.21, 180, -180)]],
    [[(0.24, 0.12), (0.76, 0.12), (0.45, 0.93)]],
    [arc(0.5, 0.28, 0.19, 0.2, 90, 450) + arc(0.5, 0.71, 0.23, 0.22, -90, -450)],
    [[*arc(0.5, 0.3, 0.2, 0.21, 0, 360), (0.68, 0.4), (0.62, 0.93)]],
)


def handwritten(digit: int, random: np.random.Generator) -> Image.Image:
    """Return a photograph of a digit that is drawn by strokes, with random width, slant and
    wobble, on random paper."""
    image = Image.new("L", (280, 280))
    pen, width = ImageDraw.Draw(image), int(random.integers(18, 27))
    slant, phase = random.uniform(-0.05, 0.25), random.uniform(0, 6.28, 2)
    wobble = random.uniform(0.005, 0.02, 2)
    for stroke in STROKES[digit]:
        x, y = np.array(stroke).T
        across = x + slant * (0.5 - y) + wobble[0] * np.sin(7 * y + phase[0])
        down = y + wobble[1] * np.sin(6 * x + phase[1])
        points = [(280 * a, 280 * b) for a, b in zip(across, down, strict=True)]
        pen.line(points, fill=255, width=width)
        for a, b in points:
            pen.ellipse((a - width / 2, b - width / 2, a + width / 2, b + width / 2), fill=255)
    return photograph(
        image,
        height=int(random.integers(120, 260)),
        paper=int(random.integers(150, 250)),
        ink=int(random.integers(30, 80)),
        angle=int(random.integers(-8, 9)),
        shadow=random.uniform(0, 0.45),
        ruled=int(random.choice([0, 0, 0, 70])),
    )


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

"""Draw photographs and scans of handwritten digits: paper, shadow, rotation, ruled lines, noise.

python tools/handwriting.py --output_dir runs/handwriting --model mnist
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from scipy import ndimage

from ebm_app.cli.command_line import parse, run_script
from ebm_app.folders import BUNDLED
from ebm_app.utils.fields import configuration, setting

#: Height and width in pixels
SHAPE = (480, 640)
#: Digits of the example images of ``mnist``
DIGITS = (7, 2, 1, 0, 4, 1, 4, 9, 5, 9)
#: Name, example, height in pixels, centre, rotation in degrees, paper and ink (grey), shadow
#: (share), step of ruled lines in pixels or 0, thinning in pixels
PICTURES = (
    ("scan", 3, 200, (240, 320), 0, 250, 30, 0.0, 0, 0),
    ("scan_small", 5, 90, (120, 200), 0, 245, 40, 0.0, 0, 0),
    ("scan_ruled", 2, 180, (250, 330), 0, 248, 40, 0.0, 60, 0),
    ("scan_pencil", 7, 200, (240, 300), 0, 240, 140, 0.0, 0, 4),
    ("scan_ballpoint", 4, 240, (240, 320), 0, 250, 60, 0.0, 0, 7),
    ("photo", 0, 220, (240, 320), 0, 190, 50, 0.2, 0, 0),
    ("photo_shadow", 1, 220, (240, 320), 0, 200, 50, 0.6, 0, 0),
    ("photo_rotated", 6, 200, (240, 320), 12, 200, 60, 0.3, 0, 0),
    ("photo_ruled", 8, 200, (240, 320), 0, 210, 50, 0.3, 70, 2),
    ("photo_tilted_ruled", 9, 200, (240, 320), 4, 200, 45, 0.3, 70, 0),
    ("photo_corner", 3, 130, (110, 500), 0, 180, 40, 0.4, 0, 0),
    ("photo_dim", 2, 220, (240, 320), 0, 110, 30, 0.5, 0, 3),
    ("photo_blackboard", 5, 220, (240, 320), 0, 45, 220, 0.2, 0, 0),
    ("photo_thin", 7, 260, (240, 320), -8, 200, 60, 0.4, 0, 8),
)


def draw_picture(number: int, folder: Path = BUNDLED / "mnist") -> tuple[Image.Image, int]:
    """Return a picture of ``PICTURES`` and its digit. The digits are held-out images in a model's
    folder."""
    _, example, height, centre, angle, paper, ink, shadow, ruled, thinning = PICTURES[number]
    random = np.random.default_rng(number)
    small = Image.open(folder / f"example_{example}.png").convert("L").resize((28, 28), 0)
    large = small.crop(small.getbbox())
    large = large.resize((round(large.width * height / large.height), height), 3)
    mask = np.asarray(large) > 110
    mask = ndimage.distance_transform_edt(np.pad(mask, 20)) > thinning
    whole = np.zeros(SHAPE)
    top, left = (round(middle - side / 2) for middle, side in zip(centre, mask.shape, strict=True))
    whole[top : top + mask.shape[0], left : left + mask.shape[1]] = mask
    lines = np.zeros(SHAPE)
    if ruled:
        lines[ruled // 2 :: ruled] = lines[ruled // 2 + 1 :: ruled] = 1
    whole, lines = (ndimage.rotate(each, angle, reshape=False, order=1) for each in (whole, lines))
    pixels = paper + (0.75 * paper - paper) * lines
    pixels = pixels + (ink - pixels) * whole
    y, x = np.mgrid[: SHAPE[0], : SHAPE[1]] / max(SHAPE)
    light = 1 - shadow / (1 + np.exp(-12 * (x + y - 0.9)))
    texture = ndimage.gaussian_filter(random.normal(size=SHAPE), 3) * 12
    pixels = ndimage.gaussian_filter(pixels * light + texture, 1.2) + random.normal(0, 3, SHAPE)
    colour = pixels[..., None] * np.array([1, 0.97, 0.9])
    return Image.fromarray(colour.clip(0, 255).astype(np.uint8)), DIGITS[example]


@configuration(kw_only=True)
class Arguments:
    model: str = setting("folder or bundled name of a model of digits", "mnist")
    output_dir: Path = setting("folder for the pictures", Path("runs/handwriting"))


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Draw the pictures, and print p-value and class of each."""
    args = parse(Arguments, __doc__, argv)
    # slow to import, and not needed for --help
    from ebm_app.anomaly.detector import AnomalyDetector
    from ebm_app.evaluation.drawings import read_upload

    args.output_dir.mkdir(parents=True, exist_ok=True)
    detector = AnomalyDetector.from_pretrained(args.model)
    right = flagged = 0
    for number, (name, *_) in enumerate(PICTURES):
        file = args.output_dir / f"{name}.png"
        picture, digit = draw_picture(number)
        picture.save(file)
        image, _ = read_upload(file, detector.ebm_.config)
        p = detector.p_value(image).item()
        probabilities = detector.ebm_.classify(image)[0]
        best = int(probabilities.argmax())
        bits = detector.ebm_.likelihood(image).bits_per_dim.item()
        print(
            f"| {name} | {digit} | {p:.3f} | {best} | {probabilities[best]:.2f} | {bits:.3f} |",
            flush=True,
        )
        right, flagged = right + (best == digit), flagged + (p <= 0.05)
    return {"pictures": len(PICTURES), "right": right, "flagged": flagged}


if __name__ == "__main__":
    raise SystemExit(run_script(main))

"""Draw photographs and scans of handwritten digits: paper, shadow, rotation, ruled lines, noise.

python tools/handwriting.py --output_dir runs/handwriting --model mnist
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

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


class Scene(NamedTuple):
    """A handwritten digit on paper.

    Args:
        example: number of the example image.
        height: height of the digit in pixels.
        paper, ink: grey values from 0 to 255.
        centre: row and column of the digit's centre.
        angle: rotation in degrees.
        shadow: fraction of the light that the shadow takes.
        ruled: distance of ruled lines in pixels, or 0.
        thinning: pixels by which strokes are thinner.
    """

    name: str
    example: int
    height: int
    paper: int
    ink: int
    centre: tuple[int, int] = (240, 320)
    angle: int = 0
    shadow: float = 0.0
    ruled: int = 0
    thinning: int = 0


SCENES = (
    Scene("scan", 3, 200, paper=250, ink=30),
    Scene("scan_small", 5, 90, paper=245, ink=40, centre=(120, 200)),
    Scene("scan_ruled", 2, 180, paper=248, ink=40, centre=(250, 330), ruled=60),
    Scene("scan_pencil", 7, 200, paper=240, ink=140, centre=(240, 300), thinning=4),
    Scene("scan_ballpoint", 4, 240, paper=250, ink=60, thinning=7),
    Scene("photo", 0, 220, paper=190, ink=50, shadow=0.2),
    Scene("photo_shadow", 1, 220, paper=200, ink=50, shadow=0.6),
    Scene("photo_rotated", 6, 200, paper=200, ink=60, angle=12, shadow=0.3),
    Scene("photo_ruled", 8, 200, paper=210, ink=50, shadow=0.3, ruled=70, thinning=2),
    Scene("photo_tilted_ruled", 9, 200, paper=200, ink=45, angle=4, shadow=0.3, ruled=70),
    Scene("photo_corner", 3, 130, paper=180, ink=40, centre=(110, 500), shadow=0.4),
    Scene("photo_dim", 2, 220, paper=110, ink=30, shadow=0.5, thinning=3),
    Scene("photo_blackboard", 5, 220, paper=45, ink=220, shadow=0.2),
    Scene("photo_thin", 7, 260, paper=200, ink=60, angle=-8, shadow=0.4, thinning=8),
)


def draw_picture(number: int, folder: Path = BUNDLED / "mnist") -> tuple[Image.Image, int]:
    """Return a picture of ``SCENES`` and its digit. The digits are held-out images in a model's
    folder."""
    scene = SCENES[number]
    paper, ink, ruled = scene.paper, scene.ink, scene.ruled
    random = np.random.default_rng(number)
    small = Image.open(folder / f"example_{scene.example}.png").convert("L").resize((28, 28), 0)
    large = small.crop(small.getbbox())
    large = large.resize((round(large.width * scene.height / large.height), scene.height), 3)
    mask = np.asarray(large) > 110
    mask = ndimage.distance_transform_edt(np.pad(mask, 20)) > scene.thinning
    whole = np.zeros(SHAPE)
    places = zip(scene.centre, mask.shape, strict=True)
    top, left = (round(middle - side / 2) for middle, side in places)
    whole[top : top + mask.shape[0], left : left + mask.shape[1]] = mask
    lines = np.zeros(SHAPE)
    if ruled:
        lines[ruled // 2 :: ruled] = lines[ruled // 2 + 1 :: ruled] = 1
    whole, lines = (
        ndimage.rotate(each, scene.angle, reshape=False, order=1) for each in (whole, lines)
    )
    pixels = paper + (0.75 * paper - paper) * lines
    pixels = pixels + (ink - pixels) * whole
    y, x = np.mgrid[: SHAPE[0], : SHAPE[1]] / max(SHAPE)
    light = 1 - scene.shadow / (1 + np.exp(-12 * (x + y - 0.9)))
    texture = ndimage.gaussian_filter(random.normal(size=SHAPE), 3) * 12
    pixels = ndimage.gaussian_filter(pixels * light + texture, 1.2) + random.normal(0, 3, SHAPE)
    colour = pixels[..., None] * np.array([1, 0.97, 0.9])
    return Image.fromarray(colour.clip(0, 255).astype(np.uint8)), DIGITS[scene.example]


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
    for number, scene in enumerate(SCENES):
        file = args.output_dir / f"{scene.name}.png"
        picture, digit = draw_picture(number)
        picture.save(file)
        image, _ = read_upload(file, detector.ebm_.config)
        p = detector.p_value(image).item()
        probabilities = detector.ebm_.classify(image)[0]
        best = int(probabilities.argmax())
        bits = detector.ebm_.likelihood(image).bits_per_dim.item()
        confidence = probabilities[best]
        print(
            f"| {scene.name} | {digit} | {p:.3f} | {best} | {confidence:.2f} | {bits:.3f} |",
            flush=True,
        )
        right, flagged = right + (best == digit), flagged + (p <= 0.05)
    return {"pictures": len(SCENES), "right": right, "flagged": flagged}


if __name__ == "__main__":
    raise SystemExit(run_script(main))

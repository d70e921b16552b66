"""Cut scikit-learn's two photographs into colour images of 32x32, data that need no network.

    python tools/colour_patches.py --output_dir data/patches
    accelerate launch train/ebm.py --dataset folder:data/patches

The right fifth of each photograph is the test split, the tenth beside it validation and the rest
train, so that no pixel lies in two splits. Training images overlap, test images do not.
"""

from ebm_app.io.start import run_script  # isort: skip  before what takes seconds

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from ebm_app.io.cli import Parser

PHOTOGRAPHS = ("china.jpg", "flower.jpg")
SIDE = 32


class Strip(NamedTuple):
    """A split: the share of a photograph's width where it begins and ends, and the pixels from one
    image of it to the next."""

    name: str
    start: float
    end: float
    stride: int


STRIPS = (
    Strip("train", 0.0, 0.7, 8),
    Strip("validation", 0.7, 0.8, SIDE),
    Strip("test", 0.8, 1.0, SIDE),
)


def cut(photograph: np.ndarray, strip: Strip) -> list[np.ndarray]:
    """The images (SIDE, SIDE, 3) of a strip of a photograph (H, W, 3).

    >>> len(cut(np.zeros((427, 640, 3), np.uint8), STRIPS[2]))
    52
    """
    height, width, _ = photograph.shape
    rows = range(0, height - SIDE + 1, strip.stride)
    columns = range(round(strip.start * width), round(strip.end * width) - SIDE + 1, strip.stride)
    return [photograph[i : i + SIDE, j : j + SIDE] for i in rows for j in columns]


def main(argv: Sequence[str] | None = None) -> dict[str, int]:
    """Write the images; how many of each split."""
    parser = Parser(__doc__)
    parser.add_argument("--output_dir", default="data/patches", help="folder of the images")
    args = parser.parse_args(argv)
    from sklearn.datasets import load_sample_image  # over a second to import: --help does without

    photographs = [load_sample_image(name) for name in PHOTOGRAPHS]
    written = {}
    for strip in STRIPS:
        folder = Path(args.output_dir) / strip.name
        folder.mkdir(parents=True, exist_ok=True)
        images = [image for photograph in photographs for image in cut(photograph, strip)]
        for index, image in enumerate(images):
            Image.fromarray(image).save(folder / f"{index:05d}.png")
        written[strip.name] = len(images)
    return written


if __name__ == "__main__":
    sys.exit(run_script(main))

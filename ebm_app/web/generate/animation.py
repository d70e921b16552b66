"""The way from noise to images as an animated PNG."""

import math
from pathlib import Path

from PIL import Image
from PIL.PngImagePlugin import PngInfo

MAX_FRAMES, MAX_ENLARGED = 40, 360
FRAME_MS, LAST_FRAME_MS = 100, 2000


def is_kept(step: int, num_steps: int) -> bool:
    """Whether a step before the last is a frame: with the last there are ``MAX_FRAMES`` at most,
    and the first is one of them."""
    return (step - 1) % math.ceil(num_steps / (MAX_FRAMES - 1)) == 0


def save_animation(sheets: list[Image.Image], path: Path, info: PngInfo) -> None:
    """Write sheets of one size as the frames of an endless animation that rests on the last.

    Pixels are repeated, none is blended, up to ``MAX_ENLARGED`` in a row; no colour is lost.
    """
    factor = max(1, MAX_ENLARGED // sheets[0].width)
    size = tuple(side * factor for side in sheets[0].size)
    frames = [sheet.resize(size, Image.Resampling.NEAREST) for sheet in sheets]
    frames[0].save(
        path,
        save_all=True,
        append_images=frames[1:],
        duration=[FRAME_MS] * (len(frames) - 1) + [LAST_FRAME_MS],
        loop=0,
        pnginfo=info,
    )

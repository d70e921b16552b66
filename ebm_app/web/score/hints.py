"""What a visitor should know of an upload before its likelihood means something."""

from pathlib import Path

from PIL import Image

from ebm_app.models.config import EBMConfig

from .framing import FRAMES, ground
from .lossy import lossy_format

LOSSY = (
    "Hint: {name} changes pixels a little, and that costs bits: send the original as PNG if there "
    "is one."
)
RESIZED = "Hint: resizing changed pixels, and that costs bits: {width}x{height} pixels need none."
LIGHT_GROUND = (
    "Hint: the ground is light, but the model's data are light digits on a dark ground: {remedy}."
)


def of_file(path: Path) -> list[str]:
    """On the format of a readable file."""
    name = lossy_format(path)
    return [LOSSY.format(name=name)] if name else []


def of_ground(picture: Image.Image, config: EBMConfig, inverted: bool) -> list[str]:
    """On a light ground, for a model of light digits on a dark one."""
    if config.dataset not in FRAMES or ground(picture) < 128:
        return []
    remedy = "take the tick from Invert" if inverted else "tick Invert"
    return [LIGHT_GROUND.format(remedy=remedy)]


def of_size(changed: bool, config: EBMConfig) -> list[str]:
    """On an image whose pixels a change of size changed."""
    _, height, width = config.image_shape
    return [RESIZED.format(width=width, height=height)] if changed else []

"""Held-out images of a model's own data: ten to try, and those that fit a detector."""

from pathlib import Path

from PIL import Image
from torch import Tensor

from ebm_app.config import EBMConfig
from ebm_app.data.images import DATASETS, load_images
from ebm_app.data.levels import image_format, to_display
from ebm_app.data.pictures import image_grid, to_pil
from ebm_app.folders import read_config
from ebm_app.utils.errors import UserError
from ebm_app.utils.registry import choose

EXAMPLE_FILE, NUM_EXAMPLES = "example_{}.png", 10
#: every pixel of an example is repeated until it is as wide: a page shows an image no larger
EXAMPLE_PIXELS = 224
MAX_IMAGES = 297


def held_out_images(config: EBMConfig, data_root: str) -> Tensor:
    """Levels (N, C, H, W) of the first held-out images of a model's data set.

    Raises:
        UserError: where they are not on this machine, or do not fit the model.
    """
    data = load_images(choose("data set", config.dataset, DATASETS), data_root)
    if image_format(data) != image_format(config):
        raise UserError(f"the images have {image_format(data)}: take others for this model")
    return data.test[:MAX_IMAGES]


def examples(folder: Path, data_root: str) -> list[Path | Image.Image]:
    """Held-out images for the model in a folder: its own files, or from data on this machine."""
    files = [folder / EXAMPLE_FILE.format(index) for index in range(NUM_EXAMPLES)]
    if files[0].is_file():
        return files
    try:
        config = read_config(EBMConfig, folder)
        levels = held_out_images(config, data_root)
    except UserError:  # a model that cannot be read is explained when it is chosen
        return []
    images = to_display(levels[:NUM_EXAMPLES], config.num_levels)
    return [to_pil(image_grid(image, EXAMPLE_PIXELS)) for image in images.split(1)]

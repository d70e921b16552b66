"""Image files of another form than a model's are refused, and converted only if allowed."""

from itertools import combinations

import numpy as np
import pytest
import torch
from conftest import GREY, error_of, save_picture
from PIL import Image

from ebm_app.config import EBMConfig
from ebm_app.data.levels import to_display
from ebm_app.data.pictures import convert_image, to_pil, to_pixels, to_uint8
from ebm_app.evaluation.held_out import images_for

PHOTO = Image.fromarray(np.random.RandomState(0).randint(0, 256, (20, 30, 3), dtype=np.uint8))
SMALL = PHOTO.resize((8, 8))
COLOUR = EBMConfig("folder:photos", (3, 8, 8), 256)
#: name -> image, configuration, conversions that it needs
CASES = {
    "another size": (PHOTO, COLOUR, {"resize"}),
    "colour for grey": (SMALL, EBMConfig("x", (1, 8, 8), 256), {"grayscale"}),
    "grey for colour": (SMALL.convert("L"), COLOUR, {"rgb"}),
    "more levels": (SMALL.convert("L"), GREY, {"round_levels"}),
    "all": (PHOTO, GREY, {"resize", "grayscale", "round_levels"}),
    "none": (SMALL, COLOUR, set()),
}


@pytest.mark.parametrize(("image", "config", "needed"), CASES.values(), ids=CASES.keys())
def test_exactly_the_needed_conversions_are_named(image, config, needed):
    levels = convert_image(image, "photo", config, needed)
    assert levels.shape == config.image_shape and int(levels.max()) < config.num_levels
    if needed == {"resize"}:  # as for training
        assert torch.equal(levels, to_pixels(PHOTO, "photo", 8))
    for num in range(len(needed)):
        for allowed in combinations(sorted(needed), num):
            message = error_of(convert_image, image, "photo", config, allowed)
            flags = {word for word in message.replace(".", "").split() if word.startswith("--")}
            assert flags == {f"--{name}" for name in needed - {*allowed}}


@pytest.mark.parametrize("num_levels", [2, 17, 255, 256])
def test_saved_samples_need_no_conversion(num_levels):
    levels = (torch.arange(64).view(1, 8, 8) * 4 % num_levels).byte()
    saved = to_pil(to_uint8(to_display(levels, num_levels)[None])[0])
    config = EBMConfig("x", (1, 8, 8), num_levels)
    assert torch.equal(convert_image(saved, "sample", config), levels)


def test_folders_are_converted_only_if_allowed(tmp_path):
    for index, pixels in enumerate(np.random.RandomState(0).randint(0, 256, (60, 9, 12, 3))):
        save_picture(tmp_path / f"{index}.png", pixels)
    name = f"folder:{tmp_path}"
    message = error_of(images_for, GREY, name)
    assert "12x9 RGB" in message and "--grayscale --resize --round_levels" in message
    data = images_for(GREY, name, allowed=["grayscale", "resize", "round_levels"])
    assert data.train.shape[1:] == (1, 8, 8) and data.num_levels == 17 and data.train.max() < 17
    own = images_for(EBMConfig(name, (3, 8, 8), 256), name)  # as by --resolution 8
    assert own.image_shape == (3, 8, 8)

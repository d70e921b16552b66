"""A folder of images of few grey values: its palette, from the files to samples and back."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import NET, error_of
from PIL import Image

from ebm_app.data import load_images, quantise, to_levels
from ebm_app.data.palette import find_palette
from ebm_app.data.png import to_uint8
from ebm_app.evaluation.held_out import images_for
from ebm_app.image_models.ebm import EBM
from ebm_app.models.config import EBMConfig
from ebm_app.training.presets import suited_to_levels

SPLITS = ("train", "validation", "test")
PALETTE = (3, 20, 33, 34, 255)
CONFIG = EBMConfig("few", (1, 6, 6), 5, net=NET, eps=1e-4, num_nodes=4, palette=PALETTE)


def write(folder, values=PALETTE, numbers=(20, 3, 3)):
    """Images of the given values in three splits; the pixels (N, 6, 6)."""
    draw = np.random.RandomState(0)
    pixels = draw.choice(np.array(values, dtype=np.uint8), (sum(numbers), 6, 6))
    parts = np.split(pixels, np.cumsum(numbers)[:-1])
    for split, part in zip(SPLITS, parts, strict=True):
        (folder / split).mkdir(parents=True, exist_ok=True)
        for i, image in enumerate(part):
            Image.fromarray(image).save(folder / split / f"{i:02d}.png")
    return pixels


def add_image(folder, value):
    folder.mkdir(parents=True, exist_ok=True)
    Image.new("L", (6, 6), value).save(folder / "other.png")


def test_a_palette_is_of_few_values_that_are_used_often():
    def of(num, uses):
        return torch.arange(num, dtype=torch.uint8).flip(0).repeat(uses)

    assert find_palette(of(64, 100)) == tuple(range(64))
    assert find_palette(of(65, 1000)) == (), "too many"
    assert find_palette(of(64, 99)) == (), "others may be missing by chance"
    assert find_palette(of(1, 1000)) == (), "nothing to learn"
    assert find_palette(torch.tensor([255, 0], dtype=torch.uint8).repeat(100)) == (0, 255)


def test_files_to_levels_to_display_to_files(tmp_path):
    pixels = write(tmp_path)
    data = load_images(f"folder:{tmp_path}")
    assert data.palette == PALETTE and data.num_levels == 5
    levels = torch.cat([data.split(split) for split in SPLITS])
    assert levels.dtype == torch.uint8 and levels.unique().tolist() == [0, 1, 2, 3, 4]
    shown = data.display(levels)
    assert np.array_equal(to_uint8(shown)[..., 0], pixels)
    assert torch.equal(to_levels(shown, 5, PALETTE), levels)
    assert torch.equal(quantise((levels.double() + 0.5) / 5, 5, PALETTE).float(), shown)


def test_all_256_levels_are_kept_where_they_are_asked_for_or_used(tmp_path):
    pixels = write(tmp_path)
    data = load_images(f"folder:{tmp_path}", palette=())
    assert (data.palette, data.num_levels) == ((), 256)
    assert sorted(data.test.flatten().tolist()) == sorted(pixels[23:].flatten().tolist())
    assert "for folder:PATH only" in error_of(load_images, "digits", palette=PALETTE)


def test_a_held_out_value_that_no_training_image_has_is_refused(tmp_path):
    write(tmp_path)
    add_image(tmp_path / "test", 37)
    message = error_of(load_images, f"folder:{tmp_path}")
    assert "the grey value 37" in message and "3 20 33 34 255" in message
    add_image(tmp_path / "train", 37)
    assert load_images(f"folder:{tmp_path}").palette == (3, 20, 33, 34, 37, 255)


def test_a_model_takes_and_gives_the_values_of_its_palette(tmp_path):
    EBM(CONFIG).save_pretrained(tmp_path)
    ebm = EBM.from_pretrained(tmp_path)
    assert ebm.config == CONFIG
    images = ebm.sample(3, num_steps=2)
    values = torch.tensor(PALETTE) / 255
    levels = to_levels(images, 5, PALETTE)
    assert torch.equal(values[levels.long()], images) and len(images.unique()) > 2
    even = EBM(replace(CONFIG, palette=())).eval()
    even.load_state_dict(ebm.state_dict())
    bits = even.log_prob(levels / 4, estimator="ratio").log_prob
    for x in (images, levels):
        assert torch.equal(ebm.log_prob(x, estimator="ratio").log_prob, bits)
    assert "the grey value 37" in error_of(ebm.log_prob, torch.full((1, 1, 6, 6), 37 / 255))


def test_other_images_are_scored_by_the_palette_of_the_model(tmp_path):
    ebm = EBM(CONFIG)
    write(tmp_path / "fewer", PALETTE[1:])
    data = images_for(ebm, f"folder:{tmp_path}/fewer")
    assert data.palette == PALETTE and data.train.unique().tolist() == [1, 2, 3, 4]
    add_image(tmp_path / "fewer" / "test", 99)
    assert "the grey value 99" in error_of(images_for, ebm, f"folder:{tmp_path}/fewer")
    message = error_of(images_for, EBM(replace(CONFIG, image_shape=(1, 8, 8))), "digits")
    assert "5 levels, the grey values 3 20 33 34 255" in message and "17 levels" in message


def test_frequencies_and_margin_by_the_number_of_levels():
    bins = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
    assert suited_to_levels(256) == {"input_frequencies": bins, "eps": 5e-9}
    for num_levels in (2, 3, 5, 16, 17, 64, 200):
        found = suited_to_levels(num_levels)
        frequencies = found["input_frequencies"]
        assert frequencies[-1] == num_levels / 2, "a period for each bin of width 2 / L"
        assert all(2 * a == b for a, b in zip(frequencies, frequencies[1:], strict=False))
        assert 2 <= frequencies[0] < 4 or num_levels < 4
        assert num_levels * found["eps"] ** 0.5 == pytest.approx(256 * 5e-9**0.5)

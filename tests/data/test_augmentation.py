"""Random transforms of training images, and their conditions."""

import math

import pytest
import torch

from ebm_app.data.augmentation import AUGMENTATIONS, Affine
from ebm_app.data.datasets import load_images
from ebm_app.utils.random import RowNoise


def noise(num):
    return RowNoise("cpu", 0, 0, torch.arange(num), num)


class Ones:
    """Noise that transforms each image, by one standard deviation."""

    def uniform(self, *shape):
        return torch.zeros(shape)

    def normal(self, *shape):
        return torch.ones(shape)


def transform(position, value, monkeypatch, levels):
    """Transform ``levels`` by one number of the condition."""
    deviations = [0.0] * 6
    deviations[position] = value
    monkeypatch.setattr(Affine, "deviations", deviations)
    return Affine()(levels, Ones())[0]


@pytest.mark.parametrize("name", ["none", "affine"])
def test_zero_condition_has_no_effect(name):
    levels = load_images("digits").train[:200]
    changed, condition = AUGMENTATIONS[name]()(levels, noise(200))
    assert changed.dtype == torch.uint8 and changed.shape == levels.shape and changed.max() <= 16
    assert condition.shape == (200, AUGMENTATIONS[name].dim)
    same = (condition == 0).all(1)
    assert torch.equal(changed[same], levels[same])


def test_flip_mirrors_half_of_the_images():
    levels = load_images("digits").train[:200]
    changed, _ = AUGMENTATIONS["flip"]()(levels, noise(200))
    is_mirrored = (changed == levels.flip(-1)).flatten(1).all(1)
    assert (is_mirrored | (changed == levels).flatten(1).all(1)).all()
    assert 60 < is_mirrored.sum() < 140


def test_rotation_shift_and_scale_match_closed_form(monkeypatch):
    levels = torch.zeros(1, 1, 8, 8, dtype=torch.uint8)
    levels[0, 0, 1, 2], levels[0, 0, 5, 6] = 16, 8
    turned = transform(0, math.pi / 2, monkeypatch, levels)
    assert any(torch.equal(turned, levels.rot90(k, (2, 3))) for k in (1, 3))
    shifted = transform(4, 0.5, monkeypatch, levels)  # half of half the side: two pixels
    assert torch.equal(shifted[..., :-2], levels[..., 2:])
    flat = torch.full((1, 1, 8, 8), 7, dtype=torch.uint8)
    assert torch.equal(transform(2, math.log(2), monkeypatch, flat), flat)

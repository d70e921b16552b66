"""Bundled models: their bits per dim, and those of their cards."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import ebm_app
from ebm_app import EBM
from ebm_app.data.images import load_images
from ebm_app.utils.tensors import standard_error

BUNDLED = Path(ebm_app.__file__).parent / "pretrained"
#: Bits per dim; one thread or two differ by 1e-8
TOLERANCE = 1e-4
#: Bits per dim by elbo: mean and first image; mean of the card over the test split, and its error
BITS = {
    "digits": (1.647134, 1.559604, 1.6629, 0.0158),
    "digits-energy": (1.708638, 1.393690, 1.6626, 0.0216),
    "mnist": (0.860089, 0.764414, 0.8977, 0.0029),
    "fashion": (2.305374, 2.788862, 2.7574, 0.0270),
    "cifar10": (3.540795, 3.116231, 3.0727, 0.0216),
    "mnist-energy": (1.032214, 0.933572, 1.1052, 0.0088),
    "mnist-latent": (1.051284, 0.983882, 1.0774, 0.0085),
}
#: Mean bits per dim of eight digits by other estimators.
DIGITS = {
    "digits": {"time_integral": 1.650206, "path_integral": 1.588769},
    "digits-energy": {"energy": 1.631929},
}


def levels_of(name):
    """Return the first 32 held-out digits, or the images in the model folder: ten grey ones, or
    three in colour."""
    if name.startswith("digits"):
        return load_images("digits").test[:32]
    files = [BUNDLED / name / f"example_{index}.png" for index in range(10)]
    pixels = [np.asarray(Image.open(file))[::8, ::8] for file in files]  # enlarged eight times
    levels = torch.from_numpy(np.stack(pixels))
    return levels[:, None] if levels.ndim == 3 else levels[:3].permute(0, 3, 1, 2)


@pytest.mark.parametrize("name", BITS)
def test_bits_match_the_card(name):
    ebm, levels = EBM.from_pretrained(name), levels_of(name)
    bits = ebm.likelihood(levels, estimator="elbo").bits_per_dim.double()
    mean, first, published, error = BITS[name]
    assert bits.mean().item() == pytest.approx(mean, abs=TOLERANCE)
    assert bits[0].item() == pytest.approx(first, abs=TOLERANCE)
    assert abs(mean - published) < 3 * math.hypot(standard_error(bits).item(), error)


@pytest.mark.parametrize("name", DIGITS)
def test_other_estimators_on_digits(name):
    ebm, levels = EBM.from_pretrained(name), levels_of(name)[:8]
    for estimator, expected in DIGITS[name].items():
        bits = ebm.likelihood(levels, estimator).bits_per_dim.mean().item()
        assert bits == pytest.approx(expected, abs=TOLERANCE)


def test_samples_of_digits():
    images = EBM.from_pretrained("digits").sample(4, "pf_ode", num_steps=5)
    # rounding may move a pixel to the next level, which changes the mean by 2e-4
    assert images.mean().item() == pytest.approx(0.357910, abs=1e-3)

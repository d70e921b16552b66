"""Bits per dim of lossless image formats."""

import pytest
import torch
from conftest import error_of

from ebm_app.evaluation.scoring import codec_bits


@pytest.mark.parametrize("channels", [1, 3])
def test_noise_takes_as_many_bits_as_it_has(channels):
    """Random bits cannot be compressed, so a size below them would be a wrong number of pixels."""
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(0, 256, (40, channels, 16, 16), generator=generator)
    found = codec_bits(bits.byte())
    assert {"PNG", "WebP"} <= set(found) and all(8 <= value < 8.5 for value in found.values())
    assert all(value < 1 for value in codec_bits(torch.zeros_like(bits)).values())


def test_other_images_are_user_errors():
    assert "channels" in error_of(codec_bits, torch.zeros(4, 2, 8, 8))

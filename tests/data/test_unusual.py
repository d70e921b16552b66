"""Kinds of unusual images: what each one keeps."""

import pytest
import torch
from exact import generator as rng

from ebm_app.data.unusual import KINDS, OTHER_KINDS, make_unusual

ALL = KINDS | OTHER_KINDS


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("shape", [(6, 1, 8, 8), (5, 3, 28, 12)])
def test_kinds_keep_the_shape_and_change_most_images(kind, shape):
    images = torch.rand(shape, generator=rng())
    changed = ALL[kind](images, rng())
    assert changed.shape == shape and changed.isfinite().all()
    assert (changed != images).flatten(1).any(1).sum() >= len(images) - 1
    assert torch.equal(changed, ALL[kind](images, rng()))


@pytest.mark.parametrize(
    "kind", ["warped", "halves of two", "shuffled", "thick strokes", "a square of another"]
)
def test_rearranging_kinds_keep_a_constant_image(kind):
    grey = torch.full((4, 1, 8, 8), 0.25)
    torch.testing.assert_close(ALL[kind](grey, rng()), grey)


def test_unusual_images_are_levels():
    levels = torch.randint(17, (200, 1, 8, 8), dtype=torch.uint8, generator=rng())
    changed = make_unusual(levels, 17, rng(), KINDS)
    assert changed.dtype == torch.uint8 and changed.shape == levels.shape and changed.max() == 16
    assert torch.equal(changed, make_unusual(levels, 17, rng(), KINDS))
    assert (changed != levels).flatten(1).any(1).float().mean() > 0.9

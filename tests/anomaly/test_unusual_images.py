"""Kinds of unusual images of the study of the detector."""

import pytest
import torch
from exact import generator

from unusual_images import KINDS, make_unusual


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(6, 1, 8, 8), (5, 3, 28, 12)])
def test_kinds_keep_the_shape_and_change_most_images(kind, shape):
    images = torch.rand(shape, generator=generator())
    changed = KINDS[kind](images, generator())
    assert changed.shape == shape and changed.isfinite().all()
    assert (changed != images).flatten(1).any(1).sum() >= len(images) - 1
    assert torch.equal(changed, KINDS[kind](images, generator()))


@pytest.mark.parametrize(
    "kind", ["warped", "halves of two", "shuffled", "thick strokes", "a square of another"]
)
def test_rearranging_kinds_keep_a_constant_image(kind):
    grey = torch.full((4, 1, 8, 8), 0.25)
    torch.testing.assert_close(KINDS[kind](grey, generator()), grey)


def test_anomalies_are_valid_levels():
    levels = torch.randint(17, (200, 1, 8, 8), dtype=torch.uint8, generator=generator())
    changed = make_unusual(levels, 17, generator(), KINDS)
    assert changed.dtype == torch.uint8 and changed.shape == levels.shape and changed.max() == 16
    assert torch.equal(changed, make_unusual(levels, 17, generator(), KINDS))
    assert (changed != levels).flatten(1).any(1).float().mean() > 0.9

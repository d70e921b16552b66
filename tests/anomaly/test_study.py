"""Kinds of unusual images of the study of the detector."""

import pytest
import torch
from exact import generator

from anomaly import KINDS


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(5, 3, 28, 12)])
def test_kinds_keep_the_shape_and_change_most_images(kind, shape):
    images = torch.rand(shape, generator=generator())
    changed = KINDS[kind](images, generator())
    assert changed.shape == shape and changed.isfinite().all()
    assert (changed != images).flatten(1).any(1).sum() >= len(images) - 1
    assert torch.equal(changed, KINDS[kind](images, generator()))

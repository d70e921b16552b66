"""Kinds of unusual images of the study of the detector."""

import pytest
import torch
from exact import generator

from anomaly import KINDS, make_unusual
from ebm_app.data.datasets import load_images


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(6, 1, 8, 8), (5, 3, 28, 12)])
def test_kinds_keep_the_shape_and_change_most_images(kind, shape):
    images = torch.rand(shape, generator=generator())
    changed = KINDS[kind](images, generator())
    assert changed.shape == shape and changed.isfinite().all()
    assert (changed != images).flatten(1).any(1).sum() >= len(images) - 1
    assert torch.equal(changed, KINDS[kind](images, generator()))


@pytest.mark.parametrize(
    "kind",
    [
        "warped",
        "quarter turns",
        "mirrored",
        "halves of two",
        "shuffled",
        "thick strokes",
        "a square of another",
    ],
)
def test_rearranging_kinds_keep_a_constant_image(kind):
    grey = torch.full((4, 1, 8, 8), 0.25)
    torch.testing.assert_close(KINDS[kind](grey, generator()), grey)


def test_anomalies_are_valid_levels():
    data, share = load_images("digits"), []
    for kind in KINDS:
        changed = make_unusual(data.test, data, kind, 3)
        assert changed.dtype == torch.uint8 and changed.shape == data.test.shape
        assert changed.max() <= 16 and torch.equal(changed, make_unusual(data.test, data, kind, 3))
        share.append((changed != data.test).flatten(1).any(1).double().mean())
    assert torch.stack(share).mean() > 0.9

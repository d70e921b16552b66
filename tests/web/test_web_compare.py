"""Comparison of two images and the morph between them."""

import numpy as np
import pytest
import torch
from conftest import digit, error_of

from ebm_app.ebm import EBM
from ebm_app.morphing import iterate_morph, slerp
from ebm_app.web import compare
from ebm_app.web.models import Models


def metrics(bits):
    nats = -bits * 64 * np.log(2)
    return {"bits_per_dim": bits, "bits_error": 0.3, "log_prob": nats, "answer": f"at {bits}"}


@pytest.mark.parametrize(
    ("bits", "words"),
    [(2.0, "0.500 ± 0.424 bits per dim more than A: A"), (1.25, "less than A: B")],
)
def test_comparison_states_the_difference_of_the_bits(bits, words):
    kept, text, _ = compare.keep(digit(), metrics(1.5))
    assert text == "A: 1.500 ± 0.300 bits per dim. at 1.5"
    text, figure = compare.compare(kept, digit(1), metrics(bits))
    nats = abs(bits - 1.5) * 64 * np.log(2)
    assert words in text and f"is more likely, by {nats:.1f} nats" in text
    shown = figure.axes[2].images[0].get_array()
    assert np.allclose(shown, (digit(1) - digit())[0, 0])
    for missing in ((None, metrics(1.5)), (digit(), None)):
        assert "no scored image" in error_of(compare.keep, *missing)
        assert compare.compare(kept, *missing)[1] is None


def test_morph_starts_and_ends_at_the_images():
    images = torch.cat([digit(0), digit(1)])
    ebm = EBM.from_pretrained("digits")
    *_, last = iterate_morph(ebm, images, 5)
    frames = ebm.to_images(last.x)
    assert (frames[[0, -1]] - images).abs().mean() < 0.02
    assert (frames[2] - images.mean(0)).abs().mean() > 0.05  # not a cross-fade
    models = Models({"digits": "digits"})
    models.load = lambda name: ebm
    kept = compare.Scored(images[:1], {})
    *_, shown = compare.morph("digits", kept, images[1:], models=models)
    assert [name for _, name in shown][:2] == ["A", "14%"] and shown[-1][1] == "B"
    assert "two images" in error_of(list, compare.morph("digits", None, digit(), models=models))


def test_slerp_keeps_the_norm_and_halves_the_angle():
    a, b = torch.tensor([3.0, 0.0]), torch.tensor([0.0, 3.0])
    middle = slerp(a, b, torch.tensor([0.0, 0.5, 1.0]))
    expected = torch.tensor([[3.0, 0.0], [4.5**0.5, 4.5**0.5], [0.0, 3.0]])
    assert torch.allclose(middle, expected, atol=1e-6)
    assert torch.allclose(slerp(a, a, torch.tensor([0.3])), a[None])

"""Conformal p-values and the two-sample test."""

import numpy as np
import torch

from ebm_app.anomaly import conformal_p_values, two_sample_test
from ebm_app.anomaly.p_values import energy_distances
from ebm_app.data.images import load_images
from ebm_app.ebm import EBM


def test_conformal_p_values_are_uniform():
    """Each of n + 1 distinct scores is equally likely to be the new one."""
    scores = torch.randperm(20).double()
    others = [scores[torch.arange(20) != k] for k in range(20)]
    p = [conformal_p_values(scores[k : k + 1], others[k])[0] for k in range(20)]
    np.testing.assert_allclose(sorted(p), np.arange(1, 21) / 20)


def test_energy_distance_matches_its_equation():
    x, in_a = torch.randn(7, 3).double(), torch.tensor([1, 0, 1, 1, 0, 0, 1]).bool()
    a, b = x[in_a], x[~in_a]
    expected = 2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean() - torch.cdist(b, b).mean()
    torch.testing.assert_close(energy_distances(torch.cdist(x, x), in_a[None]), expected[None])


def test_two_sample_test_detects_mirrored_images():
    ebm, digits = EBM.from_pretrained("digits"), load_images("digits")
    a, b = digits.test[:40], digits.test[40:80]
    same = two_sample_test(ebm, a, b, 199)
    shifted = two_sample_test(ebm, a, torch.cat([b[:20], b[20:].flip(-1)]), 199)
    assert same.p_value > 0.05 > shifted.p_value and shifted.b.shape == (40,)
    assert shifted.b[20:].mean() < shifted.b[:20].mean()

"""Checks of the self-test: the noise predicted by a Stein head, and what passes."""

import math

import pytest
import torch
from conftest import error_of
from exact import ExactModel, generator

from ebm_app.evaluation.selftest import PREDICTED_NOISE, judge, noise_excess
from ebm_app.likelihood.elbo import START
from ebm_app.nets.density import density_of
from ebm_app.paths import LinearVPPath


class Scaled(ExactModel):
    """A model whose Stein score is multiplied by 1.1."""

    def forward(self, x, t):
        output = super().forward(x, t)
        return output._replace(score=1.1 * output.score)


def test_noise_of_a_scaled_head_matches_closed_form():
    """For N(0, 1) on a variance-preserving path, e_s = sqrt(v) x, E e_s . (e_s - e) =
    (1 + q) q v, and v = 1 / (1 + exp l)."""
    q, model = 0.1, Scaled(LinearVPPath(), 1e-4, [[0.0]], [1.0], stein_channels=1)
    energy = density_of(model)
    excess = noise_excess(energy, model.data((4000, 3)), 32, generator())
    ends = torch.tensor([START, energy.end], dtype=torch.float64)
    first, last = (2 * model.path.alpha(ends).log() - model.path.variance(ends).log()).tolist()

    def integral(at):
        return at - math.log1p(math.exp(at))

    truth = (1 + q) * q / 2 * (integral(last) - integral(first)) / math.log(2)
    check = judge("noise", excess, PREDICTED_NOISE, "")
    assert check.value == pytest.approx(truth, abs=3.5 * check.stderr)
    assert check.stderr < truth / 20 and not check.passed


@pytest.mark.parametrize(
    ("mean", "stderr", "passed"),
    [(0.1, 0, True), (-0.39, 0.1, True), (0.41, 0.1, False), (-0.11, 0, False)],
)
def test_check_passes_within_three_standard_errors(mean, stderr, passed):
    values = mean + stderr * torch.tensor([-1.0, 1.0], dtype=torch.float64)
    assert judge("check", values, 0.1, "").passed is passed
    assert "not finite" in error_of(judge, "check", values * math.nan, 0.1, "")

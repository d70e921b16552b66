"""The noise that a Stein head predicts against closed forms."""

import math

import pytest
import torch
from exact import ExactModel, generator
from test_estimators import mixture

from ebm_app.data.images import load_images
from ebm_app.evaluation.selftest import noise_check, noise_excess
from ebm_app.image_models.ebm import EBM
from ebm_app.likelihood import VariationalBound
from ebm_app.likelihood.dequantisation import dequantisation_noise
from ebm_app.models.energy import TimeScoreEnergy
from ebm_app.paths import LinearVPPath

SHAPE = (1, 4, 4)


def scaled(model, factor):
    """The same model with a Stein score that is too large; components and variance stay."""

    def forward(x, t):
        output = ExactModel.forward(model, x, t)
        return output._replace(score=factor * output.score)

    model.forward = forward
    return TimeScoreEnergy(model)


@pytest.mark.parametrize("num_nodes", [16, 32])
def test_an_exact_head_has_none(num_nodes):
    model = mixture(SHAPE)
    excess = noise_excess(
        TimeScoreEnergy(model), model.data((400, *SHAPE)), num_nodes, generator()
    )
    check = noise_check(excess)
    assert check.passed and abs(check.value) < 3 * check.stderr < 0.1


def test_a_head_that_is_too_large_by_its_closed_form():
    """For N(0, 1) on a path that keeps the variance e_s = sqrt(v) x, E e_s . (e_s - e) =
    (1 + q) q v, and v = 1 / (1 + exp l)."""
    q, model = 0.1, ExactModel(LinearVPPath(), 1e-4, [[0.0]], [1.0], stein_channels=1)
    energy = scaled(model, 1 + q)
    excess = noise_excess(energy, model.data((4000, 3)), 32, generator())
    ends = torch.tensor([VariationalBound.start, energy.end], dtype=torch.float64)
    first, last = (2 * model.path.alpha(ends).log() - model.path.variance(ends).log()).tolist()

    def integral(at):
        return at - math.log1p(math.exp(at))

    truth = (1 + q) * q / 2 * (integral(last) - integral(first)) / math.log(2)
    check = noise_check(excess)
    assert check.value == pytest.approx(truth, abs=3.5 * check.stderr)
    assert check.stderr < truth / 20 and not check.passed


@pytest.mark.process
def test_it_is_what_the_integral_along_noisy_copies_lies_above_the_bound():
    """Of the bundled digits model, and of the same with a head that is too large."""
    ebm = EBM.from_pretrained("digits")
    levels = load_images("digits").test[:40]
    noise = dequantisation_noise(1, levels, 0)
    x1 = ebm.dequantiser.training_points(levels, 17, ebm.space, noise[0])
    gaps, excesses = [], []
    for factor in (1.0, 1.05):
        with torch.no_grad():
            ebm.model.net.last_layer.weight[1:] *= factor  # the first channel is the variance
            ebm.model.net.last_layer.bias[1:] *= factor
        bits = [
            ebm.log_prob(levels, estimator=name, noise=noise).bits_per_dim
            for name in ("elbo", "noised")
        ]
        gaps.append((bits[1] - bits[0]).mean().item())
        excesses.append(noise_check(noise_excess(ebm.energy, x1, 32, generator())).value)
    gap, excess = gaps[1] - gaps[0], excesses[1] - excesses[0]
    assert gap > 0.02 and excess == pytest.approx(gap, rel=0.3)

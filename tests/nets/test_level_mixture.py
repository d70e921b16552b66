"""The density of independent pixels on grey levels, as the base of an energy network."""

import pytest
import torch
from exact import F64, normal
from torch import nn

from ebm_app.nets.energy_net import LevelEnergyModel
from ebm_app.nets.level_mixture import LevelMixture
from ebm_app.paths import LinearVPPath, VPPath
from ebm_app.utils.tensors import expand_like, standard_normal_log_density, sum_except_batch

TIMES = torch.tensor([0.0, 0.3, 0.8, 0.99, 0.9999], dtype=F64)


def fitted(path, channels=2, num_levels=12):
    base = LevelMixture(path, channels, num_levels, (1.0, 3.0)).double()
    levels = torch.arange(num_levels).square() % 7
    base.fit(torch.stack([levels, num_levels - 1 - levels]).reshape(1, channels, 3, 4))
    return base


@pytest.mark.parametrize("path", [LinearVPPath(), VPPath()])
def test_base_is_normalised_and_its_derivatives_are_exact(path):
    base, grid = fitted(path), torch.linspace(-9, 9, 40_001, dtype=F64)
    for t in TIMES[1:4]:
        values = base(grid[None, None].expand(1, 2, -1), t[None]).log_density.exp()[0]
        assert torch.allclose(torch.trapezoid(values, grid), torch.ones(2, dtype=F64), atol=1e-6)
    x, t = normal((5, 2, 3, 3)).requires_grad_(), TIMES.clone().requires_grad_()
    output = base(x, t)
    for value, by_x, by_t in (output[:3], output[3:]):
        weights = normal(value.shape, seed=1)
        expected = torch.autograd.grad((value * weights).sum(), (x, t), retain_graph=True)
        slope = (weights * by_x).unflatten(1, (-1, 2)).sum(1)
        rate = sum_except_batch(weights * by_t)
        assert torch.allclose(slope, expected[0], rtol=1e-6, atol=1e-8)
        assert torch.allclose(rate, expected[1], rtol=1e-6, atol=1e-8)
    if isinstance(path, LinearVPPath):
        assert torch.allclose(output.log_density[0], standard_normal_log_density(x[0]))


def test_base_recovers_the_levels_and_their_frequencies():
    base = fitted(LinearVPPath())
    assert torch.allclose(base.log_weights.exp().sum(1), torch.ones(2, dtype=F64), atol=1e-6)
    assert base.log_weights[0].argmax() in (1, 2, 4) and base.frequent[0].tolist()[:3] == [0, 1, 2]
    c = base.waves[:, -1]
    features = base(c.expand(1, 2, -1) * 0.99999, torch.tensor([0.99999], dtype=F64)).features
    means = features.unflatten(1, (-1, 2))[0, :, 0]
    assert torch.allclose(means[4], c, atol=1e-9)  # after two waves of two frequencies
    assert torch.allclose(means[5:, base.frequent[0]], torch.eye(8, dtype=F64), atol=1e-9)


class Mixed(nn.Module):
    """Network of x and 13 features with outputs f and 9 g, for 2 channels each."""

    def __init__(self):
        super().__init__()
        self.weights = nn.Parameter(normal((20, 28), seed=3) / 5)

    def forward(self, x, t):
        return torch.einsum("oi,bi...->bo...", self.weights, (x * expand_like(1 + t, x)).sin())


def test_energy_scores_are_derivatives_of_its_log_density():
    shape = {"channels": 2, "num_levels": 12, "input_frequencies": (1.0, 3.0)}
    model = LevelEnergyModel(Mixed(), LinearVPPath(), 1e-3, **shape).double()
    model.base.load_state_dict(fitted(model.path).state_dict())
    x, t = normal((4, 2, 3, 3)).requires_grad_(), TIMES[:4].clone().requires_grad_()
    score, rate = torch.autograd.grad(model.terms(x, t).sum(), (x, t))
    output = model(x.detach(), t.detach())
    assert torch.allclose(output.score, score, rtol=1e-9)
    assert torch.allclose(output.components[:, 0], rate, rtol=1e-9)
    direction = normal(x.shape, seed=2)  # second derivatives, for the divergence of a flow
    (product,) = torch.autograd.grad((model(x, t.detach()).score * direction).sum(), x)
    ends = (model(x.detach() + h * direction, t.detach()).score for h in (1e-6, -1e-6))
    difference = next(ends) - next(ends)
    assert torch.allclose(product, difference / 2e-6, rtol=1e-5, atol=1e-5)

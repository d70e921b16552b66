"""Densities of exact time scores and of energy networks: log ratios, derivatives, distillation."""

import pytest
import torch
from conftest import error_of
from exact import F64, Exact, ExactBridge, ExactModel, noise_of, normal, points, two_modes
from torch import nn

from ebm_app.config import Calibration
from ebm_app.likelihood.time_integral import EnergyEstimate
from ebm_app.nets.energy import EnergyModel, LevelMixture
from ebm_app.nets.model import MIN_NODES, TimeScoreModel
from ebm_app.paths import LinearVPPath, SchrodingerBridgePath, VPPath
from ebm_app.training.distillation import Distillation
from ebm_app.utils.tensors import (
    CHUNK_SIZES,
    expand_like,
    standard_normal_log_density,
    sum_except_batch,
)

SHAPES = [(2,), (10,), (1, 8, 8)]
INNER = [(0.05, 0.95), (0.3, 0.6), (0.0, 0.5), (0.9, 0.999)]


def gaussian(path, std=0.6, mean=0.5, t_margin=1e-5):
    return ExactModel(path, t_margin, [[mean]], [std])


def bridge(sigma=1.0):
    return ExactBridge(SchrodingerBridgePath(sigma), 1e-3, (-0.4, 0.8), (0.5, 0.6))


#: Models and the nodes that resolve them; the arc length of a bridge is infinite at both ends.
MODELS = {
    "linear c": (gaussian(LinearVPPath(c=0.3)), 32),
    "vp": (gaussian(VPPath()), 32),
    "bridge": (bridge(sigma=0.7), 64),
}


def ratio(model, x, t0, t1):
    return model.log_density(x, t1) - model.log_density(x, t0)


def whole_ratio(density, x):
    return density.log_ratio(x, density.start, density.end)


@pytest.mark.parametrize("name, shape", list(zip(MODELS, SHAPES, strict=True)))
def test_log_ratio_and_its_error_match_closed_form(name, shape):
    model, enough = MODELS[name]
    x = points(model, shape, 8)
    for nodes in (16, 24, enough, 128):
        density = Exact(model, nodes)
        for t0, t1 in [model.interval, *INNER]:
            t0 = max(t0, model.interval[0])
            found = density.log_ratio(x, t0, t1)
            error = (found.value - ratio(model, x, t0, t1)).abs()
            assert (error <= found.error + 1e-10).all() and MIN_NODES <= found.nfe <= nodes
            if nodes == enough:
                back = density.log_ratio(x, t1, t0)
                assert error.max() < 1e-5
                assert torch.allclose(back.value, -found.value, rtol=0, atol=1e-6)
    whole = whole_ratio(density, x)
    assert whole.value.shape == whole.error.shape == (8,) and whole.value.dtype == F64
    assert whole.error.max() < 1e-3
    assert torch.allclose(sum_except_batch(whole.components), whole.value, rtol=1e-12)
    # component i is the log ratio of x_i alone
    single = ratio(model, x.reshape(-1, 1), *model.interval).reshape(x.shape)
    assert (whole.components - single).abs().max() < 1e-5


def test_values_do_not_depend_on_batch_or_chunks(monkeypatch):
    shape, sizes = (1, 8, 8), []
    model = two_modes(VPPath(), 1e-5, shape)
    model.register_forward_hook(lambda *args: sizes.append(len(args[1][0])))
    x = points(model, shape, 6)
    whole = whole_ratio(Exact(model), x)
    alone = torch.cat([whole_ratio(Exact(model), x[i : i + 1]).value for i in range(6)])
    assert torch.allclose(whole.value, alone, rtol=1e-12, atol=1e-12)
    score = Exact(model).score(x, 0.9)
    for num_inputs in (1, 7, 64):
        monkeypatch.setitem(CHUNK_SIZES, "cpu", num_inputs * x[0].numel())
        density = Exact(model)
        sizes.clear()
        chunked = whole_ratio(density, x)
        assert chunked.nfe == whole.nfe == sum(sizes) / 6 and max(sizes) <= max(6, num_inputs)
        for left, right in zip(whole[:3], chunked[:3], strict=True):
            assert torch.allclose(left, right, rtol=1e-11, atol=1e-11)
        assert torch.allclose(score, density.score(x, 0.9), rtol=1e-11, atol=1e-11)


EPS = 1e-3


class Mixed(nn.Module):
    """Network of x and 13 features with outputs f and 9 g, for 2 channels each."""

    def __init__(self):
        super().__init__()
        self.weights = nn.Parameter(normal((20, 28), seed=3) / 5)

    def forward(self, x, t):
        return torch.einsum("oi,bi...->bo...", self.weights, (x * expand_like(1 + t, x)).sin())


def fitted(path, channels=2, num_levels=12):
    base = LevelMixture(path, channels, num_levels, (1.0, 3.0)).double()
    levels = torch.arange(num_levels).square() % 7
    base.fit(torch.stack([levels, num_levels - 1 - levels]).reshape(1, channels, 3, 4))
    return base


def energy_model(path=None, kind=EnergyModel, **settings):
    """Return an energy network of 2 channels with the fitted base."""
    path = path or LinearVPPath()
    shape = {"channels": 2, "num_levels": 12, "input_frequencies": (1.0, 3.0)}
    decoder = TimeScoreModel(nn.Identity(), path, EPS, "moments", 1)
    model = kind(Mixed(), path, EPS, **shape, decoder=decoder, **settings).double()
    model.base.load_state_dict(fitted(path).state_dict())
    return model


def times(path, num=6):
    start, end = path.interval(EPS)
    return torch.linspace(start, end, num, dtype=F64)


PATHS = {"linear c": LinearVPPath(c=0.4), "vp": VPPath()}


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_scores_are_derivatives_of_the_terms(path):
    """And differentiable themselves, for the divergence of a probability flow."""
    model = energy_model(path)
    x, t = normal((6, 2, 3, 3)).requires_grad_(), times(path).requires_grad_()
    score, rate = torch.autograd.grad(model.terms(x, t).sum(), (x, t))
    output, t = model(x.detach(), t.detach()), t.detach()
    assert torch.allclose(output.score, score, rtol=1e-9)
    assert torch.allclose(output.components[:, 0], rate, rtol=1e-9)
    direction = normal(x.shape, seed=2)
    (product,) = torch.autograd.grad((model(x, t).score * direction).sum(), x)
    ends = (model(x.detach() + h * direction, t).score for h in (1e-6, -1e-6))
    difference = next(ends) - next(ends)
    assert torch.allclose(product, difference / 2e-6, rtol=1e-5, atol=1e-5)


def test_energy_equals_the_integral_of_its_time_derivative():
    settings, x = {"calibration": Calibration(0.5, 0.1, 0.2)}, normal((5, 2, 3, 3))
    energy = energy_model(num_nodes=96, **settings)
    for t in (energy.end, 0.7):
        integral = TimeScoreModel.log_density(energy, x, t)
        assert torch.allclose(energy.log_density(x, t), integral, atol=1e-5)
        gradient = TimeScoreModel.log_density_gradient(energy, x, t)
        assert torch.allclose(energy.score(x, t), gradient, atol=1e-4)
    other = energy.with_nodes(8).with_t_margin(0.1)
    assert (other.num_nodes, other.end, other.calibration.mean) == (8, 0.9, 0.5)
    assert torch.equal(other.log_density(x, 0.9), energy.log_density(x, 0.9))
    assert "t_margin" in error_of(EnergyEstimate(), other, x, 0.9, noise_of(x))
    assert "SchrodingerBridgePath" in error_of(energy_model, SchrodingerBridgePath())


def test_distillation_loss_of_a_shift_matches_closed_form():
    """A time score off by delta per unit of arc length costs delta^2 / D."""
    path = LinearVPPath()
    teacher = energy_model(path)
    x, t = normal((6, 2, 3, 3)), times(path)
    sample, loss = path.sample(x, x, t), Distillation(teacher)
    assert loss(teacher, path, sample, t).abs().max() < 1e-20

    class Shifted(EnergyModel):
        def forward(self, x, t):
            output = super().forward(x, t)
            gain, rate = path.score_gain(t), path.time_score_variance(t).sqrt()
            return output._replace(
                score=output.score + 0.3 * expand_like(gain, x),
                components=output.components + 0.4 * rate[:, None],
            )

    found = loss(energy_model(path, Shifted), path, sample, t)[1:]
    assert torch.allclose(found, torch.full((5,), 0.3**2 + 0.4**2 / 18, dtype=F64), rtol=1e-9)


TIMES = torch.tensor([0.0, 0.3, 0.8, 0.99, 0.9999], dtype=F64)


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

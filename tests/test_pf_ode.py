"""The probability flow of known densities: its map, its marginals, and the order of its steps."""

import math

import numpy as np
import pytest
import torch
from exact import F64, ExactBridge, ExactModel, SinePath, normal, two_modes, z_score

from ebm_app.errors import UserError
from ebm_app.paths import LinearVPPath, SchrodingerBridgePath, VPPath
from ebm_app.pf_ode import HEUN, ClockField, FixedSteps, clock_grid

SHAPES = [(2,), (1, 4, 4)]
PATHS = {"linear": LinearVPPath(), "linear c": LinearVPPath(c=0.4), "vp": VPPath()}
START, END = 1e-2, 0.999
STEPS = (16, 32, 64, 128)


def gaussian(path):
    return ExactModel(path, 1e-5, [[0.7]], [0.5], stein_channels=1)


def run(model, x, num_steps, start=START, end=END):
    field = ClockField(model.exact_score, model.path)
    *_, state = FixedSteps(HEUN, num_steps).flow(field, x, start, end)
    return state


def mapped(model, x, start=START, end=END):
    """The exact flow of Gaussian data: (x - alpha mu) / sqrt(m) is constant along it."""
    t = torch.tensor([start, end], dtype=F64)
    mean, variance, *_ = model.moments(t)
    mean, deviation = mean.flatten(), variance[0].sqrt()
    return mean[1] + deviation[1] / deviation[0] * (x - mean[0])


def level(model, x, t):
    """Distribution function of the projection on the modes' line: constant along the flow, which
    is one-dimensional there."""
    mean, variance, *_ = model.moments(torch.tensor([t], dtype=F64))
    direction = (model.means[1] / model.means[1].norm()).flatten()
    place = x.flatten(1) @ direction - (mean[:, 0].flatten(1) @ direction)[:, None]
    modes = torch.special.ndtr(place / variance.sqrt())
    return (model.log_weights.exp()[:, None] * modes).sum(0)


def fitted_order(errors):
    return -np.polyfit(np.log(STEPS), np.log(errors), 1)[0]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_heun_is_of_second_order_on_the_affine_flow_of_a_gaussian(path, shape):
    model, x = gaussian(path), normal((6, *shape))
    exact = mapped(model, x)
    errors = [(run(model, x, n).x - exact).abs().max().item() for n in STEPS]
    assert errors[-1] < 1e-3 and abs(fitted_order(errors) - 2) < 0.15


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_heun_is_of_second_order_on_the_flow_of_a_mixture(path, shape):
    model, x = two_modes(path, 1e-5, shape), normal((64, *shape))
    before = level(model, x, START)
    errors = [(level(model, run(model, x, n).x, END) - before).abs().mean() for n in STEPS]
    assert errors[-1] < 1e-3 and abs(fitted_order(errors) - 2) < 0.25


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("path", [LinearVPPath(), VPPath()], ids=["linear", "vp"])
def test_the_reference_is_pushed_to_the_mean_and_covariance_of_the_data(path, shape):
    model = gaussian(path)
    x = run(model, normal((4000, *shape), 3), 40, start=1e-3).x.flatten(1)
    mean, variance, *_ = model.moments(torch.tensor([END], dtype=F64))
    residual = x - mean.flatten()
    products = residual[:, :, None] * residual[:, None, :]
    expected = variance.squeeze() * torch.eye(x.shape[1], dtype=F64)
    assert z_score(residual) < 4.5
    assert z_score(products.flatten(1), expected.flatten()) < 4.5
    assert z_score(x) > 50  # a flow that went nowhere would be seen


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("sigma", [0.5, 1.0])
def test_the_flow_of_a_bridge_from_noise_is_affine_too(shape, sigma):
    path = SchrodingerBridgePath(sigma)
    model, x = ExactBridge(path, 1e-3, (0.0, 1.0), (0.7, 0.5)), normal((6, *shape))
    assert torch.allclose(run(model, x, 300).x, mapped(model, x), rtol=0, atol=1e-3)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_flow_back_returns_to_the_start(shape):
    model, x = two_modes(VPPath(), 1e-5, shape), normal((8, *shape))
    there = run(model, x, 200).x
    back = run(model, there, 200, start=END, end=START).x
    assert (there - x).abs().max() > 0.1 and (back - x).abs().max() < 1e-3


def test_states_say_where_they_are_and_what_they_cost():
    path, calls = LinearVPPath(), []
    model = gaussian(path)

    def score(x, t):
        calls.append(t)
        return model.exact_score(x, t)

    states = list(FixedSteps(HEUN, 5).flow(ClockField(score, path), normal((3, 2)), START, END))
    grid = clock_grid(path, START, END, 6).tolist()
    assert [s.t for s in states] == grid[1:] and states[-1].t == END
    assert [s.step for s in states] == [1, 2, 3, 4, 5] and {s.num_steps for s in states} == {5}
    assert [s.nfe for s in states] == [2, 4, 6, 8, 10] and len(calls) == 10
    assert calls[::2] == grid[:-1] and calls[1::2] == grid[1:]
    only = run(model, normal((3, 2)), 1)
    assert only.step == 1 and only.t == END and only.x.isfinite().all()


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_the_grid_is_even_in_the_clock_and_keeps_its_ends(path):
    grid = clock_grid(path, START, END, 9)
    gaps = path.clock(grid).diff()
    assert grid.dtype == F64 and grid[0] == START and grid[-1] == END
    assert torch.allclose(gaps, gaps.mean().expand(8), rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_points_keep_their_dtype(dtype):
    model, x = gaussian(LinearVPPath()), normal((3, 1, 4, 4))
    result = run(model, x.to(dtype), 100).x
    assert result.dtype == dtype
    assert torch.allclose(result.double(), mapped(model, x), atol=2e-3)


def test_mistakes_are_refused():
    x, path = normal((2, 2)), LinearVPPath()
    model = gaussian(path)
    sine = ExactModel(SinePath(), 1e-5, [[0.7]], [0.5])
    with pytest.raises(UserError, match="SinePath has no velocity"):
        run(sine, x, 3)
    with pytest.raises(UserError, match="at least 1 step, not 0"):
        run(model, x, 0)
    with pytest.raises(UserError, match="start later"):
        run(model, x, 3, start=0.0)
    assert run(gaussian(VPPath()), x, 3, start=0.0).x.isfinite().all()


def test_a_score_that_is_not_finite_is_not_passed_on():
    def score(x, t):
        return torch.full_like(x, math.nan if t > 0.5 else 0.0)

    field = ClockField(score, LinearVPPath())
    with pytest.raises(ValueError, match="not finite after step"):
        list(FixedSteps(HEUN, 8).flow(field, normal((2, 2)), START, END))

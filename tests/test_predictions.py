"""What a network predicts: the closed form from posterior moments to the time score."""

import math

import pytest
import torch
from exact import F64, ExactModel, normal, two_modes
from torch import nn

from ebm_app.errors import UserError
from ebm_app.model import TimeScoreModel
from ebm_app.numerics import expand_like
from ebm_app.objectives import Batch, ctsm_v
from ebm_app.paths import LinearVPPath, SchrodingerBridgePath, VPPath

EPS = 1e-5
PATHS = {
    "linear": LinearVPPath(),
    "linear c": LinearVPPath(c=0.4),
    "vp": VPPath(),
    "vp c": VPPath(c=2.0),
}
SHAPES = {"vector": (1,), "image": (1, 28, 28), "colours": (3, 32, 32)}


def inverse_softplus(w):
    return torch.log(torch.expm1(w * math.log(2)))


class ExactMoments(nn.Module):
    """A network that knows two modes: the variance and head that `moments` asks of it.

    The modes are independent from component to component, so that each is a problem of its own:
    s' = (Var[eps | x] - 1) / v.
    """

    def __init__(self, exact):
        super().__init__()
        self.exact, self.path = exact, exact.path

    def forward(self, x, t):
        flat = x.reshape(-1, 1).requires_grad_()
        time = self.exact.time.repeat_interleave(x[0].numel())
        path, c = self.path, self.path.c
        alpha, v = path.alpha(time), path.variance(time)
        m = c * alpha.square() + v
        with torch.enable_grad():
            s = self.exact.exact_score(flat, time)[:, 0]
            (slope,) = torch.autograd.grad(s.sum(), flat)
        w = (1 + v * slope[:, 0]) * m / (c * alpha.square())
        h = (s + flat[:, 0] / m) * (v * m).sqrt() / (math.sqrt(c) * alpha)
        parts = [part.detach().reshape(x.shape) for part in (inverse_softplus(w), h)]
        return torch.cat(parts, dim=1)


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_exact_moments_make_the_exact_time_score(path, shape):
    """Component by component, from noise to a noise of 4e-4; the head's score is the exact one."""
    exact = two_modes(path, EPS, (1,))
    t = torch.tensor([0.1, 0.5, 0.9, 0.999, 1 - 1e-7], dtype=F64)
    exact.time = t
    model = TimeScoreModel(ExactMoments(exact), path, EPS, "moments", stein_channels=shape[0])
    times = t.repeat_interleave(math.prod(shape))
    x = exact.sample(times, (len(times), 1)).xt
    out = model(x.reshape(5, *shape), t)
    expected = exact(x, times).components.reshape(5, *shape)
    size = expand_like(path.time_score_variance(t).sqrt(), expected)
    assert ((out.components - expected) / size).abs().max() < 1e-6
    score = exact.exact_score(x, times).reshape(5, *shape)
    assert torch.allclose(out.score, score, rtol=1e-6, atol=1e-6)


class Outputs(nn.Module):
    """A network of constant channels."""

    def __init__(self, *values):
        super().__init__()
        self.values = values

    def forward(self, x, t):
        return torch.cat([torch.full_like(x, value) for value in self.values], dim=1)


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_a_network_of_zeros_is_exact_for_gaussian_data(path):
    """Also at t = 0, where alpha is 0 on the linear path, and in single precision."""
    exact = ExactModel(path, EPS, [[0.0]], [path.c**0.5])
    model = TimeScoreModel(Outputs(0.0, 0.0), path, EPS, "moments", stein_channels=1)
    t = torch.tensor([0.0, 0.3, 0.99, 1 - 1e-6], dtype=F64)
    x = normal((4, 1, 8, 8))
    size = expand_like(path.time_score_variance(t).sqrt(), x)
    for dtype, bound in ((F64, 1e-8), (torch.float32, 1e-5)):
        found = model(x.to(dtype), t).components
        assert found.dtype == dtype
        assert ((found - exact(x, t).components) / size).abs().max() < bound


@pytest.mark.parametrize("name", ["linear", "vp c"])
def test_the_regression_of_ctsm_v_is_least_at_the_exact_moments(name):
    """By the same draws: a variance or a head off by a little raises the loss."""
    path = PATHS[name]
    exact = two_modes(path, EPS, (1,))
    t = torch.full((40_000,), 0.7, dtype=F64)
    exact.time = t
    sample = exact.sample(t, (len(t), 1))
    batch = Batch(sample, torch.ones_like(t))

    class Off(ExactMoments):
        def forward(self, x, t):
            return super().forward(x, t) + torch.tensor(self.shift, dtype=F64)

    def loss(*shift):
        net = Off(exact)
        net.shift = shift
        model = TimeScoreModel(net, path, EPS, "moments", stein_channels=1)
        return ctsm_v()(model, path, batch)

    best = loss(0.0, 0.0)
    for shift in ((0.5, 0.0), (-0.5, 0.0), (0.0, 0.2), (0.0, -0.2)):
        rise = loss(*shift) - best
        assert rise.mean() > 4 * rise.std() / math.sqrt(len(t))


def test_moments_are_refused_where_they_mean_nothing():
    with pytest.raises(UserError, match="needs a path from noise"):
        TimeScoreModel(Outputs(0.0), SchrodingerBridgePath(), EPS, "moments", stein_channels=1)
    with pytest.raises(UserError, match="needs a Stein head"):
        TimeScoreModel(Outputs(0.0), LinearVPPath(), EPS, "moments")
    wide = TimeScoreModel(Outputs(0.0, 0.0), LinearVPPath(), EPS, "moments", stein_channels=3)
    with pytest.raises(ValueError, match="a variance needs shape"):
        wide(normal((2, 2)), torch.tensor([0.1, 0.2], dtype=F64))

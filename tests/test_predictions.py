"""What a network predicts: the closed form from posterior moments to the time score."""

import math

import pytest
import torch
from exact import F64, ExactModel, normal, two_modes
from torch import nn

from ebm_app.io.errors import UserError
from ebm_app.models.time_score import TimeScoreModel
from ebm_app.numerics.tensors import expand_like
from ebm_app.objectives.regression import CTSMm, CTSMv, variance_deviance
from ebm_app.paths import LinearVPPath, SchrodingerBridgePath, VPPath

EPS = 1e-5
PATHS = {
    "linear": LinearVPPath(),
    "linear c": LinearVPPath(c=0.4),
    "vp": VPPath(),
    "vp c": VPPath(c=2.0),
}
SHAPES = {"vector": (1,), "colours": (3, 8, 8)}


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


class Off(ExactMoments):
    """The same, its variance (before the softplus) and its head off by numbers."""

    def __init__(self, exact, shift):
        super().__init__(exact)
        self.shift = nn.Parameter(torch.tensor(shift, dtype=F64))

    def forward(self, x, t):
        return super().forward(x, t) + self.shift


def draws(path, time, num=40_000, means=((-1.2,), (1.2,)), stds=(0.4, 0.4)):
    """An exact model of two modes and a draw of the path at one time."""
    exact = ExactModel(path, EPS, means, stds, (0.3, 0.7), stein_channels=1)
    exact.time = torch.full((num,), time, dtype=F64)
    return exact, exact.sample(exact.time, (num, 1))


def off_by(exact, *shift):
    return TimeScoreModel(Off(exact, shift), exact.path, EPS, "moments", stein_channels=1)


@pytest.mark.parametrize("name", ["linear", "vp c"])
@pytest.mark.parametrize("objective", [CTSMv(), CTSMm(stein_factor=1.0)], ids=["ctsm_v", "ctsm_m"])
def test_the_regressions_are_least_at_the_exact_moments(name, objective):
    """By the same draws: a variance off by a little raises the loss, for CTSM-v a head as well."""
    exact, sample = draws(PATHS[name], 0.7)

    def loss(*shift):
        return objective(off_by(exact, *shift), exact.path, sample, torch.ones_like(sample.t))

    best = loss(0.0, 0.0)
    heads = ((0.0, 0.2), (0.0, -0.2)) if isinstance(objective, CTSMv) else ()
    for shift in ((0.5, 0.0), (-0.5, 0.0), *heads):
        rise = loss(*shift) - best
        assert rise.mean() > 4 * rise.std() / math.sqrt(rise.numel()), shift


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
@pytest.mark.parametrize("shift", [(0.0, 0.0), (0.4, -0.3)], ids=["exact", "off"])
def test_the_deviance_regresses_the_conditional_time_score(path, shift):
    """Its gradient in log w is b^2 (w - r^2), where b (r^2 - w) is a target less the components:
    of less noise than the conditional ones, and of the same mean given x if the head is exact."""
    for time in (0.1, 0.6, 0.99, 1 - 1e-6):
        exact, sample = draws(path, time, 50)
        with torch.no_grad():
            out = off_by(exact, *shift)(sample.xt, sample.t)
        v, gain = path.variance(sample.t)[:, None], path.variance_gain(sample.t)[:, None]
        e = -v.sqrt() * out.score
        d = path.denoise(sample.xt, out.score, sample.t)
        noise, data = sample.eps - e, sample.x1 - d
        spread = path.variance_dt(sample.t)[:, None] / (2 * v)
        drift = path.alpha_dt(sample.t)[:, None] / v.sqrt()
        target = spread * (e.square() + noise.square() - 1) + drift * (d * e + data * noise)
        log_w = out.variance.log().requires_grad_()
        found = variance_deviance(out._replace(variance=log_w.exp()), path, sample)
        (gradient,) = torch.autograd.grad(found.sum(), log_w)
        expected = gain * (out.components - target)
        tolerance = {"rtol": 1e-4, "atol": 1e-6 * float(expected.abs().max())}
        assert torch.allclose(gradient, expected, **tolerance)
        w = out.variance
        squared = w - gradient / gain.square()
        value = (gain.square() * (w - squared * w.log()))[:, 0]
        assert torch.allclose(found, value, rtol=1e-6, atol=1e-6 * float(value.abs().max()))


@pytest.mark.parametrize(("time", "times_less"), [(0.1, 100), (0.9, 100), (0.99, 30), (0.999, 3)])
def test_the_reduced_target_has_the_mean_of_the_other_and_less_noise(time, times_less):
    """The noise is the target less the exact time score; for a pixel that hardly changes, until
    the noise of the path is as little."""
    path = LinearVPPath()
    exact, sample = draws(path, time, means=((-0.9,), (-0.9,)), stds=(0.02, 0.02))
    with torch.no_grad():
        out = off_by(exact, 0.0, 0.0)(sample.xt, sample.t)
    plain = path.conditional_components(sample) - out.components
    gain = path.variance_gain(sample.t)[:, None]
    deviation = (path.conditional_score(sample) - out.score) / path.score_gain(sample.t)[:, None]
    reduced = gain * (deviation.square() - out.variance)
    for noise in (plain, reduced):
        assert abs(noise.mean()) < 4 * noise.std() / math.sqrt(noise.numel())
    assert plain.var() > times_less * reduced.var()


def test_the_deviance_does_not_train_the_head():
    exact, sample = draws(LinearVPPath(), 0.7, 100)
    model = off_by(exact, 0.3, 0.3)
    loss = variance_deviance(model(sample.xt, sample.t), exact.path, sample)
    (gradient,) = torch.autograd.grad(loss.mean(), model.net.shift)
    assert gradient[0] != 0 and gradient[1] == 0


def test_moments_are_refused_where_they_mean_nothing():
    with pytest.raises(UserError, match="use a path from noise"):
        TimeScoreModel(Outputs(0.0), SchrodingerBridgePath(), EPS, "moments", stein_channels=1)
    with pytest.raises(UserError, match="needs a Stein head"):
        TimeScoreModel(Outputs(0.0), LinearVPPath(), EPS, "moments")
    plain = TimeScoreModel(Outputs(0.0, 0.0), LinearVPPath(), EPS, stein_channels=1)
    exact, sample = draws(LinearVPPath(), 0.5, 3)
    with pytest.raises(ValueError, match="needs a model that predicts moments"):
        variance_deviance(plain(sample.xt, sample.t), exact.path, sample)
    wide = TimeScoreModel(Outputs(0.0, 0.0), LinearVPPath(), EPS, "moments", stein_channels=3)
    with pytest.raises(ValueError, match="a variance needs shape"):
        wide(normal((2, 2)), torch.tensor([0.1, 0.2], dtype=F64))

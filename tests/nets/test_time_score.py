"""TimeScoreModel: units, time inputs, the Stein head, posterior moments, and grey levels."""

import math

import pytest
import torch
from exact import F64, ExactModel, generator, normal, two_modes, uniform, z_score
from torch import nn

from ebm_app.nets.grey_levels import (
    RestrictedMoments,
    restrict_to_levels,
    restricted_moments,
)
from ebm_app.nets.model import TimeScoreModel
from ebm_app.objectives.regression import poisson_deviance
from ebm_app.paths import LinearVPPath, SchrodingerBridgePath, VPPath
from ebm_app.utils.tensors import expand_like, sum_except_batch

IMAGE = (2, 4, 4)
EPS = 1e-5
ONE_SIDED = {"linear c": LinearVPPath(c=0.4), "vp": VPPath()}
PATHS = {**ONE_SIDED, "bridge": SchrodingerBridgePath()}
every_path = pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
every_one_sided_path = pytest.mark.parametrize("path", ONE_SIDED.values(), ids=ONE_SIDED)


class Constant(nn.Module):
    """A network with constant output channels, which records its time input."""

    def __init__(self, *channels):
        super().__init__()
        self.channels, self.time = channels, None

    def forward(self, x, t):
        self.time = t
        return torch.cat([torch.full_like(x, value) for value in self.channels], dim=1)


def times(path, num=7):
    start, end = path.interval(EPS)
    return torch.linspace(start, end, num, dtype=F64)


@every_path
def test_predictions_have_their_units(path):
    """The unit is the standard deviation of the conditional time score, see ``test_paths``."""
    t, x = times(path), normal((7, *IMAGE))
    raw = TimeScoreModel(Constant(3.0), path, EPS, prediction="raw")(x, t)
    assert torch.equal(raw.components, torch.full_like(x, 3.0)) and raw.score is None
    found = TimeScoreModel(Constant(3.0), path, EPS, prediction="normalised")(x, t).components
    expected = 3 * expand_like(path.time_score_variance(t).sqrt(), x)
    assert torch.allclose(found, expected.expand_as(x), rtol=1e-12)


@every_path
def test_time_input_is_time_or_arc_length_fraction(path):
    net = Constant(0.0)
    model = TimeScoreModel(net, path, EPS, time_input="arc_length")
    start, end = model.interval
    model(normal((2, 2)), torch.tensor([start, end], dtype=F64))
    assert torch.allclose(net.time, torch.tensor([0.0, 1.0], dtype=F64), atol=1e-12)
    knots = torch.linspace(0, 1, 6, dtype=F64)
    ends = path.arc_length(torch.tensor([start, end], dtype=F64))
    t = path.arc_length_inverse(ends[0] + (ends[1] - ends[0]) * knots)[1:-1]
    model(normal((4, 2)), t)
    assert torch.allclose(net.time, knots[1:-1], atol=1e-8)
    out = TimeScoreModel(net, path, EPS, time_input="time")(normal((4, 2)).float(), t)
    assert torch.equal(net.time, t.float()) and out.components.dtype == torch.float32


class Half(Constant):
    def forward(self, x, t):
        return super().forward(x, t).half()


def test_half_precision_network_does_not_overflow():
    """The scale is 2.2e6 here, far beyond the largest float16."""
    model = TimeScoreModel(Half(1.0), LinearVPPath(), 5e-7)
    components = model(torch.zeros(1, 3), torch.tensor([1 - 5e-7], dtype=F64)).components
    scale = 2**0.5 / (2 * 5e-7)  # sqrt(2) alpha alpha' / v at the end
    assert components.dtype == torch.float32
    assert torch.allclose(components, torch.full((1, 3), scale), rtol=1e-3)


def test_head_is_the_last_channels():
    path, x, t = LinearVPPath(), normal((3, 2, 4, 4)), torch.tensor([0.2, 0.5, 0.9], dtype=F64)
    model = TimeScoreModel(Constant(1.0, 2.0, 5.0), path, EPS, "raw", stein_channels=2)
    out = model(x, t)
    expected = torch.tensor([1.0, 1.0, 2.0, 2.0], dtype=F64).reshape(1, 4, 1, 1).expand(3, 4, 4, 4)
    assert torch.equal(out.components, expected)
    assert torch.equal(model.time_score(x, t), torch.full((3,), 6.0 * 16, dtype=F64))
    gain, skip = path.score_gain(t), path.score_skip(t)
    expected = expand_like(skip, x) * x + 5 * expand_like(gain, x)
    assert torch.allclose(out.score, expected, rtol=1e-12)


@pytest.mark.parametrize("path, shape", [(LinearVPPath(), (2,)), (VPPath(), IMAGE)])
def test_fourier_features_are_means_under_noise(path, shape):
    """E sin(2 pi f (x + sqrt(v_t) eps)), with full amplitude without noise."""
    model = TimeScoreModel(Constant(0.0), path, EPS, input_frequencies=(0.5, 1.5))
    x, channels = normal((1, *shape)), shape[0]
    for t in (0.9, 0.99):
        time = torch.tensor([t], dtype=F64)
        noisy = x + path.variance(time).sqrt() * normal((20_000, *shape), 1)
        features = model.features(x, time)
        angles = [2 * torch.pi * f * noisy for f in (0.5, 1.5)]
        draws = torch.cat([part for a in angles for part in (a.sin(), a.cos())], dim=1)
        assert z_score(draws, features) < 4.5 and features.abs().max() > 0.1
    features = model.features(x, torch.ones(1, dtype=F64))
    assert features.shape[1] == 4 * channels
    pairs = features.unflatten(1, (2, 2, channels))
    assert torch.allclose(pairs.square().sum(2), torch.ones(1, 2, *shape, dtype=F64))


class Moments(nn.Module):
    """Exact output for the prediction `moments` of two modes, plus ``shift``. The dimensions are
    independent, so s' = (Var[eps | x] - 1) / v."""

    def __init__(self, exact, shift=(0.0, 0.0)):
        super().__init__()
        self.exact, self.shift = exact, nn.Parameter(torch.tensor(shift, dtype=F64))

    def forward(self, x, t):
        time, path = self.exact.time.repeat_interleave(x[0].numel()), self.exact.path
        flat = x.reshape(-1, 1)
        _, score, w = self.exact(flat, time)
        raw = torch.log(torch.expm1(w * math.log(2)))
        h = (score - path.score_skip(time)[:, None] * flat) / path.score_gain(time)[:, None]
        parts = [part.detach().reshape(x.shape) for part in (raw, h)]
        shifts = self.shift.repeat_interleave(x.shape[1])
        return torch.cat(parts, dim=1) + shifts.reshape(1, -1, *(1,) * (x.ndim - 2))


@pytest.mark.parametrize("shape", [(1,), (3, 8, 8)], ids=["vector", "colours"])
@every_one_sided_path
def test_exact_moments_give_the_exact_scores(path, shape):
    exact = two_modes(path, EPS, (1,), stein_channels=1)
    exact.time = t = torch.tensor([0.1, 0.5, 0.9, 0.999, 1 - 1e-7], dtype=F64)
    model = TimeScoreModel(Moments(exact), path, EPS, "moments", stein_channels=shape[0])
    times = t.repeat_interleave(math.prod(shape))
    x = exact.sample(times, (len(times), 1)).xt
    out = model(x.reshape(5, *shape), t)
    expected = exact(x, times).components.reshape(5, *shape)
    size = expand_like(path.time_score_variance(t).sqrt(), expected)
    assert ((out.components - expected) / size).abs().max() < 1e-6
    score = exact.exact_score(x, times).reshape(5, *shape)
    assert torch.allclose(out.score, score, rtol=1e-6, atol=1e-6)


@every_one_sided_path
def test_zero_moments_are_exact_for_gaussian_data(path):
    """Also at t = 0, where alpha is 0 on the linear path, and in single precision."""
    exact = ExactModel(path, EPS, [[0.0]], [path.c**0.5])
    model = TimeScoreModel(Constant(0.0, 0.0), path, EPS, "moments", stein_channels=1)
    t = torch.tensor([0.0, 0.3, 0.99, 1 - 1e-6], dtype=F64)
    x = normal((4, 1, 8, 8))
    size = expand_like(path.time_score_variance(t).sqrt(), x)
    for dtype, bound in ((F64, 1e-8), (torch.float32, 1e-5)):
        found = model(x.to(dtype), t).components
        assert found.dtype == dtype
        assert ((found - exact(x, t).components) / size).abs().max() < bound


@every_one_sided_path
def test_poisson_gradient_matches_closed_form(path):
    """The gradient in log w is b^2 (w - r^2), where b (r^2 - w) is a target minus the components.
    The head gets no gradient."""
    for time in (0.1, 0.6, 0.99, 1 - 1e-6):
        exact = ExactModel(path, EPS, [[-1.2], [1.2]], (0.4, 0.4), (0.3, 0.7), stein_channels=1)
        exact.time = torch.full((50,), time, dtype=F64)
        sample, net = exact.sample(exact.time, (50, 1)), Moments(exact, (0.4, -0.3))
        model = TimeScoreModel(net, path, EPS, "moments", stein_channels=1)
        out = model(sample.xt, sample.t)
        loss = poisson_deviance(out, path, sample)
        (shift,) = torch.autograd.grad(loss.mean(), model.net.shift, retain_graph=True)
        assert shift[0] != 0 and shift[1] == 0
        out = type(out)(*(part.detach() for part in out))
        v, gain = path.variance(sample.t)[:, None], path.variance_gain(sample.t)[:, None]
        e = -v.sqrt() * out.score
        d = path.denoise(sample.xt, out.score, sample.t)
        noise, data = sample.eps - e, sample.x1 - d
        spread = path.variance_dt(sample.t)[:, None] / (2 * v)
        drift = path.alpha_dt(sample.t)[:, None] / v.sqrt()
        target = spread * (e.square() + noise.square() - 1) + drift * (d * e + data * noise)
        log_w = out.variance.log().requires_grad_()
        found = poisson_deviance(out._replace(variance=log_w.exp()), path, sample)
        (gradient,) = torch.autograd.grad(found.sum(), log_w)
        expected = gain * (out.components - target)
        tolerance = {"rtol": 1e-4, "atol": 1e-6 * float(expected.abs().max())}
        assert torch.allclose(gradient, expected, **tolerance)


NUM_LEVELS, BIN = 16, 2 / 16
CENTRES = -1 + (2 * torch.arange(NUM_LEVELS, dtype=F64) + 1) / NUM_LEVELS


class Posterior(nn.Module):
    """A network whose Gaussian posterior is the observation itself: N(x / alpha, v / alpha^2)."""

    def __init__(self, path, t):
        super().__init__()
        self.path, self.t = path, t

    def forward(self, x, time):
        alpha, v, c = self.path.alpha(self.t), self.path.variance(self.t), self.path.c
        m = self.path.marginal_variance(self.t)
        gain = (c * v / m).sqrt()
        head = (1 / alpha - c * alpha / m) / gain
        out = 0.5 * (v / alpha.square() / gain.square()).log()
        return torch.cat([expand_like(out, x).expand_as(x), expand_like(head, x) * x], dim=1)


def log_density_of_uniform_pixels(path, x, t):
    """log p_t of independent pixels, uniform on the levels: (B,)."""
    alpha, v = (expand_like(f(t), x)[..., None] for f in (path.alpha, path.variance))
    logs = -0.5 * ((x[..., None] - alpha * CENTRES).square() / v + (2 * math.pi * v).log())
    return sum_except_batch(logs.logsumexp(-1) - math.log(NUM_LEVELS))


@every_one_sided_path
@pytest.mark.parametrize("noise_in_bins", [0.05, 0.45, 0.69])
def test_uniform_pixels_are_scored_exactly_at_narrow_noise(path, noise_in_bins):
    t = torch.full((3,), path.time_of_ratio(noise_in_bins * BIN), dtype=F64)
    k, noise = torch.randint(NUM_LEVELS, (3, 1, 2, 4), generator=generator()), normal((3, 1, 2, 4))
    x = expand_like(path.alpha(t), noise) * CENTRES[k]
    x = x + expand_like(path.variance(t).sqrt(), noise) * noise
    net, options = Posterior(path, t), {"stein_channels": 1, "num_levels": NUM_LEVELS}
    model = TimeScoreModel(net, path, 1e-9, "levels", **options)
    found = model(x, t)
    at = [value.detach().requires_grad_() for value in (x, t)]
    log_density = log_density_of_uniform_pixels(path, *at)
    exact_score, exact_rate = torch.autograd.grad(log_density.sum(), at)
    assert torch.allclose(found.score, exact_score, rtol=1e-9, atol=1e-9)
    # the variance of every pixel has a floor of 1e-6 squared bins
    floor = 1e-6 * BIN**2 * path.marginal_variance(t) / (path.c * path.variance(t))
    expected = exact_rate + x[0].numel() * path.variance_gain(t) * floor
    assert torch.allclose(sum_except_batch(found.components), expected, rtol=1e-9, atol=1e-6)


def test_gradients_match_finite_differences():
    mean = normal((20,), 1) * 0.5
    variance = (BIN * (0.1 + 1.2 * torch.rand(20, dtype=F64, generator=generator(2)))).square()
    inputs = (mean.requires_grad_(), variance.requires_grad_())

    def moments(mean, variance):
        return restrict_to_levels(mean, variance, NUM_LEVELS)

    assert torch.autograd.gradcheck(moments, inputs, eps=1e-7)
    assert torch.autograd.gradgradcheck(moments, inputs, eps=1e-7, atol=1e-4)


def test_compiled_moments_match_those_with_closed_derivatives():
    place, spread = 8 + 9 * normal((50,), 3), 0.1 + 1.3 * uniform((50,), 4)
    derived = restricted_moments(place, spread, NUM_LEVELS)
    torch.testing.assert_close(RestrictedMoments.apply(place, spread, NUM_LEVELS), derived)

"""TimeScoreModel: the units of its output, the time its network sees, and the Stein head."""

import pytest
import torch
from exact import F64, ExactBridge, ExactModel, normal, z_score
from torch import nn

from ebm_app.io.errors import UserError
from ebm_app.models.time_score import TimeScoreModel
from ebm_app.numerics.tensors import expand_like
from ebm_app.paths import LinearVPPath, SchrodingerBridgePath, VPPath

IMAGE = (2, 4, 4)
EPS = 1e-5
PATHS = {
    "linear": LinearVPPath(),
    "linear c": LinearVPPath(c=0.4),
    "vp": VPPath(),
    "bridge": SchrodingerBridgePath(),
}


class Constant(nn.Module):
    """A network whose output is ``value`` in each of its channels; it records what it is given."""

    def __init__(self, *channels, dtype=None):
        super().__init__()
        self.channels, self.dtype, self.time = channels, dtype, None

    def forward(self, x, t):
        self.time = t
        out = torch.cat([torch.full_like(x, value) for value in self.channels], dim=1)
        return out if self.dtype is None else out.to(self.dtype)


def times(path, num=7):
    start, end = path.interval(EPS)
    return torch.linspace(start, end, num, dtype=F64)


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_raw_output_is_the_time_score_and_normalised_output_has_unit_variance(path):
    """Where E delta^2 = c per dimension, the target divided by the scale has second moment 1."""
    shape = IMAGE
    t, x = times(path), normal((7, *shape))
    raw = TimeScoreModel(Constant(3.0), path, EPS, prediction="raw")(x, t)
    assert torch.equal(raw.components, torch.full_like(x, 3.0)) and raw.score is None
    scale = TimeScoreModel(Constant(1.0), path, EPS, prediction="normalised")(x, t).components
    width = (path.c / 2) ** 0.5
    exact = (
        ExactBridge(path, EPS, (0.0, width), (0.0, width))
        if isinstance(path, SchrodingerBridgePath)
        else ExactModel(path, EPS, [[0.0]], [path.c**0.5])
    )
    for k in (0, 3, 6):
        sample = exact.sample(t[k].expand(4000), (4000, *shape), seed=k)
        target = path.conditional_components(sample) / scale[k].flatten()[0]
        assert z_score(target.square().flatten(1).mean(1), 1.0) < 4


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_the_clock_input_goes_from_0_to_1_in_equal_lengths(path):
    net = Constant(0.0)
    model = TimeScoreModel(net, path, EPS, time_input="clock")
    start, end = model.interval
    model(normal((2, 2)), torch.tensor([start, end], dtype=F64))
    assert torch.allclose(net.time, torch.tensor([0.0, 1.0], dtype=F64), atol=1e-12)
    knots = torch.linspace(0, 1, 6, dtype=F64)
    ends = path.clock(torch.tensor([start, end], dtype=F64))
    t = path.clock_inverse(ends[0] + (ends[1] - ends[0]) * knots)[1:-1]
    model(normal((4, 2)), t)
    assert torch.allclose(net.time, knots[1:-1], atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_the_time_input_is_t_itself_in_the_dtype_of_x(dtype):
    net, t = Constant(0.0), torch.tensor([0.1, 0.7], dtype=F64)
    out = TimeScoreModel(net, LinearVPPath(), EPS, time_input="time")(normal((2, 3)).to(dtype), t)
    assert torch.equal(net.time, t.to(dtype)) and out.components.dtype == dtype


def test_a_half_precision_network_does_not_overflow():
    """The scale is 2.2e6 here, far beyond the largest float16."""
    path = LinearVPPath()
    model = TimeScoreModel(Constant(1.0, dtype=torch.float16), path, 5e-7)
    t = torch.tensor([1 - 5e-7], dtype=F64)
    components = model(torch.zeros(1, 3), t).components
    assert components.dtype == torch.float32
    scale = 2**0.5 / (2 * 5e-7)  # sqrt(2) alpha alpha' / v at the end
    assert torch.allclose(components, torch.full((1, 3), scale), rtol=1e-3)


@pytest.mark.parametrize(
    "path, shape", [(LinearVPPath(), (2,)), (LinearVPPath(c=0.4), IMAGE), (VPPath(c=2.0), (2,))]
)
def test_a_head_of_zero_is_the_score_of_gaussian_data_and_its_target_has_unit_variance(
    path, shape
):
    t, x = times(path)[1:], normal((6, *shape))
    exact = ExactModel(path, EPS, [[0.0]], [path.c**0.5], stein_channels=1)
    zero, one = (
        TimeScoreModel(Constant(7.0, h), path, EPS, stein_channels=shape[0]) for h in (0.0, 1.0)
    )
    assert torch.allclose(zero(x, t).score, exact(x, t).score, rtol=1e-9)
    gain = one(x, t).score - zero(x, t).score
    for k in (0, 3, 5):
        sample = exact.sample(t[k].expand(4000), (4000, *shape), seed=k)
        residual = path.conditional_score(sample) - exact(sample.xt, sample.t).score
        target = residual / gain[k].flatten()[0]
        assert z_score(target.square().flatten(1).mean(1), 1.0) < 4


def test_the_head_is_the_last_channels_and_leaves_the_components_alone():
    path, x, t = LinearVPPath(), normal((3, 2, 4, 4)), torch.tensor([0.2, 0.5, 0.9], dtype=F64)
    model = TimeScoreModel(Constant(1.0, 2.0, 5.0), path, EPS, "raw", stein_channels=2)
    out = model(x, t)
    expected = torch.tensor([1.0, 1.0, 2.0, 2.0], dtype=F64).reshape(1, 4, 1, 1).expand(3, 4, 4, 4)
    assert torch.equal(out.components, expected)
    assert torch.equal(model.time_score(x, t), torch.full((3,), 6.0 * 16, dtype=F64))
    gain, skip = path.score_gain(t), path.score_skip(t)
    expected = expand_like(skip, x) * x + 5 * expand_like(gain, x)
    assert torch.allclose(out.score, expected, rtol=1e-12)


@pytest.mark.parametrize(
    "path, shape", [(LinearVPPath(), (2,)), (VPPath(), IMAGE)], ids=["linear", "vp"]
)
def test_input_waves_are_the_mean_of_what_noise_makes_of_them(path, shape):
    """E sin(2 pi f (x + sqrt(v_t) eps)), to 4 standard errors; and whole where the noise ends."""
    model = TimeScoreModel(Constant(0.0), path, EPS, input_frequencies=(0.5, 1.5))
    x = normal((1, *shape))
    channels = shape[0]
    for t in (0.9, 0.97, 0.99):
        time = torch.tensor([t], dtype=F64)
        noisy = x + path.variance(time).sqrt() * normal((20_000, *shape), 1)
        features = model.features(x, time)[:, channels:]
        angles = [2 * torch.pi * f * noisy for f in (0.5, 1.5)]
        draws = torch.cat([part for a in angles for part in (a.sin(), a.cos())], dim=1)
        assert z_score(draws, features) < 4.5 and features.abs().max() > 0.1
    features = model.features(x, torch.ones(1, dtype=F64))
    assert torch.equal(features[:, :channels], x) and features.shape[1] == 5 * channels
    pairs = features[:, channels:].unflatten(1, (2, 2, channels))
    assert torch.allclose(pairs.square().sum(2), torch.ones(1, 2, *shape, dtype=F64))
    plain = TimeScoreModel(Constant(0.0), path, EPS)
    assert torch.equal(plain.features(x, torch.ones(1, dtype=F64)), x)


def test_unknown_names_are_the_users_mistake():
    for settings in ({"prediction": "unit"}, {"time_input": "day"}):
        with pytest.raises(UserError, match="choose one of"):
            TimeScoreModel(Constant(0.0), LinearVPPath(), EPS, **settings)

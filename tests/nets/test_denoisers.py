"""Denoisers: exact networks in each parametrisation and schedule, and errors."""

import math

import pytest
import torch
from conftest import error_of
from exact import F64, PixelMixture, generator, noise_of, normal
from torch import nn
from torch.distributions import Normal

from ebm_app import EBM, AlphasCumprod, AlphaSigma
from ebm_app.likelihood import ProbabilityFlowDensity, VariationalBound
from ebm_app.nets.denoisers import NOISE_OF, DenoiserModel, NoiseSchedule
from ebm_app.sampling import DPMSampler
from ebm_app.utils.tensors import derivative, expand_like

SHAPE = (1, 4, 4)
GAUSSIAN, TWO_MODES = PixelMixture((0.1,), 0.15), PixelMixture((-0.5, 0.5), 0.15)
DDPM = AlphasCumprod((1 - torch.linspace(1e-4, 0.02, 1000, dtype=F64)).cumprod(0))
SCORE_SDE = AlphaSigma(
    lambda u: torch.exp(-(0.1 * u + 9.95 * u.square()) / 2),
    lambda u: (-torch.expm1(-(0.1 * u + 9.95 * u.square()))).sqrt(),
    t_noise=1.0,
    t_data=1e-4,
)
EDM = AlphaSigma(torch.ones_like, lambda sigma: sigma, t_noise=80.0, t_data=0.004)
GEOMETRIC = AlphaSigma(torch.ones_like, lambda u: 0.01 * 5000.0**u, t_noise=1.0, t_data=-0.1)
FLOW = AlphaSigma(lambda u: u, lambda u: 1 - u, t_noise=1e-3, t_data=0.996)
COSINE = AlphaSigma(
    lambda u: torch.cos(u * math.pi / 2),
    lambda u: torch.sin(u * math.pi / 2),
    t_noise=0.999,
    t_data=0.003,
)
SCHEDULES = {
    "ddpm": DDPM,
    "score_sde": SCORE_SDE,
    "edm": EDM,
    "geometric": GEOMETRIC,
    "flow": FLOW,
    "cosine": COSINE,
}
each_schedule = pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)


def exact_net(data: PixelMixture, prediction: str, schedule: NoiseSchedule):
    """Return the exact network of ``data``."""

    def net(x, time):
        e, x1 = data.expectations(x, schedule.alpha(time), schedule.sigma(time))
        a, s = (expand_like(f(time), x) for f in (schedule.alpha, schedule.sigma))
        if prediction == "velocity":
            functions = (schedule.alpha, schedule.sigma)
            a_dt, s_dt = (expand_like(derivative(f, time), x) for f in functions)
            return a_dt * x1 + s_dt * e
        return {"noise": e, "x0": x1, "v": a * e - s * x1, "score": -e / s}[prediction]

    return net


def exact(data, prediction, schedule, shape=SHAPE):
    net = exact_net(data, prediction, schedule)
    return EBM.from_denoiser(net, shape, prediction, schedule).double()


@each_schedule
@pytest.mark.parametrize("prediction", NOISE_OF)
def test_score_is_that_of_the_rescaled_data(schedule, prediction):
    model = DenoiserModel(
        exact_net(TWO_MODES, prediction, schedule), prediction, schedule
    ).double()
    x = normal((3, *SHAPE)).requires_grad_()
    for t in (0.01, 0.5, 0.9, 1.0):
        time = schedule.t_noise + (schedule.t_data - schedule.t_noise) * torch.tensor(t, dtype=F64)
        a, s = schedule.alpha(time).item(), schedule.sigma(time).item()
        r = math.hypot(a, s)
        log_p = TWO_MODES.log_density(x, a / r, s / r)
        (expected,) = torch.autograd.grad(log_p.sum(), x)
        torch.testing.assert_close(model.score(x.detach(), t), expected, rtol=1e-7, atol=1e-7)
        assert model.path.variance(torch.tensor([t], dtype=F64)).item() == pytest.approx(
            (s / r) ** 2
        )


def bits(nats, num_dims=16):
    return nats / (num_dims * math.log(2))


PAIRS = {
    "ddpm": (TWO_MODES, "noise", DDPM),
    "x0": (TWO_MODES, "x0", DDPM),
    "v": (GAUSSIAN, "v", COSINE),
    "edm": (TWO_MODES, "x0", EDM),
    "velocity": (TWO_MODES, "velocity", FLOW),
    "vp score": (GAUSSIAN, "score", SCORE_SDE),
    "ve score": (TWO_MODES, "score", GEOMETRIC),
}
each_pair = pytest.mark.parametrize(("data", "prediction", "schedule"), PAIRS.values(), ids=PAIRS)


@each_pair
def test_estimators_match_the_density_at_the_last_time(data, prediction, schedule):
    ebm = exact(data, prediction, schedule)
    last = torch.tensor(schedule.t_data, dtype=F64)
    a, s = schedule.alpha(last).item(), schedule.sigma(last).item()
    a, s = a / math.hypot(a, s), s / math.hypot(a, s)
    y = a * data.draw((400, *SHAPE)) + s * normal((400, *SHAPE), 9)
    expected = data.log_density(y, a, s)
    flow = ProbabilityFlowDensity(160, 0, num_probes=0)(ebm.model, y[:2], 1.0, noise_of(y[:2]))
    torch.testing.assert_close(bits(flow.value), bits(expected[:2]), atol=5e-4, rtol=0)
    bound = VariationalBound(24, 3)(ebm.model, y, 1.0, noise_of(y))
    excess = bits(bound.value - expected)
    stderr = excess.std().item() / math.sqrt(len(y))
    assert abs(excess.mean()) < 1e-3 + 3 * stderr and stderr < 0.02


@each_pair
def test_bits_of_images_match_the_closed_form(data, prediction, schedule):
    """log P(k) is the log of the Gaussian mass of the cell of level k. The bounds are loose by
    log(1 + r^2) / 2 + O(r^4) nats per dim, r = sigma / (alpha std) at the last time."""
    gaussian, shape = PixelMixture((0.1,), 0.2), (1, 16, 16)
    ebm = exact(gaussian, prediction, schedule, shape)
    levels = ((gaussian.draw((64, *shape)) + 1) / 2 * 255).round().clamp(0, 255)
    edges = torch.stack([2 * (levels - 0.5) / 255 - 1, 2 * (levels + 0.5) / 255 - 1])
    low, high = Normal(0.1, 0.2).cdf(edges)
    expected = bits(-(high - low).log().flatten(1).sum(1), 256)
    for estimator, settings, error in (
        ("elbo", {"num_nodes": 64}, 0.004),
        ("probability_flow", {"num_steps": 80, "max_refinements": 0}, 0.001),
    ):
        excess = ebm.likelihood(levels / 255, estimator, **settings).bits_per_dim - expected
        stderr = excess.std().item() / 8
        assert -3 * stderr < excess.mean() < 0.002 + 3 * stderr and stderr < error


def test_bits_of_sharp_grey_levels_match_their_entropy():
    """An exact network of levels of standard deviation 2.5: noise of a quarter of a level costs
    less than 0.01 bits."""
    centres = torch.linspace(-1, 1, 256, dtype=F64)
    log_p = (-((255 * (centres + 1) / 2 - 140.3) ** 2) / (2 * 2.5**2)).log_softmax(0)

    def net(x, sigma):
        logits = log_p - (x[..., None] - centres) ** 2 / (2 * sigma.reshape(-1, 1, 1, 1, 1) ** 2)
        return (logits.softmax(-1) * centres).sum(-1)

    levels = torch.multinomial(log_p.exp(), 16 * 256, True, generator=generator(5))
    levels = levels.reshape(16, 1, 16, 16)
    schedule = AlphaSigma(torch.ones_like, lambda sigma: sigma, t_noise=80.0, t_data=0.002)
    ebm = EBM.from_denoiser(net, (1, 16, 16), "x0", schedule).double()
    expected = bits(-log_p[levels].flatten(1).sum(1), 256)
    excess = ebm.likelihood(levels.to(torch.uint8), num_nodes=32).bits_per_dim - expected
    stderr = excess.std().item() / 4
    assert -3 * stderr < excess.mean() < 0.01 + 3 * stderr and stderr < 0.02


def test_samples_have_the_pixels_of_the_data():
    ebm = exact(TWO_MODES, "velocity", FLOW)
    *_, last = DPMSampler(40).iterate(ebm.model, normal((200, *SHAPE)), None)
    assert (last.x > 0).double().mean() == pytest.approx(0.5, abs=0.03)
    assert last.x.abs().mean() == pytest.approx(0.5, abs=0.02)
    found = ebm.sample(3, seed=1)
    assert found.shape == (3, *SHAPE) and (found * 255 - (found * 255).round()).abs().max() < 1e-4


def test_integer_steps_give_nearly_the_same_bound():
    net, shape = exact_net(GAUSSIAN, "noise", DDPM), (1, 16, 16)
    images = ((GAUSSIAN.draw((16, *shape)) + 1) / 2 * 255).round() / 255
    real = EBM.from_denoiser(net, shape, "noise", DDPM).double()
    steps = []

    def rounded(x, step):
        steps.append(step.round().long())
        return net(x, steps[-1])

    found = EBM.from_denoiser(rounded, shape, "noise", DDPM).double()
    loss = bits(real.log_prob(images) - found.log_prob(images), 256)
    stderr = loss.std().item() / 4
    assert -3 * stderr < loss.mean() < 0.005 and stderr < 0.002
    steps = torch.cat(steps)
    assert steps.min() >= 0 and steps.max() <= 999 and len(steps.unique()) > 8


class Net(nn.Module):
    """A network with dropout, batch normalisation and a layer used twice."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 1)
        self.same = nn.ModuleList([self.conv, nn.Dropout(0.5), nn.BatchNorm2d(4)])
        self.last, self.none = nn.Conv2d(4, 1, 1), None

    def forward(self, x, time):
        for layer in self.same:
            x = layer(x)
        return self.last(x)


def ebm_of(net):
    return EBM.from_denoiser(net, SHAPE, "noise", DDPM)


IMAGES = torch.arange(32.0).reshape(2, *SHAPE) / 255


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net().train()


def test_network_is_set_to_evaluation_mode(net):
    ebm = ebm_of(net)
    assert not any(module.training for module in net.modules())
    expected = ebm.log_prob(IMAGES)
    assert torch.equal(ebm.log_prob(IMAGES), expected)
    with torch.no_grad():
        net.conv.bias.add_(1.0)
    assert not torch.allclose(ebm.log_prob(IMAGES), expected)  # weights are shared


def test_model_is_on_the_device_of_the_network(net):
    assert ebm_of(net.to("meta")).device.type == "meta"
    ebm = EBM.from_denoiser(lambda x, time: x, SHAPE, "noise", DDPM, device="meta")
    assert ebm.device.type == "meta" and ebm.dtype == torch.float32


def test_unsupported_uses_of_a_denoiser_are_refused(net, tmp_path):
    ebm = ebm_of(net)
    assert "time score" in error_of(ebm.likelihood, IMAGES, "time_integral")
    assert "A denoiser has no time score" in error_of(ebm.energy, normal((1, *SHAPE)))
    assert "Save its network" in error_of(ebm.save_pretrained, tmp_path)
    assert "without labels" in error_of(ebm.sample, 1, labels=0)


def test_wrong_arguments_are_reported(net):
    def error(net=net, shape=SHAPE, prediction="noise", schedule=DDPM, **options):
        return error_of(EBM.from_denoiser, net, shape, prediction, schedule, **options)

    def schedule_error(alpha, sigma, t_noise=0.0, t_data=1.0):
        return error(schedule=AlphaSigma(alpha, sigma, t_noise, t_data))

    assert "unknown prediction 'epsilon'" in error(prediction="epsilon")
    assert "got a dict" in error(net={})
    assert "gpu" in error(device="gpu")
    assert "image_shape" in error(shape=(8, 8)) and "num_levels" in error(num_levels=1)
    assert "schedule" in error(schedule=torch.ones(3))
    rising, falling = (lambda u: u), (lambda u: 1 - u)
    assert "is -inf at t_noise = 0.0" in schedule_error(rising, falling)
    assert "is inf at t_data = 1.0" in schedule_error(rising, falling, 0.1)
    assert "Swap the times" in schedule_error(rising, falling, 0.9, 0.1)
    assert "t_data" in schedule_error(rising, falling, 0.1, math.nan)
    assert "torch functions" in schedule_error(lambda u: math.cos(u), rising)
    assert "differentiable" in schedule_error(lambda u: u.detach(), torch.ones_like, 0.1)
    for abar in (torch.linspace(0.1, 0.9, 9), torch.ones(9), torch.tensor([0.9, 0.1])):
        assert "at least 3 values" in error_of(AlphasCumprod, abar)
    assert "shape (N,)" in error_of(AlphasCumprod, torch.ones(2, 2))
    for wrong in (lambda x, time: x[:, :, 1:], lambda x, time: (x,)):
        assert "(32, 1, 4, 4), got " in error_of(ebm_of(wrong).log_prob, IMAGES)

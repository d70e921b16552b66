"""Denoisers and diffusers pipelines: exact networks in each parametrisation, and errors."""

import json
import math
import shutil
from types import SimpleNamespace

import pytest
import torch
from conftest import error_of, load_script
from diffusers import (
    DDIMPipeline,
    DDIMScheduler,
    DDPMPipeline,
    DDPMScheduler,
    EulerDiscreteScheduler,
    PNDMScheduler,
    UNet2DModel,
)
from exact import F64, PixelMixture, generator, noise_of, normal
from torch import nn
from torch.distributions import Normal

from ebm_app import EBM, AlphasCumprod, AlphaSigma
from ebm_app.anomaly import AnomalyDetector
from ebm_app.likelihood import ProbabilityFlowDensity, VariationalBound
from ebm_app.nets.denoisers import FACTORS, DenoiserModel
from ebm_app.pretrained import PIPELINE_FILE
from ebm_app.sampling import DPMSampler
from ebm_app.training.build import latent_flow
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
#: Noise at the last time, standard deviation of pixels in levels, and the cost in bits per dim
COSTS = [
    *((0.001, 25.5, 0.925), (0.002, 25.5, 0.115), (0.004, 25.5, 0.0), (0.02, 25.5, 0.007)),
    *((0.004, 2.5, 0.03), (0.01, 2.5, 0.167), (0.02, 2.5, 0.514)),
]
each_schedule = pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)


def exact_net(data: PixelMixture, prediction: str, schedule: AlphaSigma):
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


def check_score(model, data, alpha, sigma):
    """Compare the Stein score of a model, at points of its path, with that of the data."""
    t = torch.tensor([0.0, 0.01, 0.5, 0.9, 1.0], dtype=F64)
    x = normal((len(t), *SHAPE)).requires_grad_()
    a, s = alpha(t), sigma(t)
    r = torch.hypot(a, s)
    log_p = [data.log_density(*row) for row in zip(x[:, None], a / r, s / r, strict=True)]
    (expected,) = torch.autograd.grad(torch.cat(log_p).sum(), x)
    torch.testing.assert_close(model.score(x.detach(), t), expected, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(model.path.variance(t), (s / r).square())


@each_schedule
@pytest.mark.parametrize("prediction", FACTORS)
def test_score_is_that_of_the_rescaled_data(schedule, prediction):
    net = exact_net(TWO_MODES, prediction, schedule)
    model = DenoiserModel(net, prediction, schedule).double()
    alpha, sigma = (lambda t, f=f: f(schedule.time(t)) for f in (schedule.alpha, schedule.sigma))
    check_score(model, TWO_MODES, alpha, sigma)


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
    assert bits(bound.error.square().mean().sqrt()) == pytest.approx(excess.std().item(), rel=0.3)


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


def edm(end):
    return AlphaSigma(torch.ones_like, lambda sigma: sigma, t_noise=80.0, t_data=end)


def cost_of_end(std, noise):
    """Return the bits per dim that noise at the last time costs for smooth pixels; both standard
    deviations are in levels: -log q(x | level) + log P(level | x), and the blur of the data."""
    e = torch.linspace(-12, 12, 2001, dtype=F64)
    weights, steps = torch.softmax(-e.square() / 2, 0), torch.arange(-80, 81)
    sums = (-(e[:, None] - steps / noise).square() / 2).logsumexp(1)
    narrow = (weights @ sums).item() - math.log(noise * math.sqrt(2 * math.pi))
    return bits(narrow, 1) + math.log2(1 + (noise / std) ** 2) / 2


@pytest.mark.parametrize(("end", "std", "expected"), COSTS)
def test_last_noise_costs_bits_as_documented(end, std, expected):
    """Too little noise costs more than half a level of it, because q(x | level) is narrower than
    the cell of the level."""
    noise = end * 255 / 2
    assert cost_of_end(std, noise) == pytest.approx(expected, abs=0.005)
    data, shape = PixelMixture((0.1,), std / 127.5), (1, 16, 16)
    levels = ((data.draw((64, *shape)) + 1) / 2 * 255).round()
    edges = torch.stack([2 * (levels - 0.5) / 255 - 1, 2 * (levels + 0.5) / 255 - 1])
    low, high = Normal(0.1, data.std).cdf(edges)
    ebm = exact(data, "x0", edm(end), shape)
    found = ebm.likelihood(levels.to(torch.uint8), num_nodes=64).bits_per_dim
    excess = found + bits((high - low).log().flatten(1).sum(1), 256)
    stderr = excess.std().item() / 8
    assert stderr < 0.01 and abs(excess.mean().item() - expected) < 0.003 + 3 * stderr


def test_bits_of_sharp_grey_levels_match_their_entropy():
    """A network that resolves levels: noise of a quarter of a level costs less than 0.01 bits."""
    centres = torch.linspace(-1, 1, 256, dtype=F64)
    log_p = (-((255 * (centres + 1) / 2 - 140.3) ** 2) / (2 * 2.5**2)).log_softmax(0)

    def net(x, sigma):
        logits = log_p - (x[..., None] - centres) ** 2 / (2 * sigma.reshape(-1, 1, 1, 1, 1) ** 2)
        return (logits.softmax(-1) * centres).sum(-1)

    levels = torch.multinomial(log_p.exp(), 16 * 256, True, generator=generator(5))
    levels = levels.reshape(16, 1, 16, 16)
    ebm = EBM.from_denoiser(net, (1, 16, 16), "x0", edm(0.002)).double()
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


def test_network_may_change_its_input_in_place():
    net = exact_net(GAUSSIAN, "v", FLOW)

    def in_place(x, time):
        out = net(x, time)
        x.mul_(0)
        time.mul_(0)
        return out

    images = ((GAUSSIAN.draw((2, *SHAPE)) + 1) / 2 * 255).round() / 255
    for prediction in ("v", "velocity"):
        expected, found = (
            EBM.from_denoiser(own, SHAPE, prediction, FLOW).double() for own in (net, in_place)
        )
        assert torch.equal(found.log_prob(images), expected.log_prob(images))


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
    assert "got a Tensor" in error(schedule=torch.ones(3))
    rising, falling = (lambda u: u), (lambda u: 1 - u)
    assert "t_noise = 0.0 to t_data = 1.0, got -inf" in schedule_error(rising, falling)
    assert "and inf" in schedule_error(rising, falling, 0.1)
    assert "got 4.394 and -4.394" in schedule_error(rising, falling, 0.9, 0.1)
    assert "t_data = nan" in schedule_error(rising, falling, 0.1, math.nan)
    assert "torch functions" in schedule_error(lambda u: math.cos(u), rising)
    assert "differentiable" in schedule_error(lambda u: u.detach(), torch.ones_like, 0.1)
    for abar in (torch.linspace(0.1, 0.9, 9), torch.ones(9), torch.tensor([0.9, 0.1])):
        assert "at least 3 values" in error_of(AlphasCumprod, abar)
    for wrong in (lambda x, time: x[:, :, 1:], lambda x, time: (x,)):
        assert "(32, 1, 4, 4), got " in error_of(ebm_of(wrong).log_prob, IMAGES)


BLOCKS = {
    "down_block_types": ("DownBlock2D",),
    "up_block_types": ("UpBlock2D",),
    "block_out_channels": (8,),
    "norm_num_groups": 8,
    "layers_per_block": 1,
    "attention_head_dim": 8,
}
BLANK = torch.zeros(1, 1, 8, 8)


class ExactNet(UNet2DModel):
    """Exact network of two modes for a scheduler, with a predicted variance that is ignored."""

    def __init__(self, scheduler):
        super().__init__(4, 1, 2, **BLOCKS)
        kinds = {"epsilon": "noise", "v_prediction": "v", "sample": "x0"}
        schedule = AlphasCumprod(scheduler.alphas_cumprod)
        self.net = exact_net(TWO_MODES, kinds[scheduler.config.prediction_type], schedule)

    def forward(self, x, step):
        out = self.net(x, step)
        return SimpleNamespace(sample=torch.cat([out, out + 1], 1))


SCALED = {"beta_schedule": "scaled_linear", "beta_end": 0.03}
ZERO_SNR = {"rescale_betas_zero_snr": True}
CASES = [
    (DDPMScheduler, {"beta_schedule": "squaredcos_cap_v2"}),
    (DDIMScheduler, {"prediction_type": "v_prediction", **SCALED}),
    (DDIMScheduler, {"prediction_type": "v_prediction", **ZERO_SNR}),
    (DDPMScheduler, {"prediction_type": "sample"}),
    (EulerDiscreteScheduler, SCALED),
    (EulerDiscreteScheduler, ZERO_SNR),
]


@pytest.mark.parametrize(("kind", "settings"), CASES)
def test_pipeline_has_the_score_and_levels_of_its_data(kind, settings):
    scheduler = kind(**settings)
    with pytest.warns(UserWarning, match="variance .* is ignored"):
        ebm = EBM.from_diffusers((ExactNet(scheduler), scheduler)).double()
    abar = scheduler.alphas_cumprod.double()
    last = (abar > 2**-24).sum() - 1

    def at(values):  # linear in the log signal-to-noise ratio between steps
        def interpolated(t):
            ratios, step = torch.logit(abar[: last + 1]), last * (1 - t)
            low = step.long().clamp(max=last - 1)
            return (
                torch.lerp(ratios[low], ratios[low + 1], step - low).mul(values).sigmoid().sqrt()
            )

        return interpolated

    check_score(ebm.model, TWO_MODES, at(1), at(-1))
    x = ebm.space.encode((torch.arange(256, dtype=F64)[None] + 0.5) / 256)
    torch.testing.assert_close(x[0], torch.linspace(-1, 1, 256, dtype=F64))


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(0)
    pipeline = DDPMPipeline(UNet2DModel(8, 1, 1, **BLOCKS), DDPMScheduler(num_train_timesteps=20))
    pipeline.save_pretrained(tmp_path / "pipe")
    return tmp_path / "pipe"


def test_pipeline_folder_is_a_model(folder, tmp_path):
    state = torch.get_rng_state()
    ebm = EBM.from_pretrained(folder)
    assert torch.equal(torch.get_rng_state(), state)
    pipeline = DDIMPipeline.from_pretrained(folder)
    same = EBM.from_diffusers(pipeline)
    assert next(same.parameters()) is next(pipeline.unet.parameters())  # its own weights
    assert torch.equal(ebm.log_prob(BLANK), same.log_prob(BLANK))
    assert "Save its network" in error_of(lambda: ebm.save_pretrained(tmp_path))
    flags = [str(folder), "--device", "cpu", "--output_dir", str(tmp_path / "out")]
    data = ["--dataset", "digits", "--num_levels", "17", "--limit", "3", "--repeats", "1"]
    few = ["--estimator", "all", "--estimator_args", "num_steps=2", "max_refinements=0"]
    found = load_script("evaluate/bpd.py").main([*flags, *data, *few])
    assert list(found["estimators"]) == ["elbo", "probability_flow"]
    drawn = load_script("sample/ebm.py").main([*flags, "--num_images", "2", "--num_steps", "3"])
    assert drawn["nfe"] == 4


def test_flat_folder_of_older_pipelines_is_read(folder, tmp_path):
    flat = shutil.copytree(folder / "unet", tmp_path / "flat")
    for file in (folder / "scheduler" / "scheduler_config.json", folder / PIPELINE_FILE):
        shutil.copy(file, flat)
    expected = EBM.from_pretrained(folder).log_prob(BLANK)
    assert torch.equal(EBM.from_pretrained(flat).log_prob(BLANK), expected)


def test_unsupported_uses_of_a_pipeline_are_refused(folder):
    assert latent_flow(folder) is None  # it has pixels, not a latent space
    noise = torch.rand(99, 1, 8, 8).round()
    assert "Anomaly detection needs" in error_of(AnomalyDetector(folder).fit, noise)
    assert "num_levels" in error_of(EBM.from_diffusers, folder, num_levels=1)
    bpd = load_script("evaluate/bpd.py").main
    assert "Choose a data set" in error_of(bpd, [str(folder)])
    assert "17 levels, got --num_levels 256" in error_of(bpd, ["digits", "--num_levels", "256"])


def test_unsupported_pipelines_are_reported(folder):
    net, scheduler = UNet2DModel(8, 1, 1, **BLOCKS), DDPMScheduler()
    wrong = [
        ((net, PNDMScheduler()), "unknown scheduler 'PNDMScheduler'"),
        ((net, DDPMScheduler(prediction_type="flow")), "unknown prediction_type 'flow'"),
        ((net, EulerDiscreteScheduler(timestep_type="continuous")), "continuous timesteps"),
        ((UNet2DModel(8, 1, 3, **BLOCKS), scheduler), "3 outputs"),
        ((UNet2DModel(8, 1, 1, num_class_embeds=3, **BLOCKS), scheduler), "class labels"),
        (net, "got a UNet2DModel"),
    ]
    for source, message in wrong:
        assert message in error_of(EBM.from_diffusers, source)
    for name, change, message in (
        (PIPELINE_FILE, {"_class_name": "KarrasVePipeline"}, "unknown pipeline 'Karras"),
        ("scheduler/scheduler_config.json", {"num_train_timesteps": 2**64}, "Cannot read"),
        ("unet/config.json", {"act_fn": 0.5}, "Cannot read"),
        ("unet/config.json", {"block_out_channels": [16]}, "Cannot read"),
    ):
        whole = (folder / name).read_text()
        (folder / name).write_text(json.dumps({**json.loads(whole), **change}))
        assert message in error_of(EBM.from_pretrained, folder)
        (folder / name).write_text(whole)


def test_weights_that_are_not_safetensors_are_refused(folder):
    weights = folder / "unet" / "diffusion_pytorch_model.safetensors"
    state = UNet2DModel(8, 1, 1, **BLOCKS).state_dict()
    torch.save(state, weights.with_suffix(".bin"))  # pickled
    weights.unlink()
    message = error_of(EBM.from_pretrained, folder)
    assert "save_pretrained, which writes safetensors" in message

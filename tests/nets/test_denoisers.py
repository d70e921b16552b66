"""Denoisers and diffusers pipelines: exact networks in each parametrisation, and errors."""

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
from exact import F64, PixelMixture, normal
from torch import nn
from torch.distributions import Normal

from ebm_app import EBM, AlphasCumprod, AlphaSigma
from ebm_app.anomaly import AnomalyDetector
from ebm_app.nets.denoisers import FACTORS, DenoiserModel
from ebm_app.pretrained import PIPELINE_FILE
from ebm_app.training.build import latent_flow
from ebm_app.utils.tensors import derivative, expand_like

SHAPE = (1, 4, 4)
TWO_MODES = PixelMixture((-0.5, 0.5), 0.15)
DDPM = AlphasCumprod((1 - torch.linspace(1e-4, 0.02, 1000, dtype=F64)).cumprod(0))
SCORE_SDE = AlphaSigma(
    lambda u: torch.exp(-(0.1 * u + 9.95 * u.square()) / 2),
    lambda u: (-torch.expm1(-(0.1 * u + 9.95 * u.square()))).sqrt(),
    t_noise=1.0,
    t_data=1e-4,
)
EDM = AlphaSigma(torch.ones_like, lambda sigma: sigma, t_noise=80.0, t_data=0.004)
FLOW = AlphaSigma(lambda u: u, lambda u: 1 - u, t_noise=1e-3, t_data=0.996)
SCHEDULES = {"ddpm": DDPM, "score_sde": SCORE_SDE, "edm": EDM, "flow": FLOW}


def exact_net(data: PixelMixture, prediction: str, schedule: AlphaSigma):
    """Return the exact network of ``data``, which changes its inputs in place."""
    functions = (schedule.alpha, schedule.sigma)

    def net(x, time):
        e, x1 = data.expectations(x, *(f(time) for f in functions))
        a, s = (expand_like(f(time), x) for f in functions)
        a_dt, s_dt = (expand_like(derivative(f, time), x) for f in functions)
        outputs = {"noise": e, "x0": x1, "v": a * e - s * x1, "score": -e / s}
        outputs["velocity"] = a_dt * x1 + s_dt * e
        if not x.requires_grad:
            x.zero_(), time.zero_()
        return outputs[prediction]

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


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
@pytest.mark.parametrize("prediction", FACTORS)
def test_score_is_that_of_the_rescaled_data(schedule, prediction):
    net = exact_net(TWO_MODES, prediction, schedule)
    model = DenoiserModel(net, prediction, schedule).double()
    alpha, sigma = (lambda t, f=f: f(schedule.time(t)) for f in (schedule.alpha, schedule.sigma))
    check_score(model, TWO_MODES, alpha, sigma)


PAIRS = {
    "ddpm": ("noise", DDPM),
    "edm": ("x0", EDM),
    "velocity": ("velocity", FLOW),
    "vp score": ("score", SCORE_SDE),
}


@pytest.mark.parametrize(("prediction", "schedule"), PAIRS.values(), ids=PAIRS)
def test_bits_of_images_match_the_closed_form(prediction, schedule):
    """log P(k) is the log of the Gaussian mass of the cell of level k. The bounds are loose by
    log(1 + r^2) / 2 + O(r^4) nats per dim, r = sigma / (alpha std) at the last time."""
    gaussian, shape = PixelMixture((0.1,), 0.2), (1, 16, 16)
    ebm = exact(gaussian, prediction, schedule, shape)
    levels = ((gaussian.draw((64, *shape)) + 1) / 2 * 255).round().clamp(0, 255)
    edges = torch.stack([2 * (levels - 0.5) / 255 - 1, 2 * (levels + 0.5) / 255 - 1])
    low, high = Normal(0.1, 0.2).cdf(edges)
    expected = -(high - low).log2().flatten(1).mean(1)
    for estimator, settings, error in (
        ("elbo", {"num_nodes": 64}, 0.004),
        ("probability_flow", {"num_steps": 80, "max_refinements": 0}, 0.001),
    ):
        excess = ebm.likelihood(levels / 255, estimator, **settings).bits_per_dim - expected
        stderr = excess.std().item() / 8
        assert -3 * stderr < excess.mean() < 0.002 + 3 * stderr and stderr < error


def test_samples_have_the_pixels_of_the_data():
    found = exact(TWO_MODES, "velocity", FLOW).sample(200, seed=1)
    assert found.shape == (200, *SHAPE)
    assert (found * 255 - (found * 255).round()).abs().max() < 1e-4
    assert (found > 0.5).double().mean() == pytest.approx(0.5, abs=0.03)
    assert (2 * found - 1).abs().mean() == pytest.approx(0.5, abs=0.02)


class Net(nn.Module):
    """A network with dropout and batch normalisation."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 1)
        self.layers = nn.Sequential(self.conv, nn.Dropout(0.5), nn.BatchNorm2d(4))
        self.last = nn.Conv2d(4, 1, 1)

    def forward(self, x, time):
        return self.last(self.layers(x))


IMAGES = torch.arange(32.0).reshape(2, *SHAPE) / 255


def test_network_is_shared_in_evaluation_mode():
    net = Net().train()
    ebm = EBM.from_denoiser(net, SHAPE, "noise", DDPM)
    assert not any(module.training for module in net.modules())
    expected = ebm.log_prob(IMAGES)
    assert torch.equal(ebm.log_prob(IMAGES), expected)
    torch.nn.init.ones_(net.conv.bias)
    assert not torch.allclose(ebm.log_prob(IMAGES), expected)
    moved = EBM.from_denoiser(net.to("meta"), SHAPE, "noise", DDPM)
    assert moved.device.type == "meta"


def test_unsupported_uses_of_a_denoiser_are_refused(tmp_path):
    ebm = EBM.from_denoiser(Net(), SHAPE, "noise", DDPM)
    assert "time score" in error_of(ebm.likelihood, IMAGES, "time_integral")
    assert "time score" in error_of(ebm.energy, normal((1, *SHAPE)))
    assert "network" in error_of(ebm.save_pretrained, tmp_path)
    assert "labels" in error_of(ebm.sample, 1, labels=0)


WRONG = {
    "prediction": {"prediction": "epsilon"},
    "dict": {"net": {}},
    "image_shape": {"shape": (8, 8)},
    "Tensor": {"schedule": torch.ones(3)},
    "-4.394": {"schedule": AlphaSigma(lambda u: u, lambda u: 1 - u, 0.9, 0.1)},
    "differentiable": {"schedule": AlphaSigma(lambda u: u.detach(), torch.ones_like, 0.1, 1.0)},
    "float": {"schedule": AlphaSigma(lambda u: 1.0, lambda u: u, 80.0, 0.004)},
    "meta": {"num_levels": 256, "device": "meta"},
    "privateuseone": {"num_levels": 256, "device": "privateuseone"},
}


@pytest.mark.parametrize(("word", "change"), WRONG.items(), ids=WRONG)
def test_wrong_arguments_are_reported(word, change):
    given = {"net": Net(), "shape": SHAPE, "prediction": "noise", "schedule": DDPM, **change}
    assert word in error_of(EBM.from_denoiser, *given.values())


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


SCHEDULERS = (
    DDPMScheduler(beta_schedule="squaredcos_cap_v2"),
    DDIMScheduler(prediction_type="v_prediction", rescale_betas_zero_snr=True),
    EulerDiscreteScheduler(beta_schedule="scaled_linear", beta_end=0.03),
)


@pytest.mark.parametrize("scheduler", SCHEDULERS, ids=lambda kind: type(kind).__name__)
def test_pipeline_has_the_score_and_levels_of_its_data(scheduler):
    with pytest.warns(UserWarning, match="variance .* is ignored"):
        ebm = EBM.from_diffusers((ExactNet(scheduler), scheduler)).double()
    abar = scheduler.alphas_cumprod.double()
    last = (abar > 2**-24).sum() - 1

    def at(values):  # linear in the log signal-to-noise ratio between steps
        def interpolated(t):
            ratios, step = torch.logit(abar[: last + 1]), last * (1 - t)
            low = step.long().clamp(max=last - 1)
            ratio = torch.lerp(ratios[low], ratios[low + 1], step - low)
            return (values * ratio).sigmoid().sqrt()

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
    expected = ebm.log_prob(BLANK)
    assert torch.equal(expected, same.log_prob(BLANK))
    assert latent_flow(folder) is None  # it has pixels, not a latent space
    noise = torch.rand(99, 1, 8, 8).round()
    assert "Anomaly" in error_of(AnomalyDetector(folder).fit, noise)
    flat = shutil.copytree(folder / "unet", tmp_path / "flat")  # of older pipelines
    for file in (folder / "scheduler" / "scheduler_config.json", folder / PIPELINE_FILE):
        shutil.copy(file, flat)
    assert torch.equal(EBM.from_pretrained(flat).log_prob(BLANK), expected)


def test_scripts_evaluate_and_sample_a_pipeline(folder, tmp_path):
    flags = [str(folder), "--device", "cpu", "--output_dir", str(tmp_path / "out")]
    data = ["--dataset", "digits", "--num_levels", "17", "--limit", "3", "--repeats", "1"]
    few = ["--estimator", "all", "--estimator_args", "num_steps=2", "max_refinements=0"]
    bpd = load_script("evaluate/bpd.py").main
    assert list(bpd([*flags, *data, *few])["estimators"]) == ["elbo", "probability_flow"]
    drawn = load_script("sample/ebm.py").main([*flags, "--num_images", "2", "--num_steps", "3"])
    assert drawn["nfe"] == 4
    assert "data set" in error_of(bpd, [str(folder)])


def test_unsupported_parts_are_reported():
    net = UNet2DModel(8, 1, 1, **BLOCKS)
    assert "PNDMScheduler" in error_of(EBM.from_diffusers, (net, PNDMScheduler()))
    for wrong in ((), (net,)):
        assert "pair" in error_of(EBM.from_diffusers, wrong)
    assert "at least 3 values" in error_of(AlphasCumprod, [])
    labelled = UNet2DModel(8, 1, 1, num_class_embeds=3, **BLOCKS)
    assert "labels" in error_of(EBM.from_diffusers, (labelled, DDPMScheduler()))


def test_pickled_weights_are_refused(folder):
    weights = folder / "unet" / "diffusion_pytorch_model.safetensors"
    state = UNet2DModel(8, 1, 1, **BLOCKS).state_dict()
    torch.save(state, weights.with_suffix(".bin"))
    weights.unlink()
    assert "safetensors" in error_of(EBM.from_pretrained, folder)

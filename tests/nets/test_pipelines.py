"""Diffusers pipelines: exact networks in each parametrisation and schedule, folders, scripts."""

import json
import math
import shutil
from functools import partial
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

from ebm_app import EBM
from ebm_app.anomaly import AnomalyDetector
from ebm_app.folders import PIPELINE_FILE
from ebm_app.likelihood import ProbabilityFlowDensity, VariationalBound
from ebm_app.sampling import DPMSampler
from ebm_app.training.build import latent_flow

BLOCKS = {
    "down_block_types": ("DownBlock2D",),
    "up_block_types": ("UpBlock2D",),
    "block_out_channels": (8,),
    "norm_num_groups": 8,
    "layers_per_block": 1,
    "attention_head_dim": 8,
}
BLANK = torch.zeros(1, 1, 8, 8)
GAUSSIAN, TWO_MODES = PixelMixture((0.1,), 0.15), PixelMixture((-0.5, 0.5), 0.15)


class ExactNet(UNet2DModel):
    """Exact network of a ``PixelMixture``."""

    def __init__(self, scheduler, data, out_channels=1):
        super().__init__(4, 1, out_channels, **BLOCKS)
        self.ratios = torch.logit(scheduler.alphas_cumprod.double().clamp_min(1e-12))
        self.kind, self.data = scheduler.config.prediction_type, data
        self.double()

    def forward(self, x, step):
        low = step.long().clamp(0, len(self.ratios) - 2)
        ratio = torch.lerp(self.ratios[low], self.ratios[low + 1], step - low)
        a, s = torch.sigmoid(ratio).sqrt(), torch.sigmoid(-ratio).sqrt()
        e, x1 = self.data.expectations(x, a, s)
        a, s = a.reshape(-1, 1, 1, 1), s.reshape(-1, 1, 1, 1)
        out = {"epsilon": e, "v_prediction": a * e - s * x1, "sample": x1}[self.kind]
        return SimpleNamespace(sample=torch.cat([out, out + 1], 1))


def exact(data, kind=DDPMScheduler, **settings):
    scheduler = kind(**settings)
    return EBM.from_diffusers((ExactNet(scheduler, data), scheduler))


def bits(nats):
    return nats / (16 * math.log(2))


SCALED = {"beta_schedule": "scaled_linear", "beta_end": 0.03}
ZERO_SNR = {"rescale_betas_zero_snr": True}
CASES = [
    (TWO_MODES, DDPMScheduler, {"beta_schedule": "squaredcos_cap_v2"}),
    (TWO_MODES, DDIMScheduler, {"prediction_type": "v_prediction", **SCALED}),
    (GAUSSIAN, DDIMScheduler, {"prediction_type": "v_prediction", **ZERO_SNR}),
    (TWO_MODES, DDPMScheduler, {"prediction_type": "sample"}),
    (GAUSSIAN, EulerDiscreteScheduler, SCALED),
    (GAUSSIAN, EulerDiscreteScheduler, ZERO_SNR),
]


@pytest.mark.parametrize(("data", "kind", "settings"), CASES)
def test_likelihoods_match_the_data_at_the_last_noise_level(data, kind, settings):
    ebm = exact(data, kind, **settings)
    abar = kind(**settings).alphas_cumprod[0].item()
    a, s = math.sqrt(abar), math.sqrt(1 - abar)
    y = a * data.draw((400, 1, 4, 4)) + s * normal((400, 1, 4, 4), 9)
    expected = data.log_density(y, a, s)
    flow = ProbabilityFlowDensity(80, 0, num_probes=0)(ebm.model, y[:2], 1.0)
    torch.testing.assert_close(bits(flow.value), bits(expected[:2]), atol=5e-4, rtol=0)
    bound = VariationalBound(24, 3)(ebm.model, y, 1.0)
    excess = bits(bound.value - expected)
    stderr = excess.std().item() / math.sqrt(len(y))
    assert abs(excess.mean()) < 1e-3 + 3 * stderr and stderr < 0.02
    assert bits(bound.error.square().mean().sqrt()) == pytest.approx(excess.std().item(), rel=0.3)


def test_samples_have_the_pixels_and_levels_of_the_data():
    ebm = exact(TWO_MODES, DDIMScheduler)
    *_, last = DPMSampler(40).iterate(ebm.model, normal((200, 1, 4, 4)), None)
    assert (last.x > 0).double().mean() == pytest.approx(0.5, abs=0.03)
    assert last.x.abs().mean() == pytest.approx(0.5, abs=0.02)
    found = ebm.sample(3, seed=1)
    assert found.shape == (3, 1, 4, 4) and (found * 255 - (found * 255).round()).abs().max() < 1e-4
    x = ebm.space.encode((torch.arange(256, dtype=F64)[None] + 0.5) / 256)
    torch.testing.assert_close(x[0], torch.linspace(-1, 1, 256, dtype=F64))
    assert "time score" in error_of(ebm.likelihood, found, "time_integral")
    for function in (ebm.energy, partial(ebm.time_score, t=0.5)):
        assert "A denoiser has no time score" in error_of(function, normal((1, 1, 4, 4)))
    assert ebm.score(normal((1, 1, 4, 4)), 0.5).shape == (1, 1, 4, 4)


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(0)
    net = UNet2DModel(8, 1, 1, **BLOCKS)
    DDPMPipeline(net, DDPMScheduler(num_train_timesteps=20)).save_pretrained(tmp_path / "pipe")
    return tmp_path / "pipe"


def test_pipeline_folder_is_a_model(folder, tmp_path):
    ebm = EBM.from_pretrained(folder)
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


def test_unsupported_uses_of_a_pipeline_are_refused(folder):
    assert latent_flow(folder) is None  # it has pixels, not a latent space
    noise = torch.rand(99, 1, 8, 8).round()
    assert "Anomaly detection needs" in error_of(AnomalyDetector(folder).fit, noise)
    assert "num_levels" in error_of(EBM.from_diffusers, folder, num_levels=1)
    bpd = load_script("evaluate/bpd.py").main
    assert "Choose a data set" in error_of(bpd, [str(folder)])
    assert "17 levels, got --num_levels 256" in error_of(bpd, ["digits", "--num_levels", "256"])


def flat(folder, root):
    """The layout of early models: all files in one folder."""
    for name in ("unet", "scheduler"):
        shutil.copytree(folder / name, root, dirs_exist_ok=True)
    return root


def half_precision(folder, root):
    shutil.copytree(folder, root)
    weights = root / "unet" / "diffusion_pytorch_model.safetensors"
    weights.rename(weights.with_suffix(".fp16.safetensors"))
    return root


@pytest.mark.parametrize("layout", [flat, half_precision])
def test_layouts_of_diffusers_are_read(folder, tmp_path, layout):
    other = EBM.from_pretrained(layout(folder, tmp_path / "other"))
    assert torch.equal(other.log_prob(BLANK), EBM.from_pretrained(folder).log_prob(BLANK))


def test_unsupported_pipelines_are_reported(folder):
    net, scheduler = UNet2DModel(8, 1, 1, **BLOCKS), DDPMScheduler()
    wrong = [
        ((net, PNDMScheduler()), "PNDMScheduler is not supported"),
        ((net, DDPMScheduler(prediction_type="flow")), "unknown prediction_type 'flow'"),
        ((UNet2DModel(8, 1, 3, **BLOCKS), scheduler), "3 output channels"),
        ((UNet2DModel(8, 1, 1, num_class_embeds=3, **BLOCKS), scheduler), "class-conditional"),
        (net, "got a UNet2DModel"),
    ]
    for source, message in wrong:
        assert message in error_of(EBM.from_diffusers, source)
    with pytest.warns(UserWarning, match="variance .* is ignored"):
        EBM.from_diffusers((UNet2DModel(8, 1, 2, **BLOCKS), scheduler))
    for name, change, message in (
        (PIPELINE_FILE, {"_class_name": "KarrasVePipeline"}, "KarrasVePipeline is not"),
        ("scheduler/scheduler_config.json", {"num_train_timesteps": 2**64}, ""),
        ("unet/config.json", {"act_fn": 0.5}, ""),
    ):
        whole = (folder / name).read_text()
        (folder / name).write_text(json.dumps({**json.loads(whole), **change}))
        assert message in error_of(EBM.from_pretrained, folder)
        (folder / name).write_text(whole)
    weights = folder / "unet" / "diffusion_pytorch_model.safetensors"
    pickled = weights.rename(weights.with_suffix(".bin"))
    message = error_of(EBM.from_pretrained, folder)
    assert "pickled" in message and "save_pretrained" in message
    pickled.unlink()
    assert "no diffusion_pytorch_model.safetensors" in error_of(EBM.from_pretrained, folder)

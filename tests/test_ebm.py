"""EBM: closed forms, likelihood options, folders, the hub, and the bits of bundled models."""

import math
import shutil
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import huggingface_hub
import numpy as np
import pytest
import torch
from conftest import digit, error_of
from exact import F64, Exact, ExactModel, generator, normal
from PIL import Image
from safetensors.torch import save_file

import ebm_app
from ebm_app import EBM
from ebm_app.config import EBMConfig, PathConfig
from ebm_app.data.datasets import load_images
from ebm_app.data.levels import to_levels
from ebm_app.nets.unet import UNetConfig
from ebm_app.paths import LinearVPPath
from ebm_app.utils.tensors import standard_error

CONFIG = EBMConfig(
    dataset="digits",
    image_shape=(1, 8, 8),
    num_levels=17,
    path=PathConfig("vp", 0.8),
    net=UNetConfig((8, 8), norm_num_groups=4, attention_levels=(1,), num_heads=2),
    t_margin=1e-4,
    num_nodes=8,
)


@pytest.fixture
def ebm() -> EBM:
    torch.manual_seed(0)
    model = EBM(CONFIG)
    torch.nn.init.normal_(model.model.net.unet.conv_out.weight, std=0.1)
    return model.eval()


def images(num: int = 3) -> torch.Tensor:
    return torch.randint(0, 17, (num, 1, 8, 8), generator=generator(1)) / 16


@pytest.mark.parametrize("head", [1, 0], ids=["head", "integral"])
@pytest.mark.parametrize("path", [LinearVPPath(), LinearVPPath(c=0.4)], ids=["c=1", "c=0.4"])
def test_energy_and_scores_match_gaussian_closed_form(path, head):
    """p_t = N(alpha m, (alpha^2 s^2 + v) I); t = 1 is the last time of the model."""
    mean, std, t_margin, shape = 0.3, 0.6, 1e-4, (1, 8, 8)
    model = ExactModel(path, t_margin, [[mean]], [std], stein_channels=head)
    model.register_buffer("unused", torch.zeros(1, dtype=F64))  # sets device and dtype
    ebm = EBM(CONFIG, Exact(model, 64)).double()
    x = normal((4, *shape)).requires_grad_()
    for t in (0.0, 0.5, 1.0):
        time = torch.tensor(min(t, 1 - t_margin), dtype=F64)
        alpha, u = path.alpha(time), path.alpha(time).square() * std**2 + path.variance(time)
        residual = x.detach() - alpha * mean
        energy = (residual.square() / (2 * u) + (2 * torch.pi * u).log() / 2).flatten(1).sum(1)
        u_dt = 2 * alpha * path.alpha_dt(time) * std**2 + path.variance_dt(time)
        rate = u_dt / (2 * u) * (residual.square() / u - 1)
        rate = rate + path.alpha_dt(time) * mean * residual / u
        found = ebm.energy(x, t)
        (gradient,) = torch.autograd.grad(found.sum(), x)
        torch.testing.assert_close(found, energy, rtol=0, atol=1e-7)
        torch.testing.assert_close(ebm.score(x, t), -residual / u, rtol=0, atol=1e-6)
        torch.testing.assert_close(-gradient, -residual / u, rtol=0, atol=1e-6)
        torch.testing.assert_close(ebm.time_score(x, t), rate.flatten(1).sum(1), rtol=1e-9, atol=0)
    assert not ebm.energy(x.detach()).requires_grad


def test_energy_is_differentiable(ebm):
    """Against finite differences; an objective of a user needs the weights' gradients too."""
    ebm.double().requires_grad_(True)
    x = normal((2, 1, 8, 8)).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: ebm.energy(x, 0.9), x, fast_mode=True)
    ebm.energy(x, 0.9).sum().backward()
    assert all(weight.grad is not None for weight in ebm.model.net.last_layer.parameters())


def test_encode_round_trips(ebm):
    x = ebm.encode(images(), seed=3)
    assert torch.equal(ebm.to_images(x), images())
    assert torch.equal(x, ebm.encode(to_levels(images(), 17), seed=3))
    assert torch.equal(ebm.energy(x.double()), ebm.energy(x))
    assert ebm.energy(x).shape == ebm.time_score(x, 0.5).shape == (3,)
    default = ebm.likelihood(images(), "elbo")
    assert torch.equal(ebm.log_prob(images()), default.log_prob)


@pytest.mark.parametrize("name", ["digits", "digits-energy"])
def test_inference_mode_gives_the_same_results(name):
    ebm, x = EBM.from_pretrained(name), digit()
    calls = [
        partial(ebm.likelihood, x, "probability_flow", num_steps=1, max_refinements=0),
        partial(ebm.sample, 1, num_steps=2),
        partial(ebm.model.with_nodes(4).log_density_gradient, x, 0.9),
        partial(ebm.sample, 1, "annealed_hmc", num_temperatures=2, final_steps=0),
    ]
    for call in calls:
        with torch.inference_mode():
            found = call()
        torch.testing.assert_close(found[0].clone(), call()[0], rtol=1e-4, atol=1e-4)


def test_results_do_not_depend_on_batch_size(ebm):
    whole, parts = (ebm.likelihood(images(5), batch_size=n, repeats=2) for n in (5, 2))
    assert whole.nfe == parts.nfe
    torch.testing.assert_close(whole[:4], parts[:4], rtol=1e-5, atol=1e-4)
    drawn = [[*ebm.iterate_sample(5, batch_size=n, num_steps=3)] for n in (5, 2)]
    torch.testing.assert_close(drawn[0][-1].x, drawn[1][-1].x, rtol=1e-4, atol=1e-5)
    assert [frame.step for frame in drawn[1]] == list(range(1, 10))


SAMPLERS = {
    "dpm": {"num_steps": 3},
    "dpm with noise": {"sampler": "dpm", "num_steps": 3, "noise": 1.0},
    "probability_flow": {"sampler": "probability_flow", "num_steps": 3},
    "annealed_hmc": {"sampler": "annealed_hmc", "num_temperatures": 5, "final_steps": 1},
}


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 5, 7), (1, 3, 3)])
def test_results_do_not_depend_on_the_number_of_images(shape):
    """Sizes of 64, 105 and 9 values: torch fills tensors in blocks of 16."""
    net = UNetConfig((8,), norm_num_groups=4)
    ebm = EBM(replace(CONFIG, image_shape=shape, net=net, num_classes=3)).double()
    torch.nn.init.normal_(ebm.model.net.unet.conv_out.weight, std=0.1)
    for settings in SAMPLERS.values():
        *_, few = ebm.iterate_sample(2, seed=3, **settings)
        *_, many = ebm.iterate_sample(70, seed=3, **settings)
        torch.testing.assert_close(few.x, many.x[:2], rtol=0, atol=1e-9)
    x = torch.randint(0, 17, (7, *shape), generator=generator(1)) / 16
    for repeats in (1, 2):
        many, few = (ebm.log_prob(y, repeats=repeats) for y in (x, x[:3]))
        torch.testing.assert_close(few, many[:3], rtol=0, atol=1e-8)
        assert len((many - many[0]).unique()) == 7
    assert torch.equal(ebm.encode(x)[:3], ebm.encode(x[:3]))


def test_noise_does_not_depend_on_the_dtype(ebm):
    single = ebm.log_prob(images(), repeats=3)
    double = ebm.double().log_prob(images(), repeats=3)
    torch.testing.assert_close(single.double(), double, rtol=1e-4, atol=1e-3)
    start, same = ([*e.iterate_sample(2, num_steps=1)][-1].x for e in (ebm, ebm.float()))
    torch.testing.assert_close(start.float(), same, rtol=1e-3, atol=1e-3)


def test_time_is_a_scalar_or_one_per_point(ebm):
    for model in (ebm, EBM.from_pretrained("digits-energy")):
        x, times = normal((3, 1, 8, 8)).float(), torch.tensor([0.2, 0.9, 1.0])
        for function in (model.energy, model.score, model.time_score):
            each = [function(x[k : k + 1], t) for k, t in enumerate(times.tolist())]
            torch.testing.assert_close(function(x, times), torch.cat(each), rtol=1e-4, atol=1e-4)
        assert "one time t, or 3, got shape (2,)" in error_of(model.energy, x, times[:2])
        assert "less than or equal to 1" in error_of(model.energy, x, times + 0.1)


def test_estimators_that_disagree_warn():
    ebm, x = EBM.from_pretrained("digits"), digit()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for estimator in ("elbo", "time_integral"):
            ebm.likelihood(x, estimator, repeats=8)
        ebm.model.net.last_layer.bias.data += 0.5
        ebm.likelihood(x, "elbo", repeats=1)
        ebm.likelihood(x, "time_integral", indices=[0])
    with pytest.warns(UserWarning, match="time_integral gives .* Use elbo"):
        ebm.likelihood(x, "time_integral", repeats=8)


def test_unknown_weights_and_models_are_reported(ebm, tmp_path):
    ebm.save_pretrained(tmp_path)
    weights = {**ebm.state_dict(), "extra": torch.zeros(1)}
    save_file(weights, tmp_path / "model.safetensors")
    assert "extra has shape (1,), expected None" in error_of(EBM.from_pretrained, tmp_path)
    assert "no model 'nothing'" in error_of(EBM.from_pretrained, "nothing")
    assert "could not be downloaded" in error_of(EBM.from_pretrained, "nobody/nothing")  # offline


def test_push_to_hub_uploads_model_and_card(ebm, tmp_path, monkeypatch):
    def upload_folder(repo_id, folder_path):
        for path in Path(folder_path).iterdir():
            shutil.copy(path, tmp_path)
        return SimpleNamespace(commit_url=f"https://hub/{repo_id}/commit/1")

    hub = SimpleNamespace(create_repo=Mock(), upload_folder=upload_folder)
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: hub)
    assert ebm.push_to_hub("me/mine", private=True) == "https://hub/me/mine/commit/1"
    hub.create_repo.assert_called_once_with("me/mine", private=True, exist_ok=True)
    card = huggingface_hub.ModelCard.load(tmp_path / "README.md")
    assert card.data.library_name == "ebm_app"
    assert 'EBM.from_pretrained("me/mine")' in card.text
    again = EBM.from_pretrained(tmp_path)
    assert again.config == CONFIG and not again.training
    assert torch.equal(again.log_prob(images(1)), ebm.log_prob(images(1)))
    hub.create_repo.side_effect = PermissionError("401 Unauthorized\nlog in first")
    assert "401 Unauthorized log in first" in error_of(ebm.push_to_hub, "others/x")


@pytest.mark.parametrize("estimator", ["elbo", "time_integral", "probability_flow"])
def test_non_finite_results_are_reported(estimator):
    ebm = EBM(EBMConfig("digits", (1, 8, 8), 17, net=UNetConfig((8,))))
    torch.nn.init.constant_(ebm.model.net.last_layer.weight, 1e38)
    settings = {"num_steps": 2} if estimator == "probability_flow" else {}
    assert "not finite" in error_of(ebm.likelihood, images(), estimator, **settings)
    assert "not finite" in error_of(ebm.sample, 2, num_steps=2)


BUNDLED = Path(ebm_app.__file__).parent / "pretrained"
#: Bits per dim by one draw of elbo; those of the card over the test split, and their error
BITS = {
    "digits": (1.670843, 1.6746, 0.0158),
    "digits-energy": (1.695163, 1.6520, 0.0132),
    "mnist": (0.848391, 0.8876, 0.0026),
    "fashion": (2.257589, 2.7154, 0.0268),
    "cifar10": (3.564209, 3.0728, 0.0215),
    "mnist-energy": (0.940548, 0.9527, 0.0085),
    "mnist-latent": (1.063260, 1.0817, 0.0085),
}


def levels_of(name):
    """Return the first 32 held-out digits, or the images in the model folder: ten grey ones, or
    three in colour."""
    if name.startswith("digits"):
        return load_images("digits").test[:32]
    files = [BUNDLED / name / f"example_{index}.png" for index in range(10)]
    pixels = [np.asarray(Image.open(file))[::8, ::8] for file in files]  # enlarged eight times
    levels = torch.from_numpy(np.stack(pixels))
    return levels[:, None] if levels.ndim == 3 else levels[:3].permute(0, 3, 1, 2)


@pytest.mark.parametrize("name", BITS)
def test_bits_match_the_card(name):
    ebm, (recorded, published, error) = EBM.from_pretrained(name), BITS[name]
    bits = ebm.likelihood(levels_of(name), "elbo", repeats=1).bits_per_dim.double()
    assert bits.mean().item() == pytest.approx(recorded, abs=1e-4)
    assert abs(recorded - published) < 3 * math.hypot(standard_error(bits).item(), error)

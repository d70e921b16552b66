"""Flows: densities, folders, and energy-based models in their latent space."""

import math

import pytest
import torch
from conftest import SMALL, call, config_flags, config_of, equal_tensors, error_of, figures_of
from exact import generator, normal, uniform

from ebm_app import EBM, train
from ebm_app.data.datasets import ImageData
from ebm_app.data.levels import dequantise
from ebm_app.flow import Flow, FlowConfig
from ebm_app.nets.unet import NET_INPUTS

SHAPE, LEVELS = (1, 4, 4), 17
KINDS = ("gaussian", "copula")


def random_levels(num, seed=0):
    rows = normal((num, 16), seed).cumsum(1)
    return (2 * rows + 8).round().clamp(0, LEVELS - 1).to(torch.uint8).view(num, *SHAPE)


DATA = ImageData("test", LEVELS, *(random_levels(20, seed) for seed in (5, 6, 7)))


def fitted(kind):
    flow = Flow(FlowConfig("test", SHAPE, LEVELS, kind))
    levels = random_levels(2000)
    flow.space.fit(dequantise(levels, LEVELS, uniform(levels.shape, 1)))
    return flow


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("flows")
    for kind in KINDS:
        fitted(kind).save_pretrained(root / kind)
    return root


@pytest.mark.parametrize("net_input", NET_INPUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_flows_load_and_are_their_untrained_latent_model(kind, net_input, folders):
    flow, levels = Flow.from_pretrained(folders / kind), random_levels(50, seed=3)
    value = fitted(kind).likelihood(levels, repeats=2).log_prob
    assert value.mean() > -16 * math.log(LEVELS) + 5
    assert torch.equal(flow.likelihood(levels, repeats=2).log_prob, value)
    one, two = (flow.likelihood(levels, repeats=k) for k in (1, 2))
    assert one.error.isnan().all() and (two.error > 0).all() and "by flow" in repr(two)
    given = {"net_input": net_input, "block_out_channels": (8,), "norm_num_groups": 4}
    ebm = EBM(config_of(DATA, flow, **given))
    ebm.space.load_state_dict(flow.space.state_dict())
    images = DATA.test[:4].double() / (LEVELS - 1)
    found, own = (model.likelihood(images, repeats=2, seed=3) for model in (ebm, flow))
    assert torch.allclose(found.log_prob, own.log_prob, rtol=1e-5)
    assert torch.allclose(found.bits_per_dim, own.bits_per_dim, rtol=1e-5)
    assert ebm.sample(3, sampler="probability_flow", num_steps=2).shape == (3, *SHAPE)


def test_scripts_train_and_evaluate_in_latent_space(tmp_path, image_folder, script, capsys):
    flow, run = tmp_path / "flow", tmp_path / "run"
    dataset = ["--dataset", f"folder:{image_folder}"]
    train, bpd = script("train/ebm.py"), script("evaluate/bpd.py")
    fit = [*dataset, "--flow", "copula", "--output_dir", flow]
    figures = figures_of(script("train/flow.py"), *fit)
    assert math.isfinite(figures["bits_per_dim"]) and figures["output_dir"] == str(flow)
    words = [*dataset, "--space", "copula", "--flow", flow]
    words += ["--max_train_steps", 2, "--output_dir", run]
    settings = SMALL | {"net_input": "x", "validation_steps": 2}
    assert call(train, *words, *config_flags("flow", settings)) == 0
    estimators = {"time_integral", "elbo", "probability_flow"}
    score = (
        "--limit 2 --repeats 1 --t_margin 0.01 --estimator_args num_steps=2 num_draws=1".split()
    )
    score = [run, *score, "--output_dir", tmp_path, "--estimator", *estimators]
    assert set(figures_of(bpd, *score)["estimators"]) == estimators
    words += config_flags("flow", settings | {"dequantisation": "truncated_normal"})
    assert call(train, *words, "--overwrite_output_dir") == 2
    assert "CopulaSpace" in capsys.readouterr().err
    (flow / "model.safetensors").unlink()  # a copy is in the model's folder
    assert EBM.from_pretrained(run).config.space == "copula"
    # a run initialised from it needs no other flow
    longer = [*dataset, "--init_from", run, "--config", run / "run.json"]
    assert call(train, *longer, "--output_dir", tmp_path / "2") == 0
    runs = (run, tmp_path / "2")
    assert equal_tensors(*(EBM.from_pretrained(each).space.state_dict() for each in runs))


def test_incompatible_flows_are_reported(folders):
    flow = Flow.from_pretrained(folders / "copula")
    assert "copula" in error_of(config_of, DATA, flow, space="gaussian")
    other = ImageData("test", LEVELS, *(torch.zeros(3, 1, 8, 8, dtype=torch.uint8),) * 3)
    assert "(1, 4, 4)" in error_of(config_of, other, flow)
    assert "flow" in error_of(EBM.from_pretrained, folders / "copula")


def smooth_images(num, seed):
    """Return images (num, 1, 8, 8) of 256 levels with 9 degrees of freedom."""
    numbers = torch.randn(num, 1, 3, 3, generator=generator(seed))
    x = torch.nn.functional.interpolate(numbers, (8, 8), mode="bilinear")
    return (x.sigmoid() * 256).floor().clamp(0, 255).to(torch.uint8)


@pytest.mark.parametrize("kind", ["gaussian", "copula", "spline"])
@pytest.mark.parametrize("num", [3, 20])
def test_few_images_cost_at_most_one_bit_more_than_uniform(kind, num):
    """Their covariance is singular, and most levels are never seen."""
    flow, repeats = Flow(FlowConfig("smooth", (1, 8, 8), 256, kind)), 100
    noise = torch.rand((num * repeats, 1, 8, 8), generator=generator(1))
    levels = smooth_images(num, seed=2)
    flow.space.fit(dequantise(levels.repeat(repeats, 1, 1, 1), 256, noise), repeats)
    bits = flow.likelihood(smooth_images(100, seed=3)).bits_per_dim
    assert bits.mean() < 8 + 1


def test_resumed_run_has_the_flow_of_its_start(tmp_path):
    settings = {**SMALL, "num_levels": LEVELS, "max_train_steps": 1}
    ebm = train(random_levels(20), tmp_path, flow=fitted("gaussian"), **settings)
    settings |= {"resume_from_checkpoint": "latest", "max_train_steps": 2}
    message = error_of(train, random_levels(20), tmp_path, flow=fitted("gaussian"), **settings)
    assert "Leave out flow" in message
    resumed = train(random_levels(20), tmp_path, **settings)
    assert resumed.config == ebm.config
    assert equal_tensors(resumed.space.state_dict(), ebm.space.state_dict())

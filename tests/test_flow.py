"""Flows: densities, folders, and energy-based models in their latent space."""

import json
import math
import shutil

import pytest
import torch
from conftest import ROOT, TINY, error_of
from exact import F64, generator
from runs import SMALL
from safetensors.torch import load_file

from ebm_app import EBM, train
from ebm_app.cli.command_line import run_script
from ebm_app.data.images import ImageData
from ebm_app.data.levels import dequantise
from ebm_app.flow import Flow, FlowConfig
from ebm_app.nets.composite import NET_INPUTS
from ebm_app.training.launch import init_from
from ebm_app.training.settings import resolve

SHAPE, LEVELS = (1, 4, 4), 17
KINDS = ("gaussian", "copula")


def random_levels(num, seed=0):
    rows = torch.randn((num, 16), generator=generator(seed), dtype=F64).cumsum(1)
    return (2 * rows + 8).round().clamp(0, LEVELS - 1).to(torch.uint8).view(num, *SHAPE)


DATA = ImageData("test", LEVELS, *(random_levels(20, seed) for seed in (5, 6, 7)))


def fitted(kind):
    flow = Flow(FlowConfig("test", SHAPE, LEVELS, kind))
    levels = random_levels(2000)
    noise = torch.rand(levels.shape, generator=generator(1), dtype=F64)
    flow.space.fit(dequantise(levels, LEVELS, noise))
    return flow


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Return a folder with a flow of each kind."""
    root = tmp_path_factory.mktemp("flows")
    for kind in KINDS:
        fitted(kind).save_pretrained(root / kind)
    return root


@pytest.mark.parametrize("kind", KINDS)
def test_flow_round_trip_keeps_the_likelihood(kind, folders):
    flow, again = fitted(kind), Flow.from_pretrained(folders / kind)
    levels = random_levels(50, seed=3)
    value = flow.likelihood(levels, repeats=2).log_prob
    assert value.mean() > -16 * math.log(LEVELS) + 5
    assert torch.equal(again.likelihood(levels, repeats=2).log_prob, value)


@pytest.mark.parametrize("net_input", NET_INPUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_untrained_latent_model_is_its_flow(kind, net_input, folders):
    flow = Flow.from_pretrained(folders / kind)
    given = {"net_input": net_input, "block_out_channels": (8,), "norm_num_groups": 4}
    ebm = EBM(resolve(DATA, given, None, flow)[0])
    ebm.space.load_state_dict(flow.space.state_dict())
    images = DATA.test[:4].double() / (LEVELS - 1)
    found, own = (model.likelihood(images, repeats=2, seed=3) for model in (ebm, flow))
    assert torch.allclose(found.log_prob, own.log_prob, rtol=1e-5)
    assert torch.allclose(found.bits_per_dim, own.bits_per_dim, rtol=1e-5)
    assert ebm.sample(3, sampler="pf_ode", num_steps=2).shape == (3, *SHAPE)


@pytest.mark.process
def test_scripts_train_and_evaluate_in_latent_space(tmp_path, image_folder, script, capsys):
    dataset = ["--dataset", f"folder:{image_folder}"]
    flow, run = str(tmp_path / "flow"), str(tmp_path / "run")
    fit = [*dataset, "--flow", "copula", "--output_dir", flow]
    assert run_script(script("train/flow.py").main, fit) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert math.isfinite(figures["bits_per_dim"]) and figures["output_dir"] == flow
    train = [*dataset, "--space", "copula", "--flow", flow, "--net_input", "x"]
    train += [*TINY, "--output_dir", run, "--max_train_steps", "2", "--validation_steps", "2"]
    assert run_script(script("train/ebm.py").main, train) == 0
    (tmp_path / "flow" / "model.safetensors").unlink()  # a copy is in the model's folder
    score = [run, "--limit", "2", "--repeats", "1", "--estimator", "ratio", "elbo", "pf_ode"]
    score += ["--eps", "0.01", "--estimator_args", "num_steps=2", "num_draws=1"]
    score += ["--output_dir", str(tmp_path / "bpd")]
    capsys.readouterr()
    assert run_script(script("evaluate/bpd.py").main, score) == 0
    out = capsys.readouterr().out
    assert set(json.loads(out.splitlines()[-1])["estimators"]) == {"ratio", "pf_ode", "elbo"}
    truncated = [*score, "--dequantisation", "truncated_normal"]
    assert run_script(script("evaluate/bpd.py").main, truncated) == 2
    assert "CopulaSpace" in capsys.readouterr().err
    assert EBM.from_pretrained(run).config.space == "copula"
    # a run initialised from it needs no other flow
    longer = [*dataset, "--init_from", run, "--config", f"{run}/run.json"]
    assert run_script(script("train/ebm.py").main, [*longer, "--output_dir", run + "2"]) == 0
    ours, theirs = (EBM.from_pretrained(folder).space.state_dict() for folder in (run, run + "2"))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_initial_model_must_have_the_same_flow(folders, tmp_path):
    flow = Flow.from_pretrained(folders / "copula")
    given = {"block_out_channels": (8,), "norm_num_groups": 4}
    ebm, other = (EBM(resolve(DATA, given, None, flow)[0]) for _ in range(2))
    for model in (ebm, other):
        model.space.load_state_dict(flow.space.state_dict())
    ebm.save_pretrained(tmp_path / "model")
    init_from(other, tmp_path / "model")
    assert all(map(torch.equal, ebm.state_dict().values(), other.state_dict().values()))
    next(value for value in other.space.state_dict().values()).add_(0.1)
    assert "another flow" in error_of(init_from, other, tmp_path / "model")


def test_incompatible_flows_are_reported(folders):
    flow = Flow.from_pretrained(folders / "copula")
    assert "train/flow.py" in error_of(resolve, DATA, {"space": "gaussian"})
    assert "copula" in error_of(resolve, DATA, {"space": "gaussian"}, None, flow)
    other = ImageData("test", LEVELS, *(torch.zeros(3, 1, 8, 8, dtype=torch.uint8),) * 3)
    assert "(1, 4, 4)" in error_of(resolve, other, {}, None, flow)
    given = {"net_input": "x", "input_frequencies": (1.0,)}
    assert "net_input" in error_of(resolve, DATA, given, None, flow)
    message = error_of(Flow.from_pretrained, ROOT / "ebm_app" / "pretrained" / "digits")
    assert "energy model" in message
    assert "flow" in error_of(EBM.from_pretrained, folders / "copula")


@pytest.mark.process
def test_spline_flow_resumes_exactly(tmp_path, image_folder, script):
    main, runs = script("train/flow.py").main, (tmp_path / "whole", tmp_path / "part")
    flags = f"--dataset folder:{image_folder} --flow spline"
    flags += " --max_train_steps 4 --checkpointing_steps 2 --validation_steps 2 --logging_steps 1"
    flags += " --train_batch_size 4 --validation_images 4 --device cpu"
    assert run_script(main, [*flags.split(), "--output_dir", str(runs[0])]) == 0
    shutil.copytree(*runs)
    shutil.rmtree(runs[1] / "checkpoint-4")  # as if cut off after step 2
    resume = ["--output_dir", str(runs[1]), "--resume_from_checkpoint", "latest"]
    assert run_script(main, [*flags.split(), *resume]) == 0
    whole, part = (load_file(run / "checkpoint-4" / "model.safetensors") for run in runs)
    assert whole.keys() == part.keys() and any("conditioner" in name for name in whole)
    assert all(torch.equal(whole[name], part[name]) for name in whole)


def smooth_images(num, seed):
    """Return images (num, 1, 8, 8) of 256 levels with 9 degrees of freedom."""
    numbers = torch.randn(num, 1, 3, 3, generator=torch.Generator().manual_seed(seed))
    x = torch.nn.functional.interpolate(numbers, (8, 8), mode="bilinear")
    return (x.sigmoid() * 256).floor().clamp(0, 255).to(torch.uint8)


@pytest.mark.parametrize("kind", ["gaussian", "copula", "spline"])
@pytest.mark.parametrize("num", [3, 20])
def test_few_images_cost_at_most_one_bit_more_than_uniform(kind, num):
    """Their covariance is singular, and most levels are never seen."""
    flow = Flow(FlowConfig("smooth", (1, 8, 8), 256, kind))
    repeats = 100
    noise = torch.rand((num * repeats, 1, 8, 8), generator=torch.Generator().manual_seed(1))
    levels = smooth_images(num, seed=2)
    flow.space.fit(dequantise(levels.repeat(repeats, 1, 1, 1), 256, noise), repeats)
    bits = flow.likelihood(smooth_images(100, seed=3)).bits_per_dim
    assert bits.mean() < 8 + 1


@pytest.mark.process
def test_resume_in_the_space_of_another_flow_is_refused(tmp_path):
    settings = {**SMALL, "num_levels": LEVELS, "max_train_steps": 1, "flow": fitted("gaussian")}
    train(random_levels(20), tmp_path, **settings)
    for value in settings["flow"].space.state_dict().values():
        value.mul_(1.1)
    settings["resume_from_checkpoint"] = "latest"
    assert "another flow" in error_of(train, random_levels(20), tmp_path, **settings)

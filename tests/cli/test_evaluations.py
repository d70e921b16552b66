"""log Z, comparisons of models and samplers, and the self-test, by the commands."""

import json
import math

import pytest
import torch
from conftest import NET, call, figures_of
from PIL import Image

from ebm_app.cli import ais, compare, samplers, selftest
from ebm_app.config import EBMConfig, PathConfig
from ebm_app.data.images import load_images
from ebm_app.ebm import EBM
from ebm_app.likelihood.dequantisation import dequantisation_noise
from ebm_app.utils.tensors import standard_error

#: Runs of samplers
FLOW = "pf_ode num_steps=1"
HMC = "annealed_hmc num_temperatures=1 steps_per_temperature=1 num_leapfrog_steps=1 final_steps=0"
#: Flags of short chains
SHORT = (
    "--num_chains 4 --split train --limit 4 --repeats 1 --num_leapfrog_steps 1 "
    "--num_temperatures 2 --device cpu"
).split()


@pytest.mark.parametrize("methods", [["ais", "diffused", "raise"], ["raise"]])
def test_every_method_estimates_log_z(folder, capsys, tmp_path, methods):
    flags = [*SHORT, "--output_dir", tmp_path, "--method", *methods]
    figures, printed = figures_of(ais, folder / "grey", *flags), capsys.readouterr().out
    assert list(figures["methods"]) == methods and figures["method"] == methods[0]
    assert {"log_z", "stderr", "ess", "acceptance"} <= set(figures)
    for name, row in figures["methods"].items():
        assert f"| {name} |" in printed and row["stderr"] > 0 and 0 < row["acceptance"] <= 1
        bits = figures["unnormalised_bits_per_dim"] + row["log_z"] / (64 * math.log(2))
        assert row["bits_per_dim"] == pytest.approx(bits)
    if "ais" in methods:  # with few chains
        assert "warning: ais" in printed and figures["methods"]["ais"]["warnings"]
        assert {"forward_log_z", "reverse_log_z"} <= set(figures["methods"]["ais"])


def test_two_models_are_compared_on_the_same_images(folder, tmp_path):
    runs = [folder / "grey", folder / "labelled"]
    flags = ["--limit", 5, "--repeats", 2, "--device", "cpu", "--output_dir", tmp_path]
    figures = figures_of(compare, *runs, *flags)
    levels = load_images("digits").test[:5]
    noise = dequantisation_noise(2, levels, 0)
    results = [EBM.from_pretrained(run).likelihood(levels, noise=noise) for run in runs]
    one, other = (result.bits_per_dim.double() for result in results)
    assert figures["difference"] == pytest.approx((one - other).mean().item(), abs=1e-5)
    assert figures["stderr"] == pytest.approx(standard_error(one - other).item(), rel=1e-3)
    rows = {row["setting"]: (row["first"], row["second"]) for row in figures["settings"]}
    assert rows == {"ebm.num_classes": ("0", "3")}
    assert call(compare, runs[0], runs[0], *flags) == 2


def test_models_and_likelihoods_have_short_reprs(folder):
    ebm = EBM.from_pretrained(folder / "grey")
    assert repr(ebm).startswith("EBM of digits: images 1x8x8 with 17 levels")
    result = ebm.likelihood(torch.zeros(2, 1, 8, 8), "time_integral")
    assert repr(result).startswith("Likelihood of 2 images") and len(repr(result)) < 150
    table = result.to_frame()
    assert table["log_prob"].tolist() == result.log_prob.tolist() and len(table.columns) == 3


def test_every_run_is_a_row_of_the_table(capsys, tmp_path, folder):
    flags = "--num_images 5 --batch_size 3 --classifier_steps 5 --device cpu".split()
    runs = [word for run in (FLOW, HMC, "pf_ode  num_steps=1") for word in ("--run", run)]
    figures = figures_of(samplers, folder / "grey", "--output_dir", tmp_path, *flags, *runs)
    table = capsys.readouterr().out.splitlines()
    assert 0 <= figures["classifier_accuracy"] <= 1
    flow, hmc = figures["table"]
    assert (flow["run"], flow["nfe"], hmc["run"]) == (FLOW, 3, HMC)
    for row in (flow, hmc, figures["floor"][0]):
        assert row["frechet"] > 0 and 0 <= row["class_balance"] <= 1
    assert any(line.startswith(f"| {FLOW} | 3 |") for line in table)
    assert any(line.startswith("| 5 held-out images |") for line in table)
    record = json.loads((tmp_path / "samplers.json").read_text())
    assert record["figures"] == figures and record["settings"]["num_images"] == 5


def test_training_images_are_copies_and_test_images_are_not():
    data = load_images("digits")
    args = samplers.Arguments(model="digits", num_images=60, classifier_steps=5, device="cpu")
    measure = samplers.Judge(data, torch.device("cpu"), args).measure
    seen, unseen = (measure(data.display(part[:60]), None) for part in (data.train, data.test))
    assert seen["copies"] == seen["identical"] > 0.5  # a third is held out from the neighbours
    assert unseen["copies"] < 0.1 and unseen["identical"] == 0


@pytest.fixture
def exact(tmp_path):
    """Images of noise of variance 0.04, and a network of zeros, which is their exact model."""
    generator = torch.Generator().manual_seed(0)
    for split, num in (("train", 2), ("validation", 2), ("test", 40)):
        (tmp_path / "noise" / split).mkdir(parents=True)
        for index in range(num):
            x = 0.2 * torch.randn(8, 8, generator=generator)
            pixels = (128 * (x + 1)).floor().to(torch.uint8)
            Image.fromarray(pixels.numpy()).save(tmp_path / "noise" / split / f"{index}.png")
    name, path = f"folder:{tmp_path / 'noise'}", PathConfig(c=0.04)
    EBM(EBMConfig(name, (1, 8, 8), 256, eps=1e-6, path=path, net=NET)).save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.process
def test_exact_model_passes_and_random_one_fails(exact, folder, tmp_path):
    flags = "--limit 16 --device cpu --output_dir".split()
    models = (exact, folder / "grey")
    good, bad = (figures_of(selftest, model, *flags, tmp_path / "out") for model in models)
    names = [check["name"] for check in good["checks"]]
    assert names[:2] == ["mean time score", "predicted noise"] and "elbo against" in names[2]
    assert good["passed"] and all(check["passed"] for check in good["checks"])
    assert not bad["passed"]
    assert (tmp_path / "out" / "selftest.png").stat().st_size > 1000

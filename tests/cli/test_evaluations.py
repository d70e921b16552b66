"""Bits per dim, log Z, and comparisons of samplers, by the commands."""

import json
import math

import forked
import pytest
import torch
from conftest import call, figures_of

import ais
import bpd
import samplers
from ebm_app.data.datasets import load_images
from ebm_app.ebm import EBM
from ebm_app.likelihood import PathIntegral
from ebm_app.utils.output import warn_of_disagreements

ESTIMATORS = {"elbo", "path_integral", "probability_flow", "time_integral"}


@pytest.fixture
def run(folder, capsys, tmp_path):
    """Run the command on a tiny model; return its figures and everything that it printed."""

    def run(*flags):
        words = [folder / "grey", "--device", "cpu", "--output_dir", tmp_path, *flags]
        assert call(bpd, *words) == 0
        out, error = capsys.readouterr()
        return json.loads(out.splitlines()[-1]), out + error

    return run


def test_disagreement_of_a_tenth_of_a_bit_is_reported(capsys):
    warn_of_disagreements({"elbo": 1.0, "energy": 1.05, "time_integral": 7.0})
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and all("time_integral" in line for line in lines)


def test_all_estimators_are_compared(run, tmp_path):
    settings = "num_probes=1 num_steps=3 num_draws=2 max_refinements=1".split()
    flags = "--estimator all --limit 2 --repeats 1 --estimator_args".split()
    figures, printed = run(*flags, *settings)
    rows = figures["estimators"]
    assert set(rows) == ESTIMATORS and all(f"| {name} |" in printed for name in ESTIMATORS)
    wanted = {"bits_per_dim", "stderr", "t_margin", "nfe", "num_images", "seconds"}
    assert all(wanted <= set(row) for row in rows.values())
    assert {key: figures[key] for key in rows["elbo"]} == rows["elbo"]  # the first leads
    pairs = {(pair["first"], pair["second"]): pair for pair in figures["disagreements"]}
    names = "probability_flow", "time_integral"
    a, b = (rows[name]["bits_per_dim"] for name in names)
    assert len(pairs) == 6 and pairs[names]["difference"] == pytest.approx(a - b, abs=1e-12)
    assert rows["time_integral"]["t_margin"] == pytest.approx(1e-4)
    assert rows["probability_flow"]["numerical_error"] is None  # a single probe
    row = rows["path_integral"]  # the errors of two images are independent
    assert row["numerical_error"] == pytest.approx(row["image_error"] / math.sqrt(2))
    row = rows["time_integral"]  # the errors of a rule may be equal
    assert row["numerical_error"] == row["image_error"]
    assert json.loads((tmp_path / "bpd.json").read_text())["figures"] == figures


def test_failure_keeps_earlier_estimators(run, tmp_path, monkeypatch):
    def fail(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(PathIntegral, "__call__", fail)
    with pytest.raises(AssertionError, match="130"):  # the exit code of an interrupt
        run("--limit", "2", "--estimator", "elbo", "path_integral")
    record = json.loads((tmp_path / "bpd.json").read_text())
    assert list(record["figures"]["estimators"]) == ["elbo"]


def test_two_processes_match_one(run, folder, tmp_path):
    flags = "--estimator probability_flow --estimator_args num_steps=3 --split train".split()
    flags += "--limit 5 --repeats 1 --batch_size 1".split()
    one, _ = run(*flags)
    printed, words = tmp_path / "2.txt", [folder / "grey", *flags, "--device", "cpu"]
    words += ["--output_dir", tmp_path / "2"]
    assert forked.run("evaluate/bpd.py", words, printed, num=2) == {0}
    (line,) = [line for line in printed.read_text().splitlines() if line.startswith("{")]
    two = json.loads(line)
    for figures in (one, two):
        figures.pop("seconds"), figures["estimators"]["probability_flow"].pop("seconds")
    assert one == two


#: Runs of samplers
FLOW = "probability_flow num_steps=1"
HMC = "annealed_hmc num_temperatures=1 steps_per_temperature=1 num_leapfrog_steps=1 final_steps=0"


def test_every_method_estimates_log_z(folder, capsys, tmp_path):
    methods = ["ais", "diffused", "raise"]
    flags = "--num_chains 4 --split train --limit 4 --repeats 1 --device cpu".split()
    flags += "--num_leapfrog_steps 1 --num_temperatures 2 --output_dir".split()
    flags += [tmp_path, "--method", *methods]
    figures, printed = figures_of(ais, folder / "grey", *flags), capsys.readouterr().out
    assert list(figures["methods"]) == methods and figures["method"] == methods[0]
    assert {"log_z", "stderr", "ess", "acceptance"} <= set(figures)
    for name, row in figures["methods"].items():
        assert f"| {name} |" in printed and row["stderr"] > 0 and 0 < row["acceptance"] <= 1
        bits = figures["unnormalised_bits_per_dim"] + row["log_z"] / (64 * math.log(2))
        assert row["bits_per_dim"] == pytest.approx(bits)
    assert {"forward_log_z", "reverse_log_z"} <= set(figures["methods"]["diffused"])


def test_labels_of_an_unconditional_model_are_refused(capsys):
    assert call(bpd, "digits-energy", "--labels", "--limit", 2, "--device", "cpu") == 2
    assert "trained without labels" in capsys.readouterr().err


def test_log_z_needs_a_method(folder, capsys):
    assert call(ais, folder / "grey", "--method") == 2
    assert "error: method" in capsys.readouterr().err


def test_every_run_is_a_row_of_the_table(capsys, tmp_path, folder):
    flags = "--num_images 5 --batch_size 3 --classifier_steps 5 --device cpu".split()
    flags += ["--run", FLOW, "--run", HMC, "--run", "probability_flow  num_steps=1"]
    figures = figures_of(samplers, folder / "grey", "--output_dir", tmp_path, *flags)
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


@pytest.mark.parametrize("condition", ["", " guidance_scale=2"])
def test_images_do_not_depend_on_the_batch_size(condition):
    ebm, run = EBM.from_pretrained("digits"), samplers.parse_run("dpm num_steps=2" + condition)
    sizes = [samplers.Arguments(model="digits", num_images=5, batch_size=num) for num in (5, 2)]
    (whole, *_), (batched, *_) = (samplers.draw(ebm, *run, args) for args in sizes)
    assert (whole == batched).double().mean() > 0.99  # rounding changes few levels


def test_training_images_are_copies_and_test_images_are_not():
    data = load_images("digits")
    args = samplers.Arguments(model="digits", num_images=60, classifier_steps=5, device="cpu")
    measure = samplers.Judge(data, torch.device("cpu"), args).measure
    seen, unseen = (measure(data.display(part[:60]), None) for part in (data.train, data.test))
    assert seen["copies"] == seen["identical"] > 0.5  # a third is held out from the neighbours
    assert unseen["copies"] < 0.1 and unseen["identical"] == 0

"""Bits per dim by the command: its tables, its agreement with the package, and processes."""

import json
import math

import forked
import pytest
from conftest import call

from ebm_app.cli import bpd
from ebm_app.data.images import load_images
from ebm_app.ebm import EBM
from ebm_app.likelihood import PathIntegral
from ebm_app.likelihood.dequantisation import TruncatedNormal
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
    warn_of_disagreements({"elbo": 1.0, "energy": 1.05, "discrete": 7.0})
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and all("discrete" in line for line in lines)


@pytest.mark.process
def test_all_estimators_are_compared(run, tmp_path):
    settings = "num_probes=1 num_steps=3 num_draws=2 max_refinements=1".split()
    flags = "--estimator all --limit 2 --repeats 1 --estimator_args".split()
    figures, printed = run(*flags, *settings)
    rows = figures["estimators"]
    assert set(rows) == ESTIMATORS and all(f"| {name} |" in printed for name in ESTIMATORS)
    wanted = {"bits_per_dim", "stderr", "eps", "nfe", "num_images", "seconds"}
    assert all(wanted <= set(row) for row in rows.values())
    assert {key: figures[key] for key in rows["elbo"]} == rows["elbo"]  # the first leads
    pairs = {(pair["first"], pair["second"]): pair for pair in figures["disagreements"]}
    names = "probability_flow", "time_integral"
    a, b = (rows[name]["bits_per_dim"] for name in names)
    assert len(pairs) == 6 and pairs[names]["difference"] == pytest.approx(a - b, abs=1e-12)
    assert rows["time_integral"]["eps"] == pytest.approx(1e-4)
    assert rows["probability_flow"]["numerical_error"] is None  # a single probe
    row = rows["path_integral"]  # the errors of two images are independent
    assert row["numerical_error"] == pytest.approx(row["image_error"] / math.sqrt(2))
    row = rows["time_integral"]  # the errors of a rule may be equal
    assert row["numerical_error"] == row["image_error"]
    assert json.loads((tmp_path / "bpd.json").read_text())["figures"] == figures


def test_estimators_have_their_own_settings(run):
    runs = ["elbo", "elbo num_nodes=4", "time_integral integrator=rk45"]
    flags = ["--limit", "2", "--repeats", "1", "--estimator_args", "num_nodes=5", "num_draws=2"]
    rows = run("--estimator", *runs, *flags)[0]["estimators"]
    assert [(name, row["nfe"]) for name, row in rows.items()][:2] == [(runs[0], 10), (runs[1], 8)]


def test_a_failure_keeps_the_estimators_before_it(run, tmp_path, monkeypatch):
    def fail(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(PathIntegral, "__call__", fail)
    with pytest.raises(AssertionError, match="130"):  # the exit code of an interrupt
        run("--limit", "2", "--estimator", "elbo", "path_integral")
    record = json.loads((tmp_path / "bpd.json").read_text())
    assert list(record["figures"]["estimators"]) == ["elbo"]


def test_bits_are_those_of_the_model(run, folder):
    """Old names of estimators select the same ones."""
    flags = "--estimator_args num_steps=2 max_refinements=0 --seed 3".split()
    flags += "--dequantisation truncated_normal --limit 3 --repeats 2 --formats".split()
    figures, printed = run(*flags, "--estimator", "pf_ode")
    assert f"PNG: {figures['formats']['PNG']:.3f} bits per dim" in printed
    options = {"num_steps": 2, "max_refinements": 0, "repeats": 2, "seed": 3}
    ebm, levels = EBM.from_pretrained(folder / "grey"), load_images("digits").test[:3]
    result = ebm.likelihood(levels, "probability_flow", TruncatedNormal(), **options)
    assert figures["bits_per_dim"] == pytest.approx(result.bits_per_dim.mean().item(), rel=1e-6)
    assert figures["dequantisation"] == "truncated_normal"


def test_margin_beyond_training_is_reported(run):
    for eps, is_beyond in ((1e-5, True), (1e-3, False)):
        _, printed = run("--limit", 2, "--repeats", 1, "--eps", eps)
        assert ("trained on times up to" in printed) == is_beyond


@pytest.mark.process
def test_two_processes_give_the_figures_of_one(run, folder, tmp_path):
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

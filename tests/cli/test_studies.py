"""Studies: tables of log ratios, of costs and of anomaly detection."""

import json
import math
from dataclasses import replace

import pytest
import torch
from conftest import GREY, call, figures_of
from exact import generator

import speed
import toy
from ebm_app.ebm import EBM
from ebm_app.ratios.problems import (
    INFORMATION_PROBLEMS,
    TOY_PROBLEMS,
    EvaluationPoints,
    train,
)
from ebm_app.utils.files import read_json
from ebm_app.utils.quadrature import rule_on

TINY = "--iterations 4 --learning_rates 1e-3 1e-2 --num_seeds 2 --quick --device cpu".split()


@pytest.fixture(autouse=True)
def few_points(monkeypatch):
    monkeypatch.setattr(toy, "QUICK_POINTS", 40)


def test_table_selects_and_repeats_the_best_rate(capsys, tmp_path, monkeypatch):
    ran = []

    def train_and_test(problem, method, seed, rate, num_points, device):
        ran.append((method, rate, seed))
        test = {"error": rate * seed * (100 if method == "tsm_stein" else 1), "divergence": None}
        return {"validation_error": abs(rate - 0.01), "test": test, "ms": 3.0 + seed}

    monkeypatch.setattr(toy, "train_and_test", train_and_test)
    methods = ["ctsm_v_time1", "tsm_stein"]
    flags = ["--problems", "gaussians_d2", "--methods", *methods, "--seed", "4"]
    flags += [*TINY, "--output_dir", tmp_path]
    answer = figures_of(toy, *flags)
    assert "| 0.104 |" in capsys.readouterr().out  # the paper's figure beside ours
    assert json.loads((tmp_path / "toy.json").read_text())["figures"] == answer
    runs = [(1e-3, 4), (1e-2, 4), (1e-2, 5)]
    expected = sorted((method, *run) for method in methods for run in runs)
    assert sorted(ran) == expected
    with (tmp_path / "runs.jsonl").open("r+") as file:  # a crash within the last line
        file.truncate(file.seek(0, 2) - 9)
    assert figures_of(toy, *flags) == answer and len(ran) == len(expected) + 1
    assert {row["method"] for row in answer["table"]} == set(methods)
    for row in answer["table"]:
        assert row["learning_rate"] == 0.01 and row["ms"] == 7
        factor = 100 if row["method"] == "tsm_stein" else 1
        assert row["error"] == pytest.approx(0.045 * factor) and row["divergence"] is None
        assert row["error_deviation"] == pytest.approx(0.01 * factor / math.sqrt(2))
        assert row["note"] == ("not converged" if factor > 1 else None)
    for more, message in (
        (["--problems", "gaussians_d3"], "unknown problem 'gaussians_d3'"),
        (["--problems", "mixtures_k1_sigma0", "--methods", "ctsm_time1"], "do not belong"),
    ):
        assert call(toy, *flags, *more) == 2 and message in capsys.readouterr().err


@pytest.mark.parametrize("name", ["gaussians_d5", "mixtures_k1", "mixtures_k2_sigma0", "mi_d40"])
def test_every_method_of_a_problem_trains(name):
    """One step of each, on the pairs and paths that ship; the large matrices apart."""
    problem = replace((TOY_PROBLEMS | INFORMATION_PROBLEMS)[name], iterations=1, batch_size=16)
    points = EvaluationPoints(problem.pair, 4, generator())
    for method in problem.methods:
        *_, last = train(problem, method, 0, 1e-3, points)
        assert 0 < last.metrics["error"] < math.inf


def test_time_score_integrates_to_the_log_ratio():
    for name in ("gaussians_d5", "mixtures_k1", "mixtures_k2_sigma0"):
        problem = TOY_PROBLEMS[name]
        path, pair = next(iter(problem.methods.values())).path, problem.pair
        x = pair.p1.sample(50, generator()).double()
        rule = rule_on(200, *path.interval(1e-9))
        scores = torch.stack([pair.time_score(path, x, t) for t in rule.nodes], 1)
        torch.testing.assert_close(scores @ rule.weights, pair.log_ratio(x), rtol=0, atol=1e-4)


def test_mi_script_on_the_problems_of_the_paper(script, tmp_path):
    flags = ["--problems", "mi_d40", "--methods", "ctsm_v_time1", *TINY]
    answer = figures_of(script("evaluate/mi.py"), *flags, "--output_dir", tmp_path)
    (row,) = answer["table"]
    assert row["matrix"] is not None and row["divergence_truth"] > 0


def test_mi_script_learns_the_gaussians_of_the_paper(script, tmp_path, capsys):
    module = script("evaluate/mi.py")
    flags = ["--iterations", 60, "--device", "cpu", "--output_dir", tmp_path]
    answer = figures_of(module, *flags)
    assert answer["truth"] == 10 and 0 < answer["value"] < 12
    record = json.loads((tmp_path / "mi_paper.json").read_text())["figures"]
    assert record["curve"][-1] == [60, answer["value"]]
    assert "truth 10" in capsys.readouterr().out
    assert call(module, *flags, "--num_seeds", 2) == 2 and "--table" in capsys.readouterr().err


def test_baselines_of_mutual_information(script, tmp_path):
    module = script("evaluate/mi_baselines.py")
    flags = "--dims 40 --iterations 6 --num_seeds 2 --output_dir".split()
    fit, *critics = figures_of(module, *flags, tmp_path)["table"]
    assert abs(fit["value"] - 10) < 0.3 and fit["error"] < 1
    assert [row["method"] for row in critics] == ["mine", "quadratic"]
    assert all(row["iterations"] == 6 and row["error"] > 0 for row in critics)
    # the critic whose value is the log ratio up to a constant: x^T (I - Sigma^-1) x / 2
    pair = INFORMATION_PROBLEMS["mi_d40"].pair
    covariance = torch.eye(40)
    covariance[range(0, 40, 2), range(1, 40, 2)] = pair.p1.rho
    covariance[range(1, 40, 2), range(0, 40, 2)] = pair.p1.rho
    critic = module.Quadratic(40)
    critic.weight.data = (torch.eye(40) - covariance.inverse()) / 2
    x = pair.p1.sample(100, generator())
    constant = critic(x).detach() - pair.log_ratio(x)
    assert constant.std() < 1e-4 and constant.mean().item() == pytest.approx(-10, abs=1e-3)


def test_objectives_are_timed_on_the_same_network(folder, tmp_path):
    """Without the labels of the model."""
    ebm = EBM(replace(GREY, num_classes=3))
    steps = [speed.make_step(ebm, 3, name) for name in speed.OBJECTIVES]
    (size,) = {sum(p.numel() for p in step.weights) for step in steps}
    settings = {"divergence": "poisson", "prediction": "moments", "stein_factor": 1.0}
    head = speed.make_step(ebm, 3, "ctsm_v", **settings)
    assert sum(p.numel() for p in head.weights) > size
    flags = "--batch_size 4 --rounds 1 --device cpu --output_dir".split()
    figures = figures_of(speed, folder / "grey", *flags, tmp_path)
    assert read_json(tmp_path / "speed.json")["figures"] == figures
    rows = {row["step"]: row["of tsm"] for row in figures["table"]}
    assert set(speed.OBJECTIVES) < set(rows) and rows["tsm"] == 1


@pytest.mark.parametrize(("table", "part"), [("parts", "optimizer"), ("likelihood", "likelihood")])
def test_parts_are_compared_with_the_network(folder, tmp_path, table, part):
    flags = "--batch_size 2 --rounds 1 --device cpu --table".split()
    figures = figures_of(speed, folder / "colour", *flags, table, "--output_dir", tmp_path)
    parts = {row["part"]: row["of the network"] for row in figures["table"]}
    assert parts["network"] == 1 and parts[part] > 0


def test_benchmark_ranks_anomalies(script, tmp_path, capsys):
    main = script("evaluate/anomaly.py").main
    flags = "--limit 12 --num_unusual 12 --num_likelihoods 4 --seed 3 --output_dir".split()
    metrics = main(["digits", *flags, str(tmp_path)])
    assert metrics["rows"]["shuffled"]["detector"] > 0.9
    assert all(0 <= row["likelihood"] <= 1 for row in metrics["rows"].values())
    assert 0 <= metrics["false_alarms"] < 0.5 < metrics["mean"]
    assert "local outlier factor" in capsys.readouterr().out
    assert (tmp_path / "anomaly.json").is_file() and (tmp_path / "anomaly.png").is_file()

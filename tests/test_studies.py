"""Studies: the grid of cells, tables of log ratios and of mutual information."""

import json
import math
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from conftest import call, error_of
from exact import generator

from ebm_app.io.processes import make_accelerator
from ebm_app.ratios.points import EvaluationPoints
from ebm_app.ratios.problems import PROBLEMS
from ebm_app.ratios.training import RatioTrainer, RatioTraining
from ebm_app.tabular.known import EXAMPLES
from studies import grid
from studies.ratio_tables import StudyBudget, train_cells

SMALL = StudyBudget(num_seeds=2, num_points=40, iterations=4, learning_rates=(1e-3, 1e-2))
TINY = "--iterations 4 --learning_rates 1e-3 1e-2 --num_seeds 2".split()


def test_a_cell_with_a_record_is_not_run_again_and_one_that_was_cut_off_is(tmp_path):
    ran, accelerator = [], make_accelerator(device="cpu")

    def run(name, folder):
        ran.append(name)
        if name == "b" and len(ran) == 2:
            raise KeyboardInterrupt
        return {"folder": folder.name}

    cells = {name: {"seed": (1, 2)} for name in ("a", "b", "deep/c")}
    with pytest.raises(KeyboardInterrupt):
        grid.fill(tmp_path, cells, run, accelerator)
    found = grid.fill(tmp_path, cells, run, accelerator)
    assert ran == ["a", "b", "b", "deep/c"]
    assert found == grid.fill(tmp_path, cells, run, accelerator)
    assert found == {"a": {"folder": "a"}, "b": {"folder": "b"}, "deep/c": {"folder": "c"}}
    other = {**cells, "b": {"seed": 3}}
    assert "b holds a run of other settings" in error_of(
        grid.fill, tmp_path, other, run, accelerator
    )
    half = SimpleNamespace(
        process_index=1, num_processes=2, is_main_process=False, wait_for_everyone=lambda: None
    )
    grid.fill(tmp_path / "two", {"a": {}, "b": {}, "c": {}}, run, half)
    assert ran[4:] == ["b"]


def test_a_table_tries_the_rates_and_repeats_the_best(tmp_path):
    before = torch.random.get_rng_state()
    cells = [("gaussians_d2", "ctsm_v_time1"), ("gaussians_d2", "tsm_stein")]
    budget = replace(SMALL, first_seed=4)
    rows = train_cells(tmp_path, cells, budget)
    assert torch.equal(before, torch.random.get_rng_state())
    assert [(row["problem"], row["method"]) for row in rows] == cells
    for row in rows:
        folder = tmp_path / row["problem"] / row["method"]
        records = {
            path.parent.name: json.loads(path.read_text())["figures"]
            for path in folder.glob("*/cell.json")
        }
        first = {f"lr={rate:g},seed=4" for rate in SMALL.learning_rates}
        best = f"lr={row['learning_rate']:g}"
        assert set(records) == first | {f"{best},seed=5"}
        assert f"{best},seed=4" == min(first, key=lambda name: records[name]["validation_error"])
        errors = [records[f"{best},seed={seed}"]["test"]["error"] for seed in (4, 5)]
        assert row["error"] == pytest.approx(sum(errors) / 2)
        assert row["error_deviation"] == pytest.approx(abs(errors[0] - errors[1]) / math.sqrt(2))
        assert row["nfe"] > 20
    assert "other settings" in error_of(
        train_cells, tmp_path, cells[:1], replace(budget, iterations=5)
    )


@pytest.mark.parametrize("name", ["gaussians_d5", "mixtures_k1", "mixtures_k2_sigma0", "mi_d40"])
def test_every_method_of_a_problem_can_be_trained(name):
    """One step of each, on the pairs and paths that ship; the large matrices apart."""
    problem, training = PROBLEMS[name], RatioTraining(1, 16)
    points = EvaluationPoints(problem.pair, 4, generator())
    for method in problem.methods.values():
        *_, last = RatioTrainer(method, problem.pair, 0, 1e-3, training, points.criterion).run()
        assert 0 < last.metrics["error"] < math.inf


def test_the_toy_script_writes_its_table(script, capsys, tmp_path, monkeypatch):
    toy = script("evaluate/toy.py")
    monkeypatch.setattr(toy, "QUICK", SMALL)
    cells = "--problems gaussians_d2 --methods tsm_stein ctsm_v_time1".split()
    answer = toy.main([*cells, "--quick", "--device", "cpu", "--output_dir", str(tmp_path)])
    assert len(answer["table"]) == 2
    assert json.loads((tmp_path / "toy.json").read_text())["figures"] == answer
    assert "| 0.104 |" in capsys.readouterr().out  # the paper's figure beside ours
    for flags, message in (
        (["--problems", "gaussians_d3"], "unknown problem 'gaussians_d3'"),
        (["--methods", "gan"], "unknown method 'gan'"),
        (["--problems", "mixtures_k1_sigma0", "--methods", "ctsm_time1"], "do not belong"),
    ):
        assert call(toy, *flags) == 2 and message in capsys.readouterr().err


def test_the_mi_script_on_the_paper_s_gaussians(script, tmp_path, monkeypatch):
    mi = script("evaluate/mi.py")
    monkeypatch.setattr(mi, "QUICK", SMALL)
    flags = ["--problems", "mi_d40", "--methods", "ctsm_v_time1", *TINY, "--quick"]
    (row,) = mi.main([*flags, "--output_dir", str(tmp_path)])["table"]
    assert row["matrix"] is not None and row["divergence_truth"] > 0


def test_estimates_are_compared_with_known_information(script, tmp_path, monkeypatch, capsys):
    bmi, normal = script("evaluate/mi_benchmark.py"), EXAMPLES["normal_1x1"]
    monkeypatch.setitem(sys.modules, "bmi.benchmark", None)
    assert call(bmi) == 2 and "pip install benchmark-mi" in capsys.readouterr().err
    task = SimpleNamespace(
        sample=lambda num, seed: normal.draw(num, generator(seed)),
        mutual_information=normal.mutual_information,
    )
    package = SimpleNamespace(BENCHMARK_TASKS={"1v1-normal-0.75": task})
    monkeypatch.setitem(sys.modules, "bmi", SimpleNamespace(benchmark=package))
    monkeypatch.setitem(sys.modules, "bmi.benchmark", package)
    flags = "--tasks 1v1-normal-0.75 --num_rows 1000 --iterations 20 --num_seeds 2".split()
    answer = bmi.main([*flags, "--output_dir", str(tmp_path)])
    for row in answer["table"]:
        assert row["truth"] == pytest.approx(0.4133, abs=1e-4)
        error = abs(row["value"] - row["truth"])
        assert row["held"] == (error <= 1.96 * row["stderr"]) and row["right"] == (error <= 0.0207)
    assert answer["held"] == sum(row["held"] for row in answer["table"])

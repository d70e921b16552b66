"""Tables: cells by the protocol, resumed, as text and plots, and the scripts that make them."""

import csv
import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import forked
import numpy as np
import pytest
import torch
from exact import generator

from ebm_app.io.errors import UserError
from ebm_app.io.start import run_script
from ebm_app.ratios.mi_tasks import BMI_TASKS, MI_TASKS
from ebm_app.ratios.points import EvaluationPoints
from ebm_app.ratios.problems import INFORMATION_PROBLEMS, PROBLEMS, TOY_PROBLEMS
from ebm_app.ratios.training import RatioTrainer, RatioTraining
from studies.ratios import benchmark, runner
from studies.ratios.step_times import step_times
from studies.ratios.study import Study, StudyBudget
from studies.ratios.tables import REPORTED, to_csv, to_markdown

SMALL = StudyBudget(num_seeds=2, num_points=40, iterations=4, learning_rates=(1e-3, 1e-2))
TINY = "--iterations 4 --learning_rates 1e-3 1e-2 --num_seeds 2".split()


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.json"))


def test_a_cell_tries_the_rates_and_repeats_the_best(tmp_path):
    study = Study(tmp_path, SMALL)
    done = list(study.cell("gaussians_d2", "ctsm_v_time1"))
    assert sum(done) == study.num_evaluations("gaussians_d2") == 3 * 2
    metrics = study.metrics("gaussians_d2", "ctsm_v_time1")
    names = {f"lr={rate:g},seed=0.json" for rate in (1e-3, 1e-2)}
    best = metrics["learning_rate"]
    folder = tmp_path / "runs/gaussians_d2/ctsm_v_time1"
    assert set(files(folder)) == names | {f"lr={best:g},seed=1.json"}
    records = {name: json.loads((folder / name).read_text())["figures"] for name in files(folder)}
    kept = records[f"lr={best:g},seed=0.json"]
    assert kept["validation_error"] == min(records[name]["validation_error"] for name in names)
    errors = [kept["test"]["error"], records[f"lr={best:g},seed=1.json"]["test"]["error"]]
    assert metrics["error"] == pytest.approx(sum(errors) / 2)
    assert metrics["error_deviation"] == pytest.approx(abs(errors[0] - errors[1]) / math.sqrt(2))
    assert metrics["nfe"] > 20 and [len(curve) for curve in metrics["curves"]] == [2, 2]


def test_seeds_follow_the_first(tmp_path):
    study = Study(tmp_path, replace(SMALL, first_seed=4, learning_rates=(1e-3,)))
    list(study.cell("gaussians_d2", "ctsm_v_time1"))
    names = files(tmp_path / "runs/gaussians_d2/ctsm_v_time1")
    assert names == ["lr=0.001,seed=4.json", "lr=0.001,seed=5.json"]
    with pytest.raises(UserError, match="first seed"):
        StudyBudget(first_seed=-1)


def test_a_table_goes_on_where_it_was_stopped(tmp_path):
    study = Study(tmp_path, SMALL)
    cell = study.cell("gaussians_d2", "nce")
    next(cell), next(cell), next(cell)  # the second run has begun
    cell.close()
    assert files(tmp_path / "runs/gaussians_d2/nce") == ["lr=0.001,seed=0.json"]
    assert sum(study.cell("gaussians_d2", "nce")) == 3 * 2
    before = study.metrics("gaussians_d2", "nce")
    assert list(study.cell("gaussians_d2", "nce")) == [2, 2, 2]  # nothing left to train
    at_once = Study(tmp_path / "other", SMALL)
    list(at_once.cell("gaussians_d2", "nce"))
    assert at_once.metrics("gaussians_d2", "nce")["error"] == before["error"]


def test_runs_of_other_settings_are_refused(tmp_path):
    list(Study(tmp_path, SMALL).cell("gaussians_d2", "nce"))
    other = Study(tmp_path, replace(SMALL, iterations=5))
    with pytest.raises(UserError, match="holds a run of other settings"):
        list(other.cell("gaussians_d2", "nce"))


def test_unfinished_cells_have_no_figures(tmp_path):
    with pytest.raises(UserError, match="is missing"):
        Study(tmp_path, SMALL).metrics("gaussians_d2", "nce")


@pytest.mark.parametrize("bad", [{"num_seeds": 0}, {"num_points": 1}])
def test_budgets_without_runs_are_refused(bad):
    with pytest.raises(UserError, match="at least 1 seed"):
        StudyBudget(**bad)
    with pytest.raises(UserError, match="positive"):
        StudyBudget(learning_rates=(0.0,))


@pytest.mark.parametrize("name", ["gaussians_d5", "mixtures_k1", "mixtures_k2_sigma0", "mi_d40"])
def test_every_method_of_a_problem_can_be_trained(name):
    """One step of each, on the pairs and paths that ship; the large matrices apart."""
    problem, training = PROBLEMS[name], RatioTraining(1, 16)
    points = EvaluationPoints(problem.pair, 4, generator())
    for key, method in problem.methods.items():
        if key == "ctsm_v_mixture":
            method = replace(method, fit_draws=200, max_modes=1)
        *_, last = RatioTrainer(method, problem.pair, 0, 1e-3, training, points.criterion).run()
        assert 0 < last.metrics["error"] < math.inf


def test_the_paper_s_cells_are_cells_of_ours():
    for (problem, method), (mean, _, ms) in REPORTED.items():
        assert method in TOY_PROBLEMS[problem].methods and mean > 0 and ms > 1
    assert REPORTED["gaussians_d10", "ctsm_v_time1"] == (1.616, 0.203, 4.9)
    assert REPORTED["mixtures_k2", "ctsm_v_time1"] == (266.486, 150.877, 4.3)
    assert set(INFORMATION_PROBLEMS) == {"mi_d40", "mi_d80", "mi_d160", "mi_d320"}
    assert len(REPORTED) == 5 * 8 + 3 * 6 * 2 + 3


def test_steps_are_timed_beside_their_floor():
    times = step_times(PROBLEMS["gaussians_d2"], ["tsm_stein", "ctsm_v_time1"], rounds=2, steps=2)
    assert list(times) == ["floor", "tsm_stein", "ctsm_v_time1"] and min(times.values()) > 0
    times = step_times(PROBLEMS["mi_d40"], ["ctsm_v_time1"], rounds=1, steps=1)
    assert list(times) == ["inverse_each", "ctsm_v_time1"]


def test_tables_in_markdown_and_csv():
    row = {"problem": "p", "method": "m", "error": 1.23456, "error_deviation": 0.5}
    other = {**row, "method": "n", "error": None, "paper_error": 2.0}
    text = to_markdown([{**row, "paper_error": 2.0}, other])
    assert "| m | 1.235 ± 0.5 (2) |" in text and "| n | diverged |" in text
    assert to_csv([row]).splitlines()[1].startswith("p,m,")


@pytest.fixture
def quick(script, monkeypatch):
    """A script by its path, whose --quick is quicker still."""

    def load(path):
        module = script(path)
        monkeypatch.setattr(module, "QUICK", SMALL)
        monkeypatch.setattr(runner, "step_times", partial(step_times, rounds=1, steps=1))
        return module

    return load


def test_the_toy_script_writes_its_table(quick, capsys, tmp_path):
    toy = quick("evaluate/toy.py")
    cells = "--problems gaussians_d2 --methods nce ctsm_v_time1".split()
    short = ["--iterations", "4", "--learning_rates", "1e-3", "--quick"]
    answer = toy.main([*cells, *short, "--output_dir", str(tmp_path)])
    assert {(r["problem"], r["method"]) for r in answer["table"]} == {
        ("gaussians_d2", method) for method in ("nce", "ctsm_v_time1")
    }
    assert all(row["ms"] > 0 for row in answer["table"])
    assert json.loads((tmp_path / "toy.json").read_text())["figures"] == answer
    for name in ("toy.csv", "toy.md", "toy.png", "toy_curves.png"):
        assert (tmp_path / name).stat().st_size > 100
    assert "(0.104)" in capsys.readouterr().out  # the paper's figure beside ours


def test_mistakes_are_one_sentence(script, capsys):
    toy = script("evaluate/toy.py")
    for flags, message in (
        (["--problems", "gaussians_d3"], "unknown problem 'gaussians_d3'"),
        (["--methods", "gan"], "unknown method 'gan'"),
        (["--problems", "mixtures_k1_sigma0", "--methods", "nce"], "do not belong"),
        (["--iterations", "0"], "at least 1"),
    ):
        assert run_script(toy.main, flags) == 2
        assert message in capsys.readouterr().err


@pytest.mark.slow
def test_two_processes_give_the_table_of_one(tmp_path):
    cells = "--problems gaussians_d2 --methods nce ctsm_v_time1 tre".split()
    tables = []
    for num, folder in ((1, tmp_path / "one"), (2, tmp_path / "two")):
        flags = [*cells, *TINY, "--quick", "--output_dir", folder]
        assert forked.run("evaluate/toy.py", flags, folder.with_suffix(".txt"), num) == {0}
        record = json.loads((folder / "toy.json").read_text())
        tables.append([(r["method"], r["error"]) for r in record["figures"]["table"]])
    assert tables[0] == tables[1]


def test_the_mi_script_on_the_paper_s_gaussians(quick, tmp_path):
    mi = quick("evaluate/mi.py")
    flags = ["--problems", "mi_d40", "--methods", "ctsm_v_time1", *TINY, "--quick"]
    answer = mi.main([*flags, "--output_dir", str(tmp_path)])
    (row,) = answer["table"]
    assert row["matrix"] is not None and row["divergence"] is not None
    assert (tmp_path / "mi.png").exists()


def test_the_mi_script_on_the_user_s_data(script, capsys, tmp_path):
    """Correlated normals: the base alone is right, so that a short training does."""
    mi, g = script("evaluate/mi.py"), np.random.default_rng(0)
    x = g.standard_normal((1000, 1))
    y = 0.8 * x + 0.6 * g.standard_normal((1000, 1))
    np.save(tmp_path / "x.npy", x), np.save(tmp_path / "y.npy", y)
    rows = "\n".join(f"{a},{b}" for a, b in zip(x[:, 0], y[:, 0], strict=True))
    (tmp_path / "both.csv").write_text(f"a,b\n{rows}\n")
    common = ["--output_dir", str(tmp_path / "out"), "--num_folds", "3"]
    arrays = ["--x", str(tmp_path / "x.npy"), "--y", str(tmp_path / "y.npy")]
    table = ["--csv", str(tmp_path / "both.csv"), "--x_columns", "a", "--y_columns", "b"]
    answer = mi.main([*arrays, *common, "--iterations", "10"])
    error = answer["value"] + 0.5 * math.log(0.36)
    assert abs(error) < 3.5 * answer["stderr"] and 0 < answer["stderr"] < 0.05
    assert f"mutual information {answer['value']:.4f}" in capsys.readouterr().out
    assert (tmp_path / "out/mi_data.png").exists()
    read = [mi.read(mi.parse_args(flags)) for flags in (arrays, table)]
    assert all(np.array_equal(a, b) for a, b in zip(*read, strict=True))
    assert json.loads((tmp_path / "out/mi_data.json").read_text())["figures"] == answer
    np.save(tmp_path / "short.npy", y[:-1])
    for flags, message in (
        (["--x", str(tmp_path / "x.npy")], "give both --x and --y"),
        (["--x", str(tmp_path / "x.npy"), "--y", str(tmp_path / "short.npy")], "999"),
        (["--x", "a", "--y", "b", "--csv", "c"], "not both"),
    ):
        assert run_script(mi.main, flags) == 2
        assert message in capsys.readouterr().err


@pytest.mark.slow
def test_the_mi_script_on_data_of_known_information(script, capsys, tmp_path):
    mi = script("evaluate/mi.py")
    flags = "--benchmark normal_1x1 --num_rows 2000 --iterations 100 --num_seeds 2".split()
    answer = mi.main([*flags, "--output_dir", str(tmp_path)])
    (row,) = answer["table"]
    assert row["truth"] == pytest.approx(0.4133, abs=1e-4) and row["num_seeds"] == 2
    assert abs(row["estimate"] - row["truth"]) < 3.5 * row["stderr"]
    assert abs(row["ksg"] - row["truth"]) < 0.1 and abs(row["cca"] - row["truth"]) < 0.1
    assert sum(part["nearest"] for part in answer["scoreboard"].values()) == 1
    assert (tmp_path / "mi_benchmark.png").exists()
    record = json.loads((tmp_path / "mi_benchmark.json").read_text())
    assert [row["seed"] for row in record["figures"]["rows"]] == [0, 1]
    assert run_script(mi.main, ["--benchmark", "spiral"]) == 2
    assert "unknown task 'spiral'" in capsys.readouterr().err


def test_the_estimates_of_another_package_are_of_the_same_tasks():
    folder = Path(benchmark.__file__).parent
    with (folder / "bmi_estimates.csv").open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    assert {line["task"] for line in lines} == set(BMI_TASKS)
    assert len(lines) == len(BMI_TASKS) * len(benchmark.REPORTED)
    for line in lines:
        assert float(line["truth"]) == pytest.approx(
            MI_TASKS[line["task"]].mutual_information, abs=1e-3
        )


def test_estimates_of_another_package_stand_beside_ours():
    truth = MI_TASKS["normal_1x1"].mutual_information
    row = {"truth": truth, "seconds": 1.0, "stderr": 0.1, "lower_bound": 0.4, "warnings": []}
    row |= {"task": "normal_1x1", "interval": [0.3, 0.5], "ksg": truth - 0.1, "cca": 0.0}
    # the NWJ bound of our own ratios is not the package's estimate by NWJ
    row |= {"estimate": truth + 0.015, "nwj": -5.0}
    (few,), (many,) = (benchmark.by_task([row], num_rows) for num_rows in (3000, 10_000))
    assert benchmark.methods_of([few]) == list(benchmark.OWN)
    assert benchmark.scoreboard([few])["estimate"] == {"right": 1, "nearest": 1}
    reported = benchmark.reported_estimates()["normal_1x1"]
    assert reported == {key: many[key] for key in benchmark.REPORTED}
    found = benchmark.scoreboard([many])
    errors = {key: abs(many[key] - truth) for key in benchmark.METHODS}
    assert found[min(errors, key=errors.get)]["nearest"] == 1
    assert found["nwj"]["right"] == (errors["nwj"] <= 0.05 * truth)
    # where a task lacks them, nobody is compared with them
    assert set(benchmark.scoreboard([few, many])) == set(benchmark.OWN)


def test_estimates_do_not_touch_the_generator_of_torch(tmp_path):
    before = torch.random.get_rng_state()
    list(Study(tmp_path, SMALL).cell("gaussians_d2", "ctsm_time1"))
    assert torch.equal(before, torch.random.get_rng_state())

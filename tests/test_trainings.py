"""Studies that train: runs are made once, and every checkpoint of one is scored."""

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import TINY, error_of

from ebm_app.runs.cli import run_script
from ebm_app.studies import trainings

SCRIPT = Path("train/ebm.py")


@pytest.fixture
def started(monkeypatch):
    """The commands that are started; each leaves the record of a finished run."""
    commands = []

    def run(command, **_):
        commands.append(command[1:])
        folder = Path(command[command.index("--output_dir") + 1])
        folder.mkdir(exist_ok=True)
        record = {"command": command[1:], "figures": {"steps": 1}}
        (folder / "run.json").write_text(json.dumps(record))
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(subprocess, "run", run)
    return commands


def test_a_finished_run_is_not_made_again_and_no_other_run_is_taken_for_it(started, tmp_path):
    for _ in range(2):
        trainings.train_once(SCRIPT, ["--seed", "1"], tmp_path / "run")
    assert started == [
        [*("train/ebm.py", "--seed", "1", "--output_dir"), str(tmp_path / "run")]
        + ["--overwrite_output_dir"]
    ]
    message = error_of(trainings.train_once, SCRIPT, ["--seed", "2"], tmp_path / "run")
    assert "other flags" in message and len(started) == 1


def test_a_run_that_was_cut_off_goes_on(started, tmp_path):
    trainings.train_once(SCRIPT, [], tmp_path)
    record = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps({**record, "figures": None}))
    (tmp_path / "checkpoint-5").mkdir()
    trainings.train_once(SCRIPT, [], tmp_path)
    assert started[1][-2:] == ["--resume_from_checkpoint", "latest"]


def test_a_failing_script_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=2))
    assert "ebm.py failed" in error_of(trainings.train_once, SCRIPT, [], tmp_path / "run")


def test_a_lever_is_measured_against_the_base(tmp_path, here, capsys):
    study = here("evaluate/levers.py")
    flags = "--max_train_steps 3 --limit 5 --pf_ode_limit 3 --pf_ode_steps 2 --device cpu".split()
    own = ["--ebm_flags", " ".join(TINY[:-2]), "--output_dir", str(tmp_path)]
    chosen = ["--variants", "plain time", "ten times eps"]
    assert run_script(study.main, [*flags, *own, *chosen]) == 0
    base, time, eps = json.loads(capsys.readouterr().out.splitlines()[-1])["table"]
    assert [row["variant"] for row in (base, time, eps)] == ["base", *chosen[1:]]
    for name in ("ratio", "pf_ode"):
        assert base[f"{name}_gain"] == base[f"{name}_gain_stderr"] == 0
        for row in (time, eps):
            assert row[f"{name}_gain"] == pytest.approx(base[name] - row[name])
    folders = ["base", "plain-time", "ten-times-eps"]
    models = [json.loads((tmp_path / name / "config.json").read_text()) for name in folders]
    assert [model["time_input"] for model in models] == ["clock", "time", "clock"]
    assert models[2]["eps"] == pytest.approx(10 * models[0]["eps"])
    assert "| plain time | " in (tmp_path / "levers.md").read_text()
    assert run_script(study.main, [*flags, *own, "--variants", "luck"]) == 2
    assert "unknown variant 'luck'" in capsys.readouterr().err


def test_every_checkpoint_is_scored_by_both_estimators(tmp_path, script, here, capsys):
    flow, study = str(tmp_path / "flow"), here("evaluate/stability.py")
    fit = ["--flow", "copula", "--output_dir", flow, "--num_preview_images", "0"]
    assert run_script(script("train/flow.py").main, fit) == 0
    flags = "--variants u x_paper --max_train_steps 4 --num_scores 2 --limit 3 --pf_ode_steps 2"
    own = ["--ebm_flags", " ".join(TINY[:-2]), "--output_dir", str(tmp_path / "study")]
    assert run_script(study.main, [flow, *flags.split(), *own, "--device", "cpu"]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {name: [row["step"] for row in rows] for name, rows in figures["curves"].items()} == {
        "u": [2, 4],
        "x_paper": [2, 4],
    }
    for row in sum(figures["curves"].values(), []):
        for name in ("ratio", "pf_ode"):
            assert row[name] == pytest.approx(figures["flow"] - row[f"{name}_gain"])
    runs = [tmp_path / "study" / name / "run.json" for name in figures["curves"]]
    inputs = [json.loads(run.read_text())["settings"]["ebm"]["net_input"] for run in runs]
    assert inputs == ["u", "x"]
    assert (tmp_path / "study" / "stability.png").exists()

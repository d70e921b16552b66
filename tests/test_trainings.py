"""Studies that train: runs are made once, and their models are compared on the same images."""

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import error_of

from ebm_app.io.start import run_script
from studies import trainings

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


#: the flags of TINY, as the study passes them on
TRAINING = (
    "block_out_channels=8 norm_num_groups=4 num_nodes=8 dropout=0 train_batch_size=4 "
    "validation_images=4 validation_repeats=1 num_preview_images=0 lr_warmup_steps=2 ema_decay=0.9"
).split()
SHORT = "--limit 3 --pf_ode_limit 3 --pf_ode_steps 2 --device cpu".split()


def rows_of(table, space):
    return {(row["variant"], row["step"]): row for row in table if row["space"] == space}


def check_gains(rows, base):
    for row in rows:
        for name in ("ratio", "pf_ode", "elbo"):
            assert row[f"{name}_gain"] == pytest.approx(base[name] - row[name], abs=1e-12)


def test_a_setting_is_compared_with_the_base(tmp_path, here, capsys):
    main = here("evaluate/ablations.py").main
    own = [*SHORT, "--max_train_steps", "3", "--output_dir", str(tmp_path)]
    own += ["--training_args", *TRAINING, "--variants"]
    assert run_script(main, [*own, "plain_time", "ten_times_eps"]) == 0
    metrics = json.loads(capsys.readouterr().out.splitlines()[-1])
    rows = rows_of(metrics["table"], "ambient")
    assert list(rows) == [("base", 3), ("plain_time", 3), ("ten_times_eps", 3)]
    base = rows["base", 3]
    assert base["ratio_gain"] == base["ratio_gain_stderr"] == 0 < base["quadrature_error"]
    check_gains(rows.values(), base)
    folders = [tmp_path / "ambient" / name for name, _ in rows]
    models = [json.loads((folder / "config.json").read_text()) for folder in folders]
    assert [model["time_input"] for model in models] == ["clock", "time", "clock"]
    assert models[2]["eps"] == pytest.approx(10 * models[0]["eps"])
    assert "| ambient | plain_time | " in (tmp_path / "ablations.md").read_text()
    for flags, message in (
        (["luck"], "unknown variant 'luck'"),
        (["base", "--study", "luck"], "choose one of latent, network_input, recipe, settings"),
        (["base", "--core_seconds", "3"], "--max_train_steps is what --core_seconds finds"),
        (["base", "--training_args", "luck=1"], "there is no setting 'luck'"),
        (["base", "--training_args", "train_batch_size=many"], "must be a whole number"),
    ):
        assert run_script(main, [*own, *flags]) == 2
        assert message in capsys.readouterr().err


def test_a_budget_of_core_seconds_says_how_many_steps(tmp_path, here, monkeypatch):
    module = here("evaluate/ablations.py")
    monkeypatch.setattr(module, "TIMED_STEPS", 2)
    own = [*SHORT, "--study", "recipe", "--variants", "muon", "--output_dir", str(tmp_path)]
    metrics = module.main([*own, "--core_seconds", "0.5", "--training_args", *TRAINING])
    assert [row["variant"] for row in metrics["table"]] == ["base", "muon"]
    for row in metrics["table"]:
        run = json.loads((tmp_path / "ambient" / row["variant"] / "run.json").read_text())
        timing = tmp_path / "ambient" / f"{row['variant']}-timing" / "run.json"
        a_step = json.loads(timing.read_text())["figures"]["core_seconds"] / 2
        assert row["step"] == run["figures"]["steps"]
        assert row["step"] == max(1, round(0.5 / a_step))
        assert run["settings"]["training"]["optimizer"] == {"base": "adam"}.get(
            row["variant"], row["variant"]
        )


def test_models_of_a_latent_space_are_compared_with_their_flow(tmp_path, here, capsys):
    main = here("evaluate/ablations.py").main
    own = [*SHORT, "--study", "network_input", "--variants", "u", "x_paper"]
    own += ["--num_checkpoints", "2", "--max_train_steps", "4", "--training_args", *TRAINING]
    assert run_script(main, [*own, "--output_dir", str(tmp_path)]) == 0
    rows = rows_of(json.loads(capsys.readouterr().out.splitlines()[-1])["table"], "copula")
    assert list(rows) == [("flow", None), ("u", 2), ("u", 4), ("x_paper", 2), ("x_paper", 4)]
    flow, *others = rows.values()
    check_gains(others, flow)
    runs = [tmp_path / "copula" / name / "run.json" for name in ("u", "x_paper")]
    inputs = [json.loads(run.read_text())["settings"]["ebm"]["net_input"] for run in runs]
    assert inputs == ["u", "x"] and (tmp_path / "ablations.png").exists()

"""The flags of train/ebm.py: what its help shows, and mistakes in one sentence."""

import re

import pytest
from conftest import TINY

from ebm_app.io.start import run_script
from ebm_app.models.parametrisation import PREDICTIONS
from ebm_app.models.time_score import TIME_INPUTS
from ebm_app.paths import PATHS

TRAIN_MISTAKES = {
    "dataset": (["--dataset", "nist"], "choose one of .*digits.*folder:PATH.*mnist"),
    "space": (["--space", "latent"], "unknown space 'latent': choose one of ambient"),
    "path": (["--path", "straight"], "unknown path .*linear_vp, schrodinger_bridge, vp"),
    "two-sided path": (["--path", "schrodinger_bridge"], "use a path from noise"),
    "objective": (["--objective", "nce"], "choose one of ctsm, ctsm_m, ctsm_m_deviance"),
    "weighting": (["--weighting", "best"], "stein_score, time_score, uniform"),
    "time sampler": (["--time_sampler", "x"], "arc_length, early, importance, stratified"),
    "ctsm_m without moments": (
        ["--objective", "ctsm_m", "--prediction", "raw"],
        "give --prediction moments or ctsm_v",
    ),
    "tsm with head": (["--objective", "tsm"], "give --stein_factor 0"),
    "size": (["--block_out_channels", *"88888"], "8x8 cannot be halved 4 times: give at most 4"),
    "groups": (["--norm_num_groups", "3"], "norm_num_groups 3 does not divide 8 channels"),
    "steps": (["--max_train_steps", "0"], "max_train_steps: must be a whole number, at least 1"),
    "c": (["--c", "much"], "--c takes a number above 0 or the word data"),
    "missing data": (["--dataset", "mnist", "--data_root", "nowhere"], "--download"),
    "empty folder": (["--dataset", "folder:{tmp}"], "{tmp}"),
    "no checkpoint": (["--resume_from_checkpoint", "latest"], "holds no whole checkpoint"),
    "processes": (["--expect_processes", "2"], "2 processes were asked for, but 1 started"),
    "config": (["--config", "{tmp}/none.json"], "none.json is missing"),
    "report_to": (["--report_to", "paper"], "choose one of jsonl, tensorboard"),
}


@pytest.mark.parametrize("mistake", TRAIN_MISTAKES)
def test_mistakes_in_training_end_in_one_sentence(script, capsys, tmp_path, mistake):
    arguments, message = TRAIN_MISTAKES[mistake]
    filled = [argument.format(tmp=tmp_path) for argument in arguments]
    flags = ["--output_dir", str(tmp_path / "run"), *TINY, *filled]
    code = run_script(script("train/ebm.py").main, flags)
    error = capsys.readouterr().err
    assert code == 2
    assert error.startswith("error: ") and len(error.strip().splitlines()) == 1
    assert re.search(message.format(tmp=tmp_path), error), error


def test_help_of_training_starts_with_the_flags_that_matter(script, capsys):
    with pytest.raises(SystemExit):
        script("train/ebm.py").main(["--help"])
    usage, _, text = capsys.readouterr().out.partition("\n")
    common, _, rare = text.partition("\nadvanced:\n")
    assert usage.endswith("[flags]")
    for name in ("dataset", "output_dir", "max_train_steps", "train_batch_size", "learning_rate"):
        assert f"--{name} " in common
    for name in ("ema_decay", "attention_levels", "weighting"):
        assert f"--{name} " in rare and f"--{name} " not in common


def test_help_of_training_says_what_every_path_and_reading_of_the_network_is(script, capsys):
    with pytest.raises(SystemExit):
        script("train/ebm.py").main(["--help"])
    words = " ".join(capsys.readouterr().out.split())
    for kinds in (PATHS, PREDICTIONS, TIME_INPUTS):
        for name, kind in kinds.items():
            assert kind.note and f"{name} ({kind.note})" in words

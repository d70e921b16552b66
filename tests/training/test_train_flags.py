"""The flags of train/ebm.py: what its help shows, and mistakes in one sentence."""

import re
import subprocess
import sys

import pytest
from conftest import ROOT, TINY

from ebm_app.cli.command_line import run_script
from ebm_app.training.settings import KINDS

TRAIN_MISTAKES = {
    "dataset": (["--dataset", "nist"], "choose one of .*digits.*folder:PATH.*mnist"),
    "space": (["--space", "latent"], "unknown space 'latent': choose one of ambient"),
    "two-sided path": (["--path", "schrodinger_bridge"], "use a path from noise"),
    "objective": (["--objective", "nce"], "choose one of ctsm, ctsm_m, ctsm_v"),
    "dual with labels": (["--objective", "dual", "--classes", "all"], "without labels"),
    "energy by another": (["--prediction", "energy", "--objective", "ctsm_v"], "objective dual"),
    "tsm with head": (["--objective", "tsm"], "give --stein_factor 0"),
    "size": (["--block_out_channels", *"88888"], "8x8 cannot be halved 4 times: give at most 4"),
    "eps": (["--eps", "0.7"], "eps must be less than 0.5"),
    "augmentation": (["--augmentation", "flip"], "choose one of affine, none"),
    "ddp": (["--ddp_args", "comm_hook=x"], "must be 'no', 'fp16', 'bf16'"),
    "no head": (["--prediction", "moments", "--stein_factor", "0"], "moments' needs a Stein head"),
    "fall": (["--lr_decay_steps", "5"], "cosine falls from the first step"),
    "missing data": (["--dataset", "mnist", "--data_root", "nowhere"], "--download"),
    "two wishes": (
        ["--resume_from_checkpoint", "latest", "--overwrite_output_dir"],
        "give one of them",
    ),
    "no checkpoint": (["--resume_from_checkpoint", "latest"], "holds no whole checkpoint"),
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


def shown(script, capsys, flag):
    """The flags that a help text shows, and the text in one line."""
    with pytest.raises(SystemExit) as stop:
        script("train/ebm.py").main([flag])
    text = capsys.readouterr().out
    assert stop.value.code == 0
    return set(re.findall(r"--([a-z_]+)", text)), " ".join(text.replace("│", " ").split())


def test_help_of_training_shows_few_flags_and_the_others_when_asked(script, capsys):
    common, _ = shown(script, capsys, "--help")
    everything, text = shown(script, capsys, "--help_advanced")
    contract = "dataset data_root objective path output_dir max_train_steps train_batch_size "
    contract += "learning_rate checkpointing_steps resume_from_checkpoint mixed_precision seed "
    contract += "dry_run flow device"
    assert set(contract.split()) <= common <= everything | {"help_advanced"}
    assert len(common - {"help", "help_advanced"}) <= 25
    assert {"space", "net_input", "checkpoints_total_limit", "report_to", "config"} <= everything
    for kinds in KINDS.values():
        assert all(re.search(rf"\b{name}\b", text) for name in kinds)


def test_help_of_training_comes_before_torch_is_imported():
    """Which takes seconds."""
    code = "import runpy, sys; sys.argv[1:] = ['--help']\n"
    code += "try: runpy.run_path('train/ebm.py', run_name='__main__')\n"
    code += "except SystemExit: sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0

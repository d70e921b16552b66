"""Flags that a script would not heed are refused, and so is what the environment would change."""

import pytest
from conftest import ROOT, error_of

from ebm_app.io.processes import make_accelerator

VAIN = {
    "study": ("evaluate/mi.py", "--x a.npy --y b.npy --methods nce", "with data of your own"),
    "quick data": ("evaluate/mi.py", "--x a.npy --y b.npy --quick", "with data of your own"),
    "data sets": ("evaluate/mi.py", "--x a.npy --y b.npy --num_seeds 2", "with data of your own"),
    "all": ("evaluate/bpd.py", "digits --estimator all pf_ode_exact", "leave the others out"),
    "nodes": ("evaluate/bpd.py", "digits --estimator paper --num_nodes 8", "--num_nodes is of"),
    "steps": (
        "evaluate/bpd.py",
        "digits --estimator pf_ode --estimator_args solver=dopri5 num_steps=8",
        "num_steps is not read with solver=dopri5",
    ),
    "tolerance": (
        "evaluate/bpd.py",
        "digits --estimator pf_ode --estimator_args tolerance=1e-3",
        "tolerance is not read with solver=rk4",
    ),
    "sampler": (
        "sample/ebm.py",
        "digits --num_steps 8 --sampler_args solver=dopri5",
        "num_steps is not read with solver=dopri5",
    ),
    "method": ("evaluate/ais.py", "digits --method ais --diffusion_steps 8", "is of diffusion"),
    "quick": ("evaluate/speed.py", "digits --quick --limit 3", "is set by --quick"),
    "resume": (
        "train/ebm.py",
        "--resume_from_checkpoint latest --overwrite_output_dir",
        "give one of them",
    ),
    "closed form": (
        "train/flow.py",
        "--flow gaussian --resume_from_checkpoint latest --output_dir {tmp}",
        "--resume_from_checkpoint has no effect",
    ),
}


@pytest.mark.parametrize("case", VAIN)
def test_a_flag_in_vain_is_refused(script, tmp_path, monkeypatch, case):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    monkeypatch.chdir(tmp_path)
    path, flags, message = VAIN[case]
    assert message in error_of(script(path).main, flags.format(tmp=tmp_path).split())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4"),
        ("ACCELERATE_MIXED_PRECISION", "bf16"),
        ("ACCELERATE_DYNAMO_BACKEND", "INDUCTOR"),
        ("ACCELERATE_USE_FSDP", "true"),
    ],
)
def test_the_environment_changes_no_training(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert f"{name} is {value.lower()} in the environment" in error_of(make_accelerator)


def test_the_environment_of_a_plain_launch_is_taken(monkeypatch):
    for name, value in (
        ("ACCELERATE_MIXED_PRECISION", "no"),
        ("ACCELERATE_DYNAMO_BACKEND", "NO"),
        ("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "1"),
    ):
        monkeypatch.setenv(name, value)
    assert make_accelerator(device="cpu").gradient_accumulation_steps == 1

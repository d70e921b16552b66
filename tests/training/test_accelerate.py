"""Settings of an accelerate configuration: used and recorded, or refused."""

import pytest
import torch
from accelerate.state import AcceleratorState
from conftest import error_of
from runs import SMALL, weights_of

from ebm_app import train
from ebm_app.utils import processes
from ebm_app.utils.files import read_json
from ebm_app.utils.processes import SHARDING, make_accelerator, resolve_precision

IMAGES = torch.randint(
    17, (12, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
)


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """Train in an environment; return the record and the weights."""

    def run(name, settings=SMALL, **environment):
        AcceleratorState._reset_state(reset_partial_state=True)  # shared, and read once
        with monkeypatch.context() as patch:
            for key, value in environment.items():
                patch.setenv("ACCELERATE_" + key, value)
            train(IMAGES, tmp_path / name, num_levels=17, max_train_steps=2, **settings)
        return read_json(tmp_path / name / "run.json"), weights_of(tmp_path / name)

    yield run
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.process
def test_precision_and_compiler_are_used_and_recorded(trained):
    """The backends compute as without a compiler, and accumulation is left to the loop."""
    plain, weights = trained("plain", GRADIENT_ACCUMULATION_STEPS="4")
    assert plain["figures"]["device"] == "1 x cpu"
    compiled, same = trained("compiled", {**SMALL, "compile": "aot_eager"}, DYNAMO_BACKEND="EAGER")
    assert compiled["figures"]["device"] == "1 x cpu, compiled by aot_eager"
    half, other = trained("half", {**SMALL, "mixed_precision": "auto"}, MIXED_PRECISION="bf16")
    assert half["settings"]["training"]["mixed_precision"] == "bf16"
    for name in weights:
        torch.testing.assert_close(same[name], weights[name], atol=1e-6, rtol=1e-5)
    assert any((other[name] != weights[name]).any() for name in weights)


def test_auto_precision_follows_the_processor(monkeypatch, capsys):
    for supported, precision in ((True, "bf16"), (False, "no")):
        monkeypatch.setattr(processes, "has_bfloat16", lambda device, value=supported: value)
        assert resolve_precision("auto", "cpu") == precision and not capsys.readouterr().err
        assert resolve_precision("bf16", "cpu") == "bf16"
        assert ("7 times" in capsys.readouterr().err) != supported
    assert resolve_precision("no", "cpu") == "no"
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")
    assert resolve_precision("auto", "cpu") == "fp16"


@pytest.mark.process
def test_resume_keeps_the_recorded_precision(trained, monkeypatch):
    """Also on another processor, and in a process that used another precision before."""
    auto = {**SMALL, "mixed_precision": "auto"}
    for supported, precision in ((True, "bf16"), (False, "no")):
        monkeypatch.setattr(processes, "has_bfloat16", lambda device, value=supported: value)
        first, _ = trained(precision, auto)
        assert first["settings"]["training"]["mixed_precision"] == precision
        monkeypatch.setattr(processes, "has_bfloat16", lambda device, value=supported: not value)
        resumed, _ = trained(precision, {**auto, "resume_from_checkpoint": "latest"})
        assert resumed["settings"] == first["settings"]


@pytest.mark.parametrize("name", SHARDING)
def test_sharded_networks_are_refused(monkeypatch, name):
    monkeypatch.setenv(name, "true")
    assert "--multi_gpu" in error_of(make_accelerator, device="cpu")

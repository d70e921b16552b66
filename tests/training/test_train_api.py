"""``ebm_app.train``: runs from tensors, an accelerate configuration."""

from unittest.mock import Mock

import numpy as np
import pytest
import torch
from accelerate.state import AcceleratorState
from conftest import (
    SMALL,
    TINY,
    call,
    config_flags,
    equal_tensors,
    error_of,
    random_images,
    weights_of,
)

from ebm_app import EBM, train
from ebm_app.data.datasets import load_images
from ebm_app.flow import Flow, FlowConfig
from ebm_app.spaces import SPACES, Space
from ebm_app.utils import processes
from ebm_app.utils.files import read_json
from ebm_app.utils.processes import SHARDING, make_accelerator, resolve_precision

IMAGES = random_images(12, 8)


def test_tensors_and_script_train_the_same_weights(script, tmp_path):
    data, tensors, files = load_images("digits"), tmp_path / "tensors", tmp_path / "files"
    steps = {"max_train_steps": 4, "checkpointing_steps": 2, "validation_steps": 2}
    options = {"dataset": "digits", "num_levels": 17, "validation": data.validation}
    ebm = train(data.train.double() / 16, tensors, **options, **SMALL, **steps)
    flags = ["--dataset", "digits", *config_flags("steps", SMALL | steps)]
    module = script("train/ebm.py")
    assert call(module, *flags, "--output_dir", files) == 0
    assert equal_tensors(weights_of(tensors), weights_of(files))
    assert equal_tensors(weights_of(tensors), dict(ebm.state_dict()))
    settings = [read_json(run / "run.json")["settings"] for run in (tensors, files)]
    for each in settings:
        del each["train"]["output_dir"], each["train"]["config"]
    assert settings[0] == settings[1]
    assert call(module, "--output_dir", tensors, "--resume_from_checkpoint", "latest") == 0


@pytest.mark.parametrize(
    "settings",
    [
        {"dry_run": True},
        {"resolution": 4},
        {"image_column": "image"},
        {"label_column": "label"},
        {"labels": torch.zeros(12, dtype=torch.long), "classes": "none"},
        {"resume_from_checkpoint": True},
    ],
    ids=lambda settings: "_".join(settings),
)
def test_settings_without_effect_are_refused(settings, tmp_path):
    own = {"num_levels": 17, "max_train_steps": 1, **SMALL, **settings}
    error_of(train, IMAGES, tmp_path / "run", **own)
    assert not (tmp_path / "run").exists()


def test_training_returns_a_model_and_keeps_the_generator(tmp_path):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    steps = {"num_levels": np.int64(17), "max_train_steps": np.int32(2)}
    ebm = train(IMAGES.numpy(), tmp_path / "run", **steps, **SMALL)
    assert torch.equal(torch.rand(3), expected)
    assert not ebm.training and ebm.config.num_levels == 17
    ebm.save_pretrained(tmp_path / "copy")
    again = EBM.from_pretrained(tmp_path / "copy")
    assert torch.equal(again.log_prob(IMAGES), ebm.log_prob(IMAGES))


class LogSpace(Space):
    """u = log(1 + x), a user's space without parameters."""

    def encode_with_log_abs_det(self, x):
        return x.log1p(), -x.double().log1p().flatten(1).sum(1)

    def decode(self, u):
        return u.expm1()


@pytest.fixture
def log_space(monkeypatch):
    monkeypatch.setitem(SPACES, "log", LogSpace)


def test_custom_space_is_trained_in(log_space, script, tmp_path):
    options = {"num_levels": 17, "max_train_steps": 2, **SMALL}
    ebm = train(IMAGES, tmp_path / "run", space="log", **options)
    u = ebm.encode(IMAGES[:2] / 16)
    assert ebm.config.space == "log" and 0 < u.max() < 1
    again = train(IMAGES, tmp_path / "again", init_from=tmp_path / "run", **options)
    assert again.config.space == "log"
    flags = ["--dataset", "digits", *TINY, "--max_train_steps", 1, "--space", "log"]
    module = script("train/ebm.py")
    assert call(module, *flags, "--output_dir", tmp_path / "script") == 0
    own = EBM.from_pretrained(tmp_path / "script").config
    assert own.space == "log" and own.dequantisation == ebm.config.dequantisation


def test_flow_without_parameters_has_a_dtype(log_space):
    flow = Flow(FlowConfig("images", (1, 8, 8), 17, "log"))
    assert flow.dtype == torch.float32 and flow.device.type == "cpu"
    assert flow.likelihood(IMAGES).log_prob.shape == (12,)


def test_invalid_arguments_are_refused(tmp_path):
    for images, settings, message in (
        (IMAGES, {"validation": IMAGES[..., :4]}, "got (12, 1, 8, 4)"),
        (IMAGES[:2], {}, "at least 3"),
        (IMAGES, {"learning_rate": "fast"}, "learning_rate"),
        (IMAGES, {"lr": 3}, "'lr': did you mean 'learning_rate'? The nearest are"),
        (IMAGES, {"validaton": IMAGES}, "did you mean 'validation'"),
        (IMAGES, {"report_to": "wandb"}, "wandb is not installed. Run pip install wandb."),
    ):
        assert message in error_of(train, images, tmp_path / "run", num_levels=17, **settings)
    assert not (tmp_path / "run").exists()


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


def test_precision_and_compiler_are_used_and_recorded(trained):
    """The backends compute as without a compiler, and accumulation is left to the loop."""
    plain, weights = trained("plain", GRADIENT_ACCUMULATION_STEPS="4")
    assert plain["figures"]["device"] == "1 x cpu"
    compiled, same = trained("compiled", {**SMALL, "compile": "aot_eager"}, DYNAMO_BACKEND="EAGER")
    assert compiled["figures"]["device"] == "1 x cpu, compiled by aot_eager"
    half, other = trained("log", {**SMALL, "mixed_precision": "auto"}, MIXED_PRECISION="bf16")
    assert half["settings"]["train"]["mixed_precision"] == "bf16"
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
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp7")
    assert "choose one of bf16, fp16, no" in error_of(resolve_precision, "auto", "cpu")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_training_on_cuda_uses_tf32(monkeypatch, device):
    precisions = []
    monkeypatch.setattr(torch, "set_float32_matmul_precision", precisions.append)
    monkeypatch.setattr(processes, "resolve_device", lambda name: device)
    monkeypatch.setattr(processes, "Accelerator", Mock())
    make_accelerator()
    assert not precisions
    make_accelerator("no")
    assert precisions == (["high"] if device == "cuda" else [])


def test_resume_keeps_the_recorded_precision(trained, monkeypatch):
    """Also on another processor, and in a process that used another precision before."""
    auto = {**SMALL, "mixed_precision": "auto"}
    for supported, precision in ((True, "bf16"), (False, "no")):
        monkeypatch.setattr(processes, "has_bfloat16", lambda device, value=supported: value)
        first, _ = trained(precision, auto)
        assert first["settings"]["train"]["mixed_precision"] == precision
        monkeypatch.setattr(processes, "has_bfloat16", lambda device, value=supported: not value)
        resumed, _ = trained(precision, {**auto, "resume_from_checkpoint": "latest"})
        assert resumed["settings"]["train"].pop("resume_from_checkpoint") == "latest"
        assert first["settings"]["train"].pop("resume_from_checkpoint") is None
        assert resumed["settings"] == first["settings"]


@pytest.mark.parametrize("name", SHARDING)
def test_sharded_networks_are_refused(monkeypatch, name):
    monkeypatch.setenv(name, "true")
    assert "--multi_gpu" in error_of(make_accelerator, device="cpu")

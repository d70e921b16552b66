"""The training loop: exact resumes, batches that depend on the step only, failures; Muon."""

import os
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import SMALL, equal_tensors, error_of, random_images, weights_of, without_speeds
from exact import normal
from torch import nn

from ebm_app.data.datasets import ImageData
from ebm_app.ebm import EBM
from ebm_app.objectives.regression import OBJECTIVES
from ebm_app.training import trainer
from ebm_app.training.checkpoint import find_checkpoint, load
from ebm_app.training.config import with_settings
from ebm_app.training.ebm import build_trainer, make_config
from ebm_app.training.metrics import read_metrics
from ebm_app.training.optimizers import NEWTON_SCHULZ, OPTIMIZERS, Muon, orthogonalise
from ebm_app.training.recipes import recipe
from ebm_app.training.trainer import Trainer
from ebm_app.utils.errors import Interrupted
from ebm_app.utils.processes import make_accelerator

SETTINGS = {name: value for name, value in SMALL.items() if name != "device"}
SETTINGS |= {"max_train_steps": 8, "train_batch_size": 6, "checkpointing_steps": 4}
SETTINGS |= {"validation_steps": 8, "learning_rate": 2e-3, "input_frequencies": ()}


@pytest.fixture(scope="module")
def data() -> ImageData:
    levels = random_images(40, 4)
    return ImageData("noise", 17, levels[:20], levels[20:30], levels[30:])


def make_trainer(data: ImageData, folder: Path, **changes: object) -> Trainer:
    base = recipe("noise", data.image_shape, data.num_levels)
    config = with_settings(base, {**SETTINGS, **changes, "output_dir": folder})
    folder.mkdir(exist_ok=True)
    accelerator = make_accelerator("no", "cpu")
    return build_trainer(accelerator, config, make_config(config, data), data)


def test_signal_ends_a_validation_between_its_batches(data, tmp_path, monkeypatch):
    run = make_trainer(data, tmp_path / "run", validation_steps=2)
    original, calls = run.bits, []

    def interrupted(name, estimator):
        run.ebm.model.register_forward_pre_hook(lambda *_: calls.append(name))
        os.kill(os.getpid(), signal.SIGTERM)
        return original(name, estimator)

    monkeypatch.setattr(run, "bits", interrupted)
    with pytest.raises(Interrupted) as stop:
        run.fit()
    assert calls == [] and stop.value.saved == run.folder(2)
    again = make_trainer(data, tmp_path / "run", validation_steps=2)
    load(again, stop.value.saved)
    assert again.fit()["steps"] == 8


def test_validations_do_not_depend_on_the_seed(data, tmp_path):
    one, two = (make_trainer(data, tmp_path / str(seed), seed=seed) for seed in (1, 2))
    two.ebm.load_state_dict(one.ebm.state_dict())
    assert one.validate() == two.validate()


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory) -> SimpleNamespace:
    """A run with two validations: its trainer, result and folder."""
    run = make_trainer(data, tmp_path_factory.mktemp("finished") / "run", validation_steps=4)
    return SimpleNamespace(run=run, result=run.fit(), folder=run.output_dir)


class Clock:
    """Clock of a simulated machine: training steps and validations take given seconds."""

    def __init__(self, run, monkeypatch, step, validation=0.0):
        self.now, self.run = 100.0, run
        monkeypatch.setattr(trainer.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(run, "train_step", self.after(run.train_step, step))
        monkeypatch.setattr(run, "validate", self.after(run.validate, validation))

    def after(self, call, seconds):
        def timed():
            result = call()
            self.now += seconds(self.run) if callable(seconds) else seconds
            return result

        return timed


MINUTES = {"max_train_steps": None, "max_train_minutes": 2.0, "validation_steps": None}


def test_timed_run_takes_its_time_at_any_speed(data, tmp_path, monkeypatch):
    """The machine becomes ten times faster in the middle of the run."""
    run = make_trainer(data, tmp_path / "run", **MINUTES)
    Clock(run, monkeypatch, lambda run: 10.0 if run.now.elapsed < 50 else 1.0)
    result = run.fit(start_up=10.0)
    assert result["seconds"] == pytest.approx(120, abs=1) and result["steps"] == 5 + 60
    assert result["decay_began"] == 5 + 33  # 83 seconds after the start-up
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    rates = [row["learning_rate"] for row in rows if "learning_rate" in row]
    assert rates[36] == run.config.learning_rate and rates[-1] == 0


def test_validations_take_a_tenth_of_a_timed_run(data, tmp_path, monkeypatch):
    run = make_trainer(data, tmp_path / "run", **MINUTES, validation_images=10)
    clock = Clock(run, monkeypatch, 0.5, validation=lambda run: 0.9 * len(run.validation))
    result = run.fit()
    assert clock.now - 100 == pytest.approx(120, abs=2) and run.now.validation_images == 2
    assert run.now.validation_seconds <= 12 and result["steps"] > 200
    assert len(run.validation) == 2
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    *steps, last = [row["step"] for row in rows if "validation_loss" in row]
    assert last == result["steps"] and 3 <= len(steps) and steps[-1] < result["decay_began"]


def test_resumed_timed_run_takes_the_remaining_time(data, tmp_path, monkeypatch):
    settings = {**MINUTES, "checkpointing_steps": 20}
    run = make_trainer(data, tmp_path / "run", **settings)
    Clock(run, monkeypatch, 2.0)
    assert run.fit()["steps"] == 60
    shutil.rmtree(tmp_path / "run" / "checkpoint-60")
    resumed = make_trainer(data, tmp_path / "run", **settings)
    load(resumed, tmp_path / "run" / "checkpoint-40")
    assert resumed.now.elapsed == 80
    clock = Clock(resumed, monkeypatch, 4.0)
    assert resumed.fit()["steps"] == 50 and clock.now == 140
    assert resumed.now.decay_began == 43


def test_slow_validations_are_skipped(data, tmp_path, monkeypatch):
    run = make_trainer(data, tmp_path / "run", validation_steps=None, max_train_steps=20)
    Clock(run, monkeypatch, 1.0, validation=40.0)
    run.fit()
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [row["step"] for row in rows if "validation_loss" in row] == [2, 20]


def weights(run: Trainer) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in run.parameters])


TSM = {"objective": "tsm", "stein_factor": 0.0, "prediction": "normalised"}
TSM |= {"gradient_accumulation_steps": 2, "train_batch_size": 3}


@pytest.mark.parametrize("changes", [{"optimizer": "muon"}, TSM], ids=["muon", "tsm"])
def test_resume_is_exact_with_dropout_and_checkpointing(data, tmp_path, changes):
    changes = changes | {"augmentation": "affine", "dropout": 0.2, "block_out_channels": (16,)}
    whole = make_trainer(data, tmp_path / "whole", **changes)
    whole.fit()
    shutil.copytree(tmp_path / "whole", tmp_path / "part")
    shutil.rmtree(tmp_path / "part" / "checkpoint-8")  # interrupted after step 4, in mid-epoch
    resumed = make_trainer(data, tmp_path / "part", gradient_checkpointing=True, **changes)
    assert resumed.ebm.model.net.unet.is_gradient_checkpointing
    load(resumed, find_checkpoint(tmp_path / "part", "latest"))
    before, cores = resumed.now.seconds, resumed.now.core_seconds
    assert resumed.now.step == 4 and before > 0
    result = resumed.fit()
    assert result["steps"] == 8 and result["core_seconds"] > cores > 0
    speed = 4 * resumed.now.total_batch_size / (result["training_seconds"] - before)
    assert result["images_per_second"] == pytest.approx(speed)
    assert torch.equal(weights(whole), weights(resumed))
    assert all(map(torch.equal, whole.ema.shadow_params, resumed.ema.shadow_params))
    rows = [read_metrics(tmp_path / n / "metrics.jsonl") for n in ("whole", "part")]
    assert without_speeds(rows[0]) == without_speeds(rows[1])


def test_length_may_change_on_a_resume(data, tmp_path):
    decaying = {"checkpointing_steps": 2, "lr_decay_steps": 2, "max_train_steps": 4}
    whole = make_trainer(data, tmp_path / "whole", **decaying)
    assert whole.fit()["decay_began"] == 2
    constant = {**decaying, "lr_decay_steps": 0, "max_train_steps": 2}
    make_trainer(data, tmp_path / "part", **constant).fit()
    longer = make_trainer(data, tmp_path / "part", **decaying)
    load(longer, tmp_path / "part" / "checkpoint-2")
    assert longer.fit()["steps"] == 4
    assert torch.equal(weights(whole), weights(longer))


def test_accumulated_batches_match_one_large_batch(data, tmp_path, finished):
    split = {"train_batch_size": 2, "gradient_accumulation_steps": 3}
    run = make_trainer(data, tmp_path / "run", **split)
    assert run.fit()["loss"] == pytest.approx(finished.result["loss"], rel=1e-5)
    torch.testing.assert_close(weights(run), weights(finished.run), atol=2e-5, rtol=1e-4)
    load(run, finished.folder / "checkpoint-8")
    other = make_trainer(data, tmp_path / "other", train_batch_size=5)
    assert "as many processes" in error_of(load, other, finished.folder / "checkpoint-8")


def test_batch_is_a_function_of_seed_and_step(data, tmp_path):
    one, other = (
        make_trainer(data, tmp_path / "run", train_batch_size=8, augmentation="affine").batches
        for _ in range(2)
    )
    rows = torch.arange(8)
    for step in (5, 2):
        for a, b in zip(one.batch(step, rows), other.batch(step, rows[5:]), strict=True):
            assert torch.equal(a[5:], b)  # for any rows of a process
    assert not torch.equal(one.batch(1, rows)[0], one.batch(2, rows)[0])
    # 20 images: steps 0..4 of 8 are two epochs
    seen = torch.cat([one.order(step) for step in range(5)])
    assert torch.equal(seen[:20].sort().values, torch.arange(20))
    assert torch.equal(seen[20:].sort().values, torch.arange(20))
    assert not torch.equal(seen[:20], seen[20:])


POISSON = {"objective": "ctsm_v", "prediction": "moments"}
PLAIN = {"divergence": "squared", "prediction": "normalised", "stein_factor": 0.0}


@pytest.mark.parametrize(
    "chosen", [POISSON, *(PLAIN | {"objective": name} for name in OBJECTIVES)], ids=str
)
def test_every_objective_learns(data, tmp_path, chosen):
    """On images of one level, the loss falls on the same validation draws."""
    levels = torch.full_like(data.train, 8)
    settings = {"t_margin": 1e-2, "dequantisation": "uniform", "learning_rate": 1e-2, **chosen}
    settings |= {"max_train_steps": 30, "train_batch_size": 32, "checkpointing_steps": 30}
    settings |= {"validation_images": 10, "validation_repeats": 4, "validation_steps": 30}
    images = ImageData("noise", 17, levels, levels[:10], levels[:10])
    run = make_trainer(images, tmp_path / "run", **settings)
    before = run.validate()["validation_loss"]
    run.fit()
    after = read_metrics(tmp_path / "run" / "metrics.jsonl")[-1]["validation_loss"]
    assert after < before - 0.2


def test_folder_holds_the_average_and_the_best_model(finished):
    last = [*EBM.from_pretrained(finished.folder / "checkpoint-8").parameters()]
    assert all(map(torch.equal, last, finished.run.ema.shadow_params))
    assert not all(map(torch.equal, last, finished.run.parameters))
    rows = read_metrics(finished.folder / "metrics.jsonl")
    validations = [row for row in rows if "validation_loss" in row]
    best = min(validations, key=lambda row: row["validation_loss"])
    assert len(validations) == 2
    assert finished.result["bits_per_dim"] == best["validation_bits_per_dim"]
    own = weights_of(finished.folder / f"checkpoint-{best['step']}")
    assert equal_tensors(weights_of(finished.folder), own)


def test_nonfinite_loss_is_reported_with_its_step(data, tmp_path):
    run = make_trainer(data, tmp_path / "run", logging_steps=3)
    step = run.train_step

    def poisoned():
        step()
        if run.now.step == 4:
            run.pending[-1] = torch.tensor(float("nan"))

    run.train_step = poisoned
    assert "loss of step 5" in error_of(run.fit)
    assert (tmp_path / "run" / "checkpoint-4").is_dir()


def test_muon_matches_torch_on_matrices():
    """Torch computes in bfloat16. A convolution (out, in, h, w) is the matrix (out, in h w)."""
    ours, theirs = (nn.Parameter(normal((64, 48)).float()) for _ in range(2))
    before = ours.detach().clone()
    filters = nn.Parameter(before.view(64, 12, 2, 2).clone())
    own = Muon([ours, filters], lr=0.01, weight_decay=0.1)
    settings = {"momentum": 0.95, "adjust_lr_fn": "match_rms_adamw"}
    other = torch.optim.Muon([theirs], lr=0.01, weight_decay=0.1, **settings)
    for step in range(3):
        for weight in (ours, theirs, filters):
            weight.grad = normal((64, 48), step).float().view_as(weight)
        own.step()
        other.step()
    assert (ours - theirs).norm() < 0.02 * (ours - before).norm()
    assert torch.equal(filters.flatten(1), ours)


def test_newton_schulz_steps_act_on_singular_values():
    """Stacks of one shorter side are computed together, wide, tall and square ones."""
    a, b, c = NEWTON_SCHULZ
    stacks = [normal((2, 6, 9)), normal((3, 9, 6), 1), normal((1, 6, 6), 2), normal((1, 4, 6), 3)]
    for stack, result in zip(stacks, orthogonalise(stacks), strict=True):
        left, values, right = torch.linalg.svd(stack, full_matrices=False)
        values = values / values.norm(dim=1, keepdim=True)
        for _ in range(5):
            values = a * values + b * values**3 + c * values**5
        torch.testing.assert_close(result, left @ (values[..., None] * right))


def test_muon_is_adam_on_other_weights():
    runs = []
    for name in ("adam", "muon"):
        weights = [nn.Parameter(normal(shape).float()) for shape in [(32,), (2, 64, 3, 3)]]
        optimizer = OPTIMIZERS[name](weights, lr=0.01, weight_decay=0.1)
        for step in range(3):
            for weight in weights:
                weight.grad = normal(weight.shape, step).float()
            optimizer.step()
        runs.append(weights)
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))

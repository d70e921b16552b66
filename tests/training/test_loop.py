"""The training loop: exact resumes, batches that depend on the step only, failures; Muon."""

import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import SMALL, equal_tensors, error_of, random_images, weights_of, without_speeds
from exact import normal
from safetensors.torch import load_file
from torch import nn

from ebm_app.data.datasets import ImageData
from ebm_app.ebm import EBM
from ebm_app.objectives.regression import OBJECTIVES
from ebm_app.training import loop
from ebm_app.training.batches import Batches
from ebm_app.training.build import build, make_config
from ebm_app.training.checkpoint import find_checkpoint, read_state
from ebm_app.training.loop import fit, measure, start_run, trained
from ebm_app.training.metrics import read_metrics
from ebm_app.training.optimizers import NEWTON_SCHULZ, Muon, orthogonalise
from ebm_app.training.recipes import recipe
from ebm_app.training.settings import with_settings
from ebm_app.utils.output import Output
from ebm_app.utils.processes import make_accelerator

SETTINGS = {name: value for name, value in SMALL.items() if name != "device"}
SETTINGS |= {"max_train_steps": 8, "train_batch_size": 6, "checkpointing_steps": 4}
SETTINGS |= {"validation_steps": 8, "learning_rate": 2e-3, "input_frequencies": ()}


@pytest.fixture(scope="module")
def data() -> ImageData:
    levels = random_images(40, 4)
    return ImageData("noise", 17, levels[:20], levels[20:30], levels[30:])


class Started:
    """A run on ``data`` in a folder, whose model is built."""

    def __init__(self, data: ImageData, folder: Path, **changes: object) -> None:
        base = recipe("noise", data.image_shape, data.num_levels)
        self.config = with_settings(base, {**SETTINGS, **changes, "output_dir": folder})
        self.accelerator, self.folder = make_accelerator("no", "cpu"), folder
        ebm_config = make_config(self.config, data)
        self.task = build(self.accelerator, self.config, ebm_config, data)

    def start(self, resumed: Path | None = None) -> loop.Training:
        output = Output(self.folder / "run.json")
        begin = time.perf_counter()
        return start_run(self.accelerator, self.config, self.task, output, begin, resumed)

    def fit(self, resumed: Path | None = None, start_up: float = 0.0) -> dict:
        output, begin = Output(self.folder / "run.json"), time.perf_counter() - start_up
        return fit(self.accelerator, self.config, self.task, output, begin, resumed)


def tensors_of(folder: Path, step: int) -> dict[str, torch.Tensor]:
    return load_file(folder / f"checkpoint-{step}" / "state" / "state.safetensors")


def test_validations_do_not_depend_on_the_seed(data, tmp_path):
    one, two = (Started(data, tmp_path / str(seed), seed=seed) for seed in (1, 2))
    two.task.ebm.load_state_dict(one.task.ebm.state_dict())
    assert measure(one.start(), 4) == measure(two.start(), 4)


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory) -> SimpleNamespace:
    """A run with two validations: its result and folder."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    result = Started(data, folder, validation_steps=4).fit()
    return SimpleNamespace(result=result, folder=folder)


class Clock:
    """Clock of a simulated machine: training steps, validations of one image, previews of one
    image and checkpoints take given seconds, constant or a function of the clock."""

    def __init__(self, monkeypatch, step, validation=0.0, preview=0.0, save=0.0):
        self.now, self.monkeypatch = 100.0, monkeypatch
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)
        self.slow_down(Batches, "batch", lambda *_: step(self.now) if callable(step) else step)
        self.slow_down(loop, "measure", lambda run, num: validation * num)
        self.slow_down(EBM, "sample", lambda ebm, num, **_: preview * num)
        self.slow_down(loop.checkpoint, "save", lambda *_: save)

    def slow_down(self, place, name, seconds):
        call = getattr(place, name)

        def timed(*args, **options):
            result = call(*args, **options)
            self.now += seconds(*args, **options)
            return result

        self.monkeypatch.setattr(place, name, timed)


MINUTES = {"max_train_steps": None, "max_train_minutes": 2.0, "validation_steps": None}
MINUTES |= {"checkpointing_steps": None}


def test_timed_run_takes_its_time_at_any_speed(data, tmp_path, monkeypatch):
    """The machine becomes ten times faster in the middle of the run."""
    run = Started(data, tmp_path / "run", **MINUTES)
    Clock(monkeypatch, lambda now: 10.0 if now < 150 else 1.0)
    result = run.fit(start_up=10.0)
    assert result["seconds"] == pytest.approx(120, abs=1) and result["steps"] == 5 + 60
    assert result["decay_began"] == 5 + 33  # 83 seconds after the start-up
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    rates = [row["learning_rate"] for row in rows if "learning_rate" in row]
    assert rates[36] == run.config.learning_rate and rates[-1] == 0


#: Seconds of a start-up, a step, an image of a validation, a preview and a checkpoint
SPEEDS = {
    "slow validations": (5.0, 1.0, 0.9, 0.0, 0.0),
    "slow previews": (5.0, 1.0, 0.05, 6.0, 0.1),
    "slow disk": (5.0, 1.0, 0.05, 0.0, 2.0),
    "slow start": (40.0, 1.0, 0.05, 0.05, 0.1),
}


@pytest.mark.parametrize("speeds", SPEEDS.values(), ids=SPEEDS)
def test_all_but_training_takes_a_fifth_of_a_timed_run(data, tmp_path, monkeypatch, speeds):
    run = Started(data, tmp_path, **MINUTES, validation_images=10, num_preview_images=9)
    start, step, validation, preview, save = speeds
    Clock(monkeypatch, step, validation, preview, save)
    result = run.fit(start_up=start)
    other = result["seconds"] - result["training_seconds"]
    last = 2 * validation + save  # any run has one validation and one checkpoint
    assert other <= max(0.2 * 120, start + last + step) + 1e-6
    assert result["seconds"] <= 120 + last + step and 2 <= result["validation_images"] <= 10
    assert result["seconds"] >= 120 - last - step and result["steps"] >= 75
    (checkpoint,) = [path for path in tmp_path.glob(f"checkpoint-{result['steps']}")]
    assert read_state(checkpoint).validation_images == result["validation_images"]
    rows = read_metrics(tmp_path / "metrics.jsonl")
    *steps, end = [row["step"] for row in rows if "validation_loss" in row]
    assert end == result["steps"] and all(step < result["decay_began"] for step in steps)
    assert len(steps) >= 3 or start > 24


def test_resumed_timed_run_takes_the_remaining_time(data, tmp_path, monkeypatch):
    """The start-up of both processes is part of the time."""
    settings = {**MINUTES, "checkpointing_steps": 20}
    run = Started(data, tmp_path / "run", **settings)
    with monkeypatch.context() as patch:
        Clock(patch, 2.0)
        assert run.fit(start_up=10.0)["steps"] == 55
    resumed = Started(data, tmp_path / "run", **settings)
    clock = Clock(monkeypatch, 4.0)
    result = resumed.fit(tmp_path / "run" / "checkpoint-40", start_up=10.0)
    assert result["steps"] == 45 and clock.now == 100 + 20
    assert result["seconds"] == 120 and result["start_up_seconds"] == 20


def test_resume_is_exact_with_dropout_and_checkpointing(data, tmp_path):
    changes = {"optimizer": "muon", "gradient_accumulation_steps": 2, "train_batch_size": 3}
    changes |= {"augmentation": "affine", "dropout": 0.2, "block_out_channels": (16,)}
    whole, part = tmp_path / "whole", tmp_path / "part"
    Started(data, whole, **changes).fit()
    shutil.copytree(whole, part)
    shutil.rmtree(part / "checkpoint-8")  # interrupted after step 4, in mid-epoch
    resumed = Started(data, part, gradient_checkpointing=True, **changes)
    assert resumed.task.ebm.model.net.unet.is_gradient_checkpointing
    before = read_state(part / "checkpoint-4")
    result = resumed.fit(find_checkpoint(part, "latest"))
    assert result["steps"] == 8 and result["core_seconds"] > before.core_seconds > 0
    assert equal_tensors(tensors_of(whole, 8), tensors_of(part, 8))
    rows = [read_metrics(folder / "metrics.jsonl") for folder in (whole, part)]
    assert without_speeds(rows[0]) == without_speeds(rows[1])


def test_accumulated_batches_match_one_large_batch(data, tmp_path, finished):
    split = {"train_batch_size": 2, "gradient_accumulation_steps": 3}
    result = Started(data, tmp_path / "run", **split).fit()
    assert result["loss"] == pytest.approx(finished.result["loss"], rel=1e-5)
    ours, theirs = tensors_of(tmp_path / "run", 8), tensors_of(finished.folder, 8)
    for name in (name for name in ours if name.startswith("weights.")):
        torch.testing.assert_close(ours[name], theirs[name], atol=2e-5, rtol=1e-4)


def test_batch_is_a_function_of_seed_and_step(data, tmp_path):
    one, other = (
        Started(data, tmp_path, train_batch_size=8, augmentation="affine").task.batches
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
    run = Started(images, tmp_path / "run", **settings)
    before = measure(run.start(), 10)["validation_loss"]
    run.fit()
    after = read_metrics(tmp_path / "run" / "metrics.jsonl")[-1]["validation_loss"]
    assert after < before - 0.2


def test_folder_holds_the_average_and_the_best_model(finished):
    last = trained(EBM.from_pretrained(finished.folder / "checkpoint-8"))
    tensors = tensors_of(finished.folder, 8)
    average = [tensors[f"ema.{index}"] for index in range(len(last))]
    assert all(map(torch.equal, last, average))
    rows = read_metrics(finished.folder / "metrics.jsonl")
    validations = [row for row in rows if "validation_loss" in row]
    best = min(validations, key=lambda row: row["validation_loss"])
    assert len(validations) == 2
    assert finished.result["bits_per_dim"] == best["validation_bits_per_dim"]
    assert finished.result["validation_images"] == best["validation_images"] == 4
    own = weights_of(finished.folder / f"checkpoint-{best['step']}")
    assert equal_tensors(weights_of(finished.folder), own)
    weights = {name.removeprefix("weights."): value for name, value in tensors.items()}
    assert not all(torch.equal(own[name], weights[name]) for name in own)


def test_nonfinite_loss_is_reported_with_its_step(data, tmp_path, monkeypatch):
    run = Started(data, tmp_path / "run", logging_steps=3)
    forward = loop.Loss.forward

    def poisoned(self, *columns):
        losses = forward(self, *columns)
        return losses * torch.nan if next(steps) == 4 else losses

    steps = iter(range(8))
    monkeypatch.setattr(loop.Loss, "forward", poisoned)
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

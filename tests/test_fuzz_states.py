"""Damaged states of checkpoints end in a sentence, whether their digests tell or not."""

import json
import random
from dataclasses import replace
from functools import partial

import pytest
import torch
from accelerate import Accelerator
from fuzzing import Tally, check, copied, mutated_json, mutated_tensors

from ebm_app.data.images import ImageData
from ebm_app.models.config import EBMConfig, TrainingConfig
from ebm_app.models.unet import UNetConfig
from ebm_app.training.checkpoint import DIGESTS_FILE, STATE, digests, find_checkpoint
from ebm_app.training.tasks import EBMTask
from ebm_app.training.trainer import Trainer

CONFIG = TrainingConfig(
    max_train_steps=3,
    train_batch_size=4,
    validation_images=4,
    validation_repeats=1,
    num_preview_images=0,
    validation_steps=2,
    checkpointing_steps=3,
    logging_steps=2,
    lr_scheduler="constant_with_warmup",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Trainer:
    """A finished run, whose last step stands in no line of its metrics yet."""
    folder = tmp_path_factory.mktemp("run")
    generator = torch.Generator().manual_seed(0)
    levels = torch.randint(17, (20, 1, 4, 4), dtype=torch.uint8, generator=generator)
    data = ImageData("noise", 17, levels, levels[:4], levels[:4])
    net = UNetConfig((8,), norm_num_groups=4)
    ebm = EBMConfig("noise", data.image_shape, 17, net=net, num_nodes=8)
    accelerator = Accelerator(cpu=True)
    trainer = Trainer(accelerator, EBMTask(accelerator, ebm, CONFIG, data, folder), CONFIG, folder)
    trainer.fit()
    return trainer


def resume(run: Trainer, folder) -> None:
    run.resume(find_checkpoint(folder.parent, str(folder)))


def mutate_state(folder, rng) -> str:
    """Change a file of the state; in three of four cases, its digest as well."""
    name, mutated = rng.choice(
        (
            ("trainer.json", lambda content: mutated_json(json.loads(content), rng)),
            ("trainer.json", lambda content: mutated_json(json.loads(content), rng)),
            ("trainer.safetensors", lambda content: mutated_tensors(content, rng)),
            ("best.safetensors", lambda content: mutated_tensors(content, rng)),
            (DIGESTS_FILE, lambda content: mutated_json(json.loads(content), rng)),
        )
    )
    file = folder / STATE / name
    file.write_bytes(mutated(file.read_bytes()))
    if name != DIGESTS_FILE and rng.random() < 0.75:
        (folder / STATE / DIGESTS_FILE).write_text(json.dumps(digests(folder)))
    return name


def fuzz_states(run, tmp_path, numbers) -> Tally:
    (whole,) = run.output_dir.glob("checkpoint-*")
    tally = Tally()
    for number in numbers:
        rng = random.Random(number)
        folder = copied(whole, tmp_path / whole.name)
        done = mutate_state(folder, rng)
        tally.call(partial(resume, run, folder), f"{number} {done}")
    return tally


def test_damaged_states(run, tmp_path):
    check(fuzz_states(run, tmp_path, range(100)))


@pytest.mark.slow
def test_many_damaged_states(run, tmp_path):
    check(fuzz_states(run, tmp_path, range(1000)))


def test_the_state_of_another_total_batch_is_refused(run, tmp_path):
    other = replace(CONFIG, train_batch_size=5)
    (whole,) = run.output_dir.glob("checkpoint-*")
    task = run.task
    trainer = Trainer(run.accelerator, task, other, tmp_path)
    with pytest.raises(ValueError, match="total batch .* was 4, now 5"):
        trainer.resume(whole)

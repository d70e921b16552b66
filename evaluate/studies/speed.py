"""Measure the time of a training step of each objective against time score matching.

python evaluate/speed.py digits
python evaluate/speed.py digits --batch_size 256

Time score matching (TSM) is the baseline of the paper.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ebm_app.cli.command_line import CommonFlags, ModelFlag, parse
from ebm_app.config import TrainingConfig
from ebm_app.data.images import ImageData
from ebm_app.ebm import EBM
from ebm_app.nets.parametrisation import default_prediction
from ebm_app.training.ebm_task import EBMTask
from ebm_app.training.trainer import Trainer
from ebm_app.utils.fields import BatchSize, Draws, configuration, setting
from ebm_app.utils.output import Output, to_markdown
from ebm_app.utils.processes import make_accelerator, resolve_device

#: Objectives that are compared on one network without a Stein head
OBJECTIVES = ("ctsm_v", "ctsm", "tsm")
Action = Callable[[], object]


@configuration(kw_only=True)
class Arguments(CommonFlags, ModelFlag):
    """Command-line arguments."""

    batch_size: BatchSize = setting("images per batch", 64)
    rounds: Draws = setting("steps of each objective", 10)
    output_dir: Path = setting("folder for the record", Path("runs/speed"))


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Time whole training steps (draw, loss, backward, update, average); return the table."""
    args = parse(Arguments, __doc__, argv)
    ebm = EBM.from_pretrained(args.model, resolve_device(args.device))
    output = Output(args.output_dir / "speed.json", args)
    size, device = args.batch_size, ebm.device.type
    steps = {name: make_trainer(ebm, size, name).train_step for name in OBJECTIVES}
    steps["ctsm_m and Stein head"] = make_trainer(ebm, size, "ctsm_m", True).train_step
    in_float32 = make_trainer(ebm, size, "ctsm_v").train_step
    steps["ctsm_v in bfloat16"] = torch.autocast(device, torch.bfloat16)(in_float32)
    seconds = time_in_turns(steps, device, args.rounds)
    table = [
        {"step": name, "ms": 1e3 * s, "of tsm": s / seconds["tsm"], "images/s": size / s}
        for name, s in seconds.items()
    ]
    print(to_markdown(table))
    figures = {"table": table}
    output.save(figures)
    return figures


def make_trainer(ebm: EBM, batch_size: int, objective: str, stein_head: bool = False) -> Trainer:
    """Return a trainer of the model's network on random images, whose steps are taken one by one:
    the time of a step does not depend on the images."""
    head = {"stein_head": stein_head, "prediction": default_prediction(stein_head)}
    config = replace(ebm.config, **head, condition_dim=0, num_classes=0)
    training = TrainingConfig(
        train_batch_size=batch_size, objective=objective, stein_factor=float(stein_head)
    )
    shape, levels = config.image_shape, config.num_levels
    pixels = torch.randint(levels, (2 * batch_size, *shape), dtype=torch.uint8)
    data = ImageData("random", levels, pixels, pixels[:2], pixels[:2])
    accelerator, folder = make_accelerator(device=ebm.device.type), Path()
    task = EBMTask(accelerator, config, training, data)
    task.model.space.load_state_dict(ebm.space.state_dict())
    return Trainer(accelerator, task, training, folder)


def time_in_turns(actions: Mapping[str, Action], device: str, rounds: int) -> dict[str, float]:
    """Return the tenth percentile of the seconds of each action.

    The actions take turns, after one round of warm-up, because the speed of a machine changes
    over time.
    """
    times: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(rounds + 1):
        for name, action in actions.items():
            begin = time.perf_counter()
            action()
            if device == "cuda":
                torch.cuda.synchronize()
            times[name].append(time.perf_counter() - begin)
    return {name: sorted(values[1:])[rounds // 10] for name, values in times.items()}

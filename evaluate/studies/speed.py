"""Costs of training steps and likelihoods beside the paper's way of doing them, within one run.

python evaluate/speed.py digits
python evaluate/speed.py digits --parts training --batch_size 256
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import log
from pathlib import Path
from typing import Any

import torch

from ebm_app.cli.command_line import parse
from ebm_app.cli.held_out import HeldOutFlags, held_out, open_model
from ebm_app.config import TrainingConfig
from ebm_app.data.images import ImageData
from ebm_app.ebm import EBM
from ebm_app.likelihood.dequantisation import dequantisation_noise
from ebm_app.nets.parametrisation import default_prediction
from ebm_app.training.tasks import EBMTask
from ebm_app.training.trainer import Trainer
from ebm_app.utils.fields import AtLeastTwo, BatchSize, configuration, setting
from ebm_app.utils.output import Output, to_markdown
from ebm_app.utils.processes import make_accelerator
from ebm_app.utils.registry import choose

#: objectives whose steps are compared, on the same network without a Stein head
OBJECTIVES = ("ctsm_v", "ctsm", "tsm")
#: nodes and tolerances of integrals, and the nodes of the value that they are compared with
NODES, TOLERANCES, REFERENCE = (8, 12, 16, 24, 32, 48, 64, 96, 128), (1e-3, 1e-4, 1e-5, 1e-6), 192
Action = Callable[[], object]
Rows = list[dict[str, Any]]


@configuration(kw_only=True)
class Arguments(HeldOutFlags):
    """The command line."""

    batch_size: BatchSize = setting("images taken together", 64)
    limit: AtLeastTwo = setting("take the first images only", 32)
    parts: tuple[str, ...] = setting("of training, likelihood; both if not given", ())
    quick: bool = setting("one turn of 4 images", False)
    output_dir: Path = setting("where the record goes", Path("runs/speed"))


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure; tables by part."""
    args = parse(Arguments, __doc__, argv)
    if args.quick:
        args = replace(args, batch_size=4, limit=4)
    parts = [choose("part", name, PARTS) for name in args.parts or PARTS]
    _, ebm = open_model(args)
    output = Output(args.output_dir / "speed.json", args)
    found = {}
    for name in parts:
        found[name] = PARTS[name](ebm, args)
        print(f"{name}\n{to_markdown(found[name])}\n")
    answer = {"ratios": found}
    output.save(answer)
    return answer


def training_rows(ebm: EBM, args: Arguments) -> Rows:
    """Whole training steps (draw, loss, backward, update, average) by this program's objectives,
    beside time score matching, the paper's baseline."""
    size, device = args.batch_size, ebm.device.type
    in_bfloat16 = trainer_of(ebm, size, "ctsm_v").train_step
    actions = {
        **{name: trainer_of(ebm, size, name).train_step for name in OBJECTIVES},
        "ctsm_m and Stein head": trainer_of(ebm, size, "ctsm_m", True).train_step,
        "ctsm_v in bfloat16": torch.autocast(device, torch.bfloat16)(in_bfloat16),
    }
    seconds = seconds_in_turns(actions, device, 1 if args.quick else 10)
    return [
        {
            "step": name,
            "ms": 1e3 * taken,
            "of tsm": taken / seconds["tsm"],
            "images/s": size / taken,
        }
        for name, taken in seconds.items()
    ]


def trainer_of(ebm: EBM, batch_size: int, objective: str, stein_head: bool = False) -> Trainer:
    """A run of the model's network that is never begun: its steps are taken one by one, on random
    images, as what a step costs does not depend on them."""
    own = {"stein_head": stein_head, "prediction": default_prediction(stein_head)}
    config = replace(ebm.config, **own, condition_dim=0, num_classes=0)
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


def seconds_in_turns(actions: Mapping[str, Action], device: str, rounds: int) -> dict[str, float]:
    """Tenth percentile of the seconds of every action over ``rounds`` turns after one that warms
    up. A machine is never equally fast twice, so only times taken in turns are compared."""
    times: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(rounds + 1):
        for name, action in actions.items():
            begin = time.perf_counter()
            action()
            if device == "cuda":
                torch.cuda.synchronize()
            times[name].append(time.perf_counter() - begin)
    return {name: sorted(values[1:])[rounds // 10] for name, values in times.items()}


def likelihood_rows(ebm: EBM, args: Arguments) -> Rows:
    """Log ratios by Gauss-Legendre rules, and by SciPy's RK45, the paper's protocol, rtol and atol
    being equal: evaluations of the network, and ``error``, the largest distance over images to
    the log ratio by ``REFERENCE`` nodes, in bits per dim."""
    levels, _ = held_out(args, ebm)
    noise = dequantisation_noise(1, levels, args.seed)[0]
    x, energy = ebm.dequantise(levels, noise).y, ebm.density
    truth = energy.with_nodes(REFERENCE).log_ratio(x).value
    found = {f"{num} nodes": energy.with_nodes(num).log_ratio(x) for num in NODES}
    for e in TOLERANCES:
        found[f"rk45 at {e:g}"] = energy.log_ratio(x, integrator="rk45", rtol=e, atol=e)
    scale = x[0].numel() * log(2)
    return [
        {
            "by": name,
            "evaluations": ratio.nfe,
            "error": (ratio.value - truth).abs().max().item() / scale,
        }
        for name, ratio in found.items()
    ]


PARTS: dict[str, Callable[[EBM, Arguments], Rows]] = {
    "training": training_rows,
    "likelihood": likelihood_rows,
}

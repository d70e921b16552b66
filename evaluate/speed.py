"""Measure the time of a training step, by objective or by part.

python evaluate/speed.py digits
python evaluate/speed.py cifar10 --table parts --batch_size 32

The table "objectives" compares each objective with time score matching (TSM), the baseline of the
paper, on the network of a model. The table "parts" lists the parts of a step of the recipe of the
model's data set, relative to the forward and backward pass of the network. The table "likelihood"
compares a likelihood with its evaluations of the network.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from accelerate import Accelerator
from diffusers.training_utils import EMAModel
from torch import Tensor

from ebm_app.command_line import CommonFlags, ModelFlag, parse, run_script
from ebm_app.data.datasets import ImageData
from ebm_app.ebm import EBM
from ebm_app.training.build import build, make_config
from ebm_app.training.loop import Loss, Task
from ebm_app.training.optimizers import OPTIMIZERS
from ebm_app.training.recipes import recipe
from ebm_app.training.settings import Train, with_settings
from ebm_app.utils.fields import BatchSize, Draws, configuration, setting
from ebm_app.utils.output import Output, to_markdown
from ebm_app.utils.processes import make_accelerator, resolve_device

#: Objectives that are compared on one network without a Stein head
OBJECTIVES = ("ctsm_v", "ctsm", "tsm")
Action = Callable[[], object]


@configuration(kw_only=True)
class Arguments(CommonFlags, ModelFlag):
    table: Literal["objectives", "parts", "likelihood"] = setting(
        "objectives, parts of a step of the recipe, or likelihood", "objectives"
    )
    batch_size: BatchSize = setting("images per batch", 64)
    rounds: Draws = setting("steps of each objective", 10)
    output_dir: Path = setting("folder for the record", Path("runs/speed"))


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Time whole training steps or their parts; return the table."""
    args = parse(Arguments, __doc__, argv)
    ebm = EBM.from_pretrained(args.model, resolve_device(args.device))
    output = Output(args.output_dir / "speed.json", args)
    figures = {"table": TABLES[args.table](ebm, args.batch_size, args.rounds)}
    print(to_markdown(figures["table"]))
    output.save(figures)
    return figures


class Step:
    """A training step as in ``ebm_app.training.loop``: draw, loss, backward, update, average."""

    def __init__(self, accelerator: Accelerator, config: Train, task: Task) -> None:
        self.accelerator, self.config, self.batches = accelerator, config, task.batches
        self.weights = list(task.ebm.parameters())
        optimizer = OPTIMIZERS[config.optimizer](self.weights, lr=0.0, fused=True)
        loss = Loss(task.ebm.model, task.objective)
        self.loss, self.optimizer = accelerator.prepare(loss, optimizer)
        self.average = EMAModel(self.weights, decay=config.ema_decay, foreach=True)

    def __call__(self) -> None:
        losses = self.loss(*self.batches.batch(0, torch.arange(self.batches.size)))
        self.accelerator.backward(losses.mean())
        self.accelerator.clip_grad_norm_(self.weights, self.config.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.average.step(self.weights)


def time_objectives(ebm: EBM, size: int, rounds: int) -> list[dict[str, Any]]:
    """Time whole steps of each objective (draw, loss, backward, update, average)."""
    device = ebm.device.type
    steps: dict[str, Action] = {name: make_step(ebm, size, name) for name in OBJECTIVES}
    moments = {"divergence": "poisson", "prediction": "moments", "stein_factor": 1.0}
    steps["ctsm_v, poisson, Stein head"] = make_step(ebm, size, "ctsm_v", **moments)
    in_float32 = make_step(ebm, size, "ctsm_v")
    steps["ctsm_v in bfloat16"] = torch.autocast(device, torch.bfloat16)(in_float32)
    seconds = time_in_turns(steps, device, rounds)
    return [
        {"step": name, "ms": 1e3 * s, "of tsm": s / seconds["tsm"], "images/s": size / s}
        for name, s in seconds.items()
    ]


def time_parts(ebm: EBM, size: int, rounds: int) -> list[dict[str, Any]]:
    """Time a step of the recipe of the model's data set and its parts. Parts of the forward pass
    include their backward pass."""
    device, shape = ebm.device.type, ebm.config.image_shape
    data = random_images(size, shape, ebm.config.num_levels)
    base = recipe(ebm.config.dataset, data.image_shape, data.num_levels)
    config = with_settings(base, {"train_batch_size": size, "max_train_steps": 1000})
    accelerator = make_accelerator(config.mixed_precision, device)
    task = build(accelerator, config, make_config(config, data), data)
    step, model = Step(accelerator, config, task), task.ebm.model
    columns = u0, u1, t, *_ = task.batches.batch(0, torch.arange(size))
    x = model.path.sample(u0, u1, t).xt
    features = model.with_condition([x, model.features(x, t)], None)
    time_input = model.net_time(t).to(x.dtype)

    def with_features() -> Tensor:
        channels = model.with_condition([x, model.features(x, t)], None)
        return model.net(channels, model.net_time(t).to(x.dtype))

    def moments() -> Tensor:
        output = model(x, t)
        return output.score.square() + output.variance.log()

    stages = {
        "network": lambda: model.net(features, time_input),
        "features": with_features,
        "prediction": moments,
        "loss": lambda: step.loss(*columns),
    }

    def passes(stage: Callable[[], Tensor]) -> None:
        with accelerator.autocast():
            output = stage()
        accelerator.backward(output.float().mean())

    def update() -> None:
        for weight in step.weights:
            weight.grad = torch.ones_like(weight)
        step.optimizer.step()

    actions = {name: partial(passes, stage) for name, stage in stages.items()} | {
        "data and noise": lambda: task.batches.batch(0, torch.arange(size)),
        "clipping": lambda: accelerator.clip_grad_norm_(step.weights, 1e9),
        "optimizer": update,
        "average": lambda: step.average.step(step.weights),
        "step": step,
    }
    seconds = time_in_turns(actions, device, rounds)
    network, before, table = seconds["network"], 0.0, []
    for name, value in seconds.items():
        own = value - before
        before = value if name in stages and name != "loss" else 0.0
        table.append({"part": name, "ms": 1e3 * own, "of the network": own / network})
    return table


@torch.no_grad()
def time_likelihood(ebm: EBM, size: int, rounds: int) -> list[dict[str, Any]]:
    """Time the variational bound of a batch, and as many evaluations of the network alone."""
    model, shape = ebm.model, ebm.config.image_shape
    images = random_images(size, shape, ebm.config.num_levels).train[:size]
    x, t = ebm.encode(images), torch.full((size,), 0.5, dtype=torch.float64, device=ebm.device)
    features = model.with_condition([x, model.features(x, t)], None)
    time_input = model.net_time(t).to(x.dtype)
    nfe = ebm.likelihood(images).nfe

    def evaluate_network() -> None:
        for _ in range(nfe):
            model.net(features, time_input)

    actions = {"network": evaluate_network, "likelihood": lambda: ebm.likelihood(images)}
    seconds = time_in_turns(actions, ebm.device.type, rounds)
    return [
        {"part": name, "ms": 1e3 * value, "of the network": value / seconds["network"]}
        for name, value in seconds.items()
    ]


TABLES = {"objectives": time_objectives, "parts": time_parts, "likelihood": time_likelihood}


def random_images(batch_size: int, shape: Sequence[int], num_levels: int) -> ImageData:
    """Return random images, since the time of a step does not depend on the images."""
    pixels = torch.randint(num_levels, (2 * batch_size, *shape), dtype=torch.uint8)
    return ImageData("random", num_levels, pixels, pixels[:2], pixels[:2])


def make_step(ebm: EBM, batch_size: int, objective: str, **settings: Any) -> Step:
    """Return a training step of a network like the model's on random images, without a Stein head
    unless ``settings`` add one."""
    net, config = ebm.config.net, ebm.config
    settings = {
        "divergence": "squared",
        "prediction": "normalised",
        "stein_factor": 0.0,
        **settings,
    }
    run = Train(
        max_train_steps=1000,
        train_batch_size=batch_size,
        objective=objective,
        dequantisation="uniform",
        t_margin=config.t_margin,
        input_frequencies=config.input_frequencies,
        **dataclasses.asdict(net),
        **settings,
    )
    data = random_images(batch_size, config.image_shape, config.num_levels)
    accelerator = make_accelerator("no", ebm.device.type)
    return Step(accelerator, run, build(accelerator, run, make_config(run, data), data))


def time_in_turns(actions: Mapping[str, Action], device: str, rounds: int) -> dict[str, float]:
    """Return the tenth percentile of the seconds of each action (core seconds on a CPU).

    The actions alternate, after one round of warm-up, because the speed of a machine varies over
    time.
    """
    clock = time.process_time if device == "cpu" else time.perf_counter
    times: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(rounds + 1):
        for name, action in actions.items():
            begin = clock()
            action()
            if device == "cuda":
                torch.cuda.synchronize()
            times[name].append(clock() - begin)
    return {name: sorted(values[1:])[rounds // 10] for name, values in times.items()}


if __name__ == "__main__":
    raise SystemExit(run_script(main))

"""What training steps, likelihoods, leapfrog steps and samples cost, as ratios within one run.

python evaluate/speed.py digits
python evaluate/speed.py digits --parts training --batch_size 256 --compile
"""

from ebm_app.io.start import run_script  # isort: skip  before what takes seconds

import sys
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ebm_app.evaluation.command_line import add_data_flags, held_out, open_model
from ebm_app.image_models.ebm import EBM
from ebm_app.io.cli import Parser, flag
from ebm_app.io.fields import PositiveInt
from ebm_app.io.output import Output
from ebm_app.io.registry import choose
from ebm_app.likelihood.dequantisation import dequantisation_noise
from ebm_app.sampling.samplers import SAMPLERS
from studies import training_speed as training
from studies.likelihood_speed import adaptive, at_equal_error, fixed_nodes, reference
from studies.score_speed import TOLERANCES, fields
from studies.timing import seconds_in_turns

#: objectives whose steps are compared, on the same network without a Stein head
OBJECTIVES = ("ctsm_v", "ctsm", "tsm")
Rows = list[dict[str, Any]]


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, in turns so that a noisy machine slows all alike; tables by part."""
    parser = Parser(__doc__)
    add_data_flags(parser, batch_size=64)
    add = parser.add_argument
    add("--parts", nargs="+", default=list(PARTS), help=f"of {', '.join(PARTS)}")
    turns = "turns, of which the tenth percentile is told"
    add("--rounds", type=flag(PositiveInt), default=10, help=turns)
    add("--compile", action="store_true", help="time compiled training steps too: minutes")
    add("--quick", action="store_true", help="one turn of 4 images")
    add("--output_dir", default="runs/speed", help="where the record and the plot go")
    parser.add_common()
    args = parser.parse_args(argv)
    args.limit = args.limit or 32
    if args.quick:
        parser.refuse(
            ["rounds", "batch_size", "limit"], "is set by --quick: leave one of them out"
        )
        args.rounds, args.batch_size, args.limit = 1, 4, 4
    parts = {name: PARTS[choose("part", name, PARTS)] for name in args.parts}
    if "training" not in parts:
        parser.refuse(["compile"], "is of the part training: add it to --parts")
    _, ebm = open_model(args)
    output = Output(Path(args.output_dir) / "speed.json", vars(args))
    found = {}
    for name, part in parts.items():
        found[name] = part(ebm, args)
        print(f"{name}\n{table(found[name])}\n")
    from studies.speed_plots import plot_speed  # a second to import

    with output.saving(found):
        plot_speed(found, output.folder / "speed.png")
    return found


def training_part(ebm: EBM, args: Namespace) -> Rows:
    """Whole training steps beside the bare network, and what bounds them."""
    device = ebm.device.type
    steps = steps_of(ebm, args.batch_size)
    actions = {name: steps.trainer(name).train_step for name in OBJECTIVES}
    actions = {"bare network": training.bare_network(steps.trainer("ctsm_v")), **actions}
    actions["ctsm_m and Stein head"] = steps.trainer("ctsm_m", stein_head=True).train_step
    actions["ctsm_v in bfloat16"] = training.under_autocast(
        steps.trainer("ctsm_v").train_step, device
    )
    if args.compile:
        trainer = steps.trainer("ctsm_v")
        trainer.loss_module = torch.compile(trainer.loss_module)  # in the first step
        actions["ctsm_v compiled"] = trainer.train_step
    product, operations = training.matrix_product(device)
    seconds = seconds_in_turns({**actions, "matrix product": product}, device, args.rounds)
    attainable = operations / seconds["matrix product"]
    rows = []
    for name, action in actions.items():
        row = {
            "step": name,
            "ms": 1e3 * seconds[name],
            "of the bare network": seconds[name] / seconds["bare network"],
            "images/s": args.batch_size / seconds[name],
        }
        if name in ("bare network", *OBJECTIVES):
            row["MB for backward"] = training.saved_bytes(action) / 1e6
        if name in ("bare network", "ctsm_v"):
            rate = training.flops(action) / seconds[name]
            row |= {"GFLOP/s": rate / 1e9, "of a matrix product": rate / attainable}
        rows.append(row)
    return rows


def profile_part(ebm: EBM, args: Namespace) -> Rows:
    """The operations in which a CTSM-v step spends its time."""
    trainer = steps_of(ebm, args.batch_size).trainer("ctsm_v")
    trainer.train_step()
    shares = training.top_operations(trainer.train_step, ebm.device.type)
    return [{"operation": name, "share": share} for name, share in shares.items()]


def growth_part(ebm: EBM, args: Namespace) -> Rows:
    """Seconds and memory of a step by batch size and, in the ambient space, by image size."""
    whole = steps_of(ebm, args.batch_size)
    cases = [replace(whole, batch_size=max(1, args.batch_size // k)) for k in (4, 2, 1)]
    if ebm.config.space == "ambient":
        channels, height, width = ebm.config.image_shape
        for k in (2, 3):
            shape = (channels, k * height, k * width)
            few = max(1, args.batch_size // k**2)
            config = replace(ebm.config, image_shape=shape)
            cases.append(replace(whole, config=config, batch_size=few))
    rows = []
    for case in cases:
        steps = {name: case.trainer(name).train_step for name in ("ctsm_v", "tsm")}
        seconds = seconds_in_turns(steps, ebm.device.type, max(1, args.rounds // 3))
        _, height, width = case.config.image_shape
        row: dict[str, Any] = {"batch": case.batch_size, "pixels": f"{height}x{width}"}
        for name, step in steps.items():
            row[f"{name}, ms an image"] = 1e3 * seconds[name] / case.batch_size
            row[f"{name}, MB an image"] = training.saved_bytes(step) / 1e6 / case.batch_size
        rows.append(row)
    return rows


def likelihood_part(ebm: EBM, args: Namespace) -> Rows:
    """Fixed nodes against adaptive solves at equal error."""
    points = held_out_points(ebm, args)
    given = ebm.energy, points, reference(ebm.energy, points)
    rules, solves = fixed_nodes(*given), adaptive(*given)
    pairs = at_equal_error(solves, rules)
    rows = []
    for way in [*rules, *solves]:
        row = {"by": way.name, "evaluations": way.nfe, "off by, bits per dim": way.error}
        if way in pairs:
            row |= {"as exact": pairs[way].name, "times fewer": way.nfe / pairs[way].nfe}
        rows.append(row)
    return rows


def leapfrog_part(ebm: EBM, args: Namespace) -> Rows:
    """The field of one leapfrog step by head, nodes and differentiated solve."""
    points = held_out_points(ebm, args)
    seconds = seconds_in_turns(
        fields(ebm.energy, points), ebm.device.type, max(1, args.rounds // 3)
    )
    rows = []
    for name, taken in seconds.items():
        row = {"by": name, "ms an image": 1e3 * taken / len(points)}
        if name not in TOLERANCES:
            row |= {f"times faster than {ode}": seconds[ode] / taken for ode in TOLERANCES}
        rows.append(row)
    return rows


def sampling_part(ebm: EBM, args: Namespace) -> Rows:
    """Seconds a sample, by the samplers' own settings; one step each where quick."""
    options = {"num_steps": 1} if args.quick else {}
    num, rows = min(args.limit, 16), []
    for name in SAMPLERS:
        begin = time.perf_counter()
        for frame in ebm.iterate_sample(num, name, args.seed, **options):
            evaluations = frame.nfe
        taken = time.perf_counter() - begin
        rows.append({"sampler": name, "s an image": taken / num, "evaluations": evaluations})
    return rows


PARTS: dict[str, Callable[[EBM, Namespace], Rows]] = {
    "training": training_part,
    "profile": profile_part,
    "growth": growth_part,
    "likelihood": likelihood_part,
    "leapfrog": leapfrog_part,
    "sampling": sampling_part,
}


def steps_of(ebm: EBM, batch_size: int) -> training.Steps:
    """Training steps of a model's own kind."""
    space = ebm.space.state_dict()
    return training.Steps(ebm.config, batch_size, space, ebm.device.type)


def held_out_points(ebm: EBM, args: Namespace) -> Tensor:
    """Held-out images (B, *) in the space of the path, with one dequantisation draw each."""
    levels = held_out(args, ebm)
    noise = dequantisation_noise(1, levels, args.seed)[0]
    return ebm.dequantise(levels, noise).y


def table(rows: Rows) -> str:
    """Markdown; a row without a figure has an empty cell."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [names, ["---"] * len(names)]
    lines += [[cell(row.get(name, "")) for name in names] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell(value: str | float) -> str:
    """A figure with three digits."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(run_script(main))

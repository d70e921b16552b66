"""What training steps, likelihoods, leapfrog steps and samples cost, as ratios within one run.

python evaluate/speed.py digits
python evaluate/speed.py digits --parts training --batch_size 256
"""

from ebm_app.io.start import run_script  # isort: skip  before what takes seconds

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ebm_app.evaluation.held_out import HeldOutFlags, held_out, open_model
from ebm_app.image_models.ebm import EBM
from ebm_app.io.command_line import parse
from ebm_app.io.fields import BatchSize, Several, configuration, setting
from ebm_app.io.output import Output
from ebm_app.io.records import to_dict
from ebm_app.io.registry import choose
from ebm_app.likelihood.dequantisation import dequantisation_noise
from ebm_app.sampling.samplers import SAMPLERS
from studies.grid import to_markdown
from studies.speed import TOLERANCES, Steps, at_equal_error, bare_network, fields, integrations
from studies.timing import seconds_in_turns

#: objectives whose steps are compared, on the same network without a Stein head
OBJECTIVES = ("ctsm_v", "ctsm", "tsm")
Rows = list[dict[str, Any]]


@configuration(kw_only=True)
class Arguments(HeldOutFlags):
    """The command line."""

    batch_size: BatchSize = setting("images taken together", 64)
    limit: Several = setting("take the first images only", 32)
    parts: tuple[str, ...] = setting(
        "of training, likelihood, leapfrog, sampling; all if not given", ()
    )
    quick: bool = setting("one turn of 4 images", False)
    output_dir: Path = setting("where the record goes", Path("runs/speed"))

    @property
    def rounds(self) -> int:
        """Turns that are taken."""
        return 1 if self.quick else 10


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, in turns so that a noisy machine slows all alike; tables by part."""
    args = parse(Arguments, __doc__, argv)
    if args.quick:
        args = replace(args, batch_size=4, limit=4)
    parts = {name: PARTS[choose("part", name, PARTS)] for name in args.parts or PARTS}
    _, ebm = open_model(args)
    output = Output(args.output_dir / "speed.json", to_dict(args))
    found = {}
    for name, part in parts.items():
        found[name] = part(ebm, args)
        print(f"{name}\n{to_markdown(found[name])}\n")
    answer = {"ratios": found}
    output.save(answer)
    return answer


def training_part(ebm: EBM, args: Arguments) -> Rows:
    """Whole training steps beside the bare network."""
    device = ebm.device.type
    steps = Steps(ebm.config, args.batch_size, ebm.space.state_dict(), device)
    trainers = {name: steps.trainer(name) for name in OBJECTIVES}
    in_bfloat16 = steps.trainer("ctsm_v").train_step
    actions = {
        "bare network": bare_network(steps.trainer("ctsm_v")),
        **{name: trainer.train_step for name, trainer in trainers.items()},
        "ctsm_m and Stein head": steps.trainer("ctsm_m", stein_head=True).train_step,
        "ctsm_v in bfloat16": torch.autocast(device, torch.bfloat16)(in_bfloat16),
    }
    seconds = seconds_in_turns(actions, device, args.rounds)
    return [
        {
            "step": name,
            "ms": 1e3 * taken,
            "of the bare network": taken / seconds["bare network"],
            "images/s": args.batch_size / taken,
        }
        for name, taken in seconds.items()
    ]


def likelihood_part(ebm: EBM, args: Arguments) -> Rows:
    """Fixed nodes against adaptive solves at equal error."""
    rules, solves = integrations(ebm.energy, held_out_points(ebm, args))
    pairs = at_equal_error(solves, rules)
    rows = []
    for way in [*rules, *solves]:
        row = {"by": way.name, "evaluations": way.nfe, "off by, bits per dim": way.error}
        if way in pairs:
            row |= {"as exact": pairs[way].name, "times fewer": way.nfe / pairs[way].nfe}
        rows.append(row)
    return rows


def leapfrog_part(ebm: EBM, args: Arguments) -> Rows:
    """The field of one leapfrog step by head, nodes and differentiated solve."""
    points, rounds = held_out_points(ebm, args), max(1, args.rounds // 3)
    seconds = seconds_in_turns(fields(ebm.energy, points), ebm.device.type, rounds)
    rows = []
    for name, taken in seconds.items():
        row = {"by": name, "ms an image": 1e3 * taken / len(points)}
        if name not in TOLERANCES:
            row |= {f"times faster than {ode}": seconds[ode] / taken for ode in TOLERANCES}
        rows.append(row)
    return rows


def sampling_part(ebm: EBM, args: Arguments) -> Rows:
    """Seconds a sample, by the samplers' own settings; one step each where quick."""
    num, rows = min(args.limit, 16), []
    for name, kind in SAMPLERS.items():
        options = {kind.counts: 1} if args.quick else {}
        begin = time.perf_counter()
        for frame in ebm.iterate_sample(num, name, args.seed, **options):
            evaluations = frame.nfe
        taken = time.perf_counter() - begin
        rows.append({"sampler": name, "s an image": taken / num, "evaluations": evaluations})
    return rows


PARTS: dict[str, Callable[[EBM, Arguments], Rows]] = {
    "training": training_part,
    "likelihood": likelihood_part,
    "leapfrog": leapfrog_part,
    "sampling": sampling_part,
}


def held_out_points(ebm: EBM, args: Arguments) -> Tensor:
    """Held-out images (B, *) in the space of the path, with one dequantisation draw each."""
    levels = held_out(args, ebm)
    return ebm.dequantise(levels, dequantisation_noise(1, levels, args.seed)[0]).y


if __name__ == "__main__":
    sys.exit(run_script(main))

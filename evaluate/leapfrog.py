"""What drives the leapfrog of HMC: the Stein head, or the gradient of the integral by few nodes.

python evaluate/leapfrog.py digits
"""

import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ebm_app.ebm import EBM
from ebm_app.errors import UserError
from ebm_app.models.energy import HEAD, INTEGRAL, TimeScoreEnergy
from ebm_app.numerics import sum_except_batch
from ebm_app.probability_flow.ode import RK4, ClockField, FixedSteps, Score
from ebm_app.runs.cli import Parser, RunRecord, resolve_device, run_script
from ebm_app.sampling import hmc

COLUMNS = (
    "share",
    "driver",
    "leapfrog_steps",
    "difference",
    "step",
    "acceptance",
    "ms",
    "passes",
    "jump",
)
NOTES = """
share: of the clock. difference: of the field from the gradient of the whole integral, relative.
step: adapted, in standard deviations of the noise at that time; acceptance: with that step.
ms: of a transition of one chain. passes: of the network in it, a differentiated one counted as
three. jump: mean squared distance moved per dim in a thousand passes, in units of the noise's
variance: what the work is worth."""


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the drivers at a few times; one row each."""
    parser = Parser(__doc__)
    add = parser.add_argument
    add("model", help="a folder, a bundled name or a hub id")
    add("--shares", type=float, nargs="+", default=[0.2, 0.5, 0.8], help="shares of the clock")
    add("--nodes", type=int, nargs="+", default=[3, 4, 12], help="nodes of the gradient")
    add("--leapfrog_steps", type=int, nargs="+", default=[1, 4], help="steps of a transition")
    add("--num_nodes", type=int, default=8, help="nodes of the accept step's density")
    add("--num_chains", type=int, default=32, help="chains side by side")
    add("--transitions", type=int, default=30, help="of which the first half adapt the step")
    add("--output_dir", default="runs/leapfrog", help="where the record goes")
    parser.add_common()
    args = parser.parse_args(argv)
    if min(args.transitions // 2, args.num_chains, *args.leapfrog_steps) < 1:
        raise UserError("--transitions must be at least 2, chains and leapfrog steps at least 1")
    ebm = EBM.from_pretrained(args.model, resolve_device(args.device))
    record = RunRecord(Path(args.output_dir) / "leapfrog.json", vars(args))
    drivers = {
        f"{n} nodes": (ebm.energy.with_nodes(n).stein_score(INTEGRAL), 3 * n) for n in args.nodes
    }
    if ebm.model.stein_channels:
        drivers = {"head": (ebm.energy.stein_score(HEAD), 1), **drivers}
    print(" | ".join(f"{name:>14}" for name in COLUMNS))
    table = []
    for share in args.shares:
        t, x = chains(ebm, share, args)
        for name, (score, passes) in drivers.items():
            for num_steps in args.leapfrog_steps:
                row = {"share": share, "driver": name, "leapfrog_steps": num_steps}
                accept = ebm.energy.with_nodes(args.num_nodes)
                cost = num_steps * passes + accept.log_ratio(x[:1], t1=t).nfe
                row |= run(ebm.energy, accept, score, (t, x), num_steps, cost, args)
                table.append(row)
                cells = (row[key] for key in COLUMNS)
                print(
                    " | ".join(
                        f"{c:14.3f}" if isinstance(c, float) else f"{c:>14}" for c in cells
                    ),
                    flush=True,
                )
    print(NOTES, file=sys.stderr)
    figures = {"table": table, "model": args.model}
    record.write(figures)
    return figures


def chains(ebm: EBM, share: float, args: Namespace) -> tuple[float, Tensor]:
    """The time at a share of the clock, and points of the flow there."""
    energy, path = ebm.energy, ebm.energy.path
    ends = path.clock(torch.tensor([energy.start, energy.end], dtype=torch.float64))
    t = path.clock_inverse(ends[0] + share * (ends[1] - ends[0])).item()
    generator = torch.Generator(ebm.device).manual_seed(args.seed)
    shape = (args.num_chains, *ebm.config.image_shape)
    x0 = torch.randn(shape, generator=generator, device=ebm.device)
    field = ClockField(energy.stein_score(), path)
    *_, state = FixedSteps(RK4, 12).flow(field, x0, 1e-4, t)
    return t, state.x


def run(
    energy: TimeScoreEnergy,
    accept: TimeScoreEnergy,
    score: Score,
    place: tuple[float, Tensor],
    num_steps: int,
    passes: int,
    args: Namespace,
) -> dict[str, float]:
    """Adapt the step in the first half of the transitions, measure in the second."""
    t, x = place
    deviation = energy.path.variance(torch.tensor(t, dtype=torch.float64)).sqrt().item()
    whole = energy.score(x, t)
    with torch.no_grad():
        off = sum_except_batch((score(x, t) - whole).square()) / sum_except_batch(whole.square())
    target = hmc.Target(lambda y: accept.proposal_log_density(y, t), lambda y: score(y, t))
    generator = torch.Generator(x.device).manual_seed(args.seed)
    state, step = hmc.init(x, target), torch.tensor(0.3 * deviation, dtype=torch.float64)
    half = args.transitions // 2
    for _ in range(half):
        state, info = hmc.step(state, target, step, num_steps, generator)
        step = hmc.adapt(step, info.acceptance_probability, factor=1.3)
    begin, jump, acceptance = time.perf_counter(), 0.0, 0.0
    for _ in range(half):
        before = state.position
        state, info = hmc.step(state, target, step, num_steps, generator)
        jump += (state.position - before).square().mean().item() / deviation**2
        acceptance += info.acceptance_probability.mean().item() / half
    seconds = time.perf_counter() - begin
    return {
        "difference": off.sqrt().mean().item(),
        "step": step.item() / deviation,
        "acceptance": acceptance,
        "ms": 1e3 * seconds / half / len(x),
        "passes": passes,
        "jump": 1e3 * jump / half / passes,
    }


if __name__ == "__main__":
    sys.exit(run_script(main))

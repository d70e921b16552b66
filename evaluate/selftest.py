"""Check a model against identities that hold for every exact one.

python evaluate/selftest.py digits
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from ebm_app.checkpoint import explained_write
from ebm_app.cli import Parser, RunRecord, run_script
from ebm_app.ebm import dequantisation_noise
from ebm_app.errors import UserError
from ebm_app.estimators import FlowDensity
from ebm_app.evaluation import add_data_flags, held_out, open_model
from ebm_app.selftest import (
    Balance,
    as_record,
    balance,
    balance_check,
    flow_check,
    reference_check,
    refinement_check,
)


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the checks; the script fails by its figures, not by its exit code."""
    parser = Parser(__doc__)
    add_data_flags(parser)
    add = parser.add_argument
    add("--num_times", type=int, default=32, help="times at which the mean time score is taken")
    add("--num_reference", type=int, default=1000, help="draws of N(0, I)")
    add("--num_probes", type=int, default=2, help="probes of the flow's divergence; 0: exact")
    add("--flow_steps", type=int, default=20, help="Runge-Kutta steps of the flow")
    add("--output_dir", default="runs/selftest", help="where record and plot go")
    parser.add_common()
    args = parser.parse_args(argv)
    if min(args.num_times, args.num_reference) < 2:
        raise UserError("--num_times and --num_reference must be at least 2")
    _, ebm = open_model(args)
    energy, levels = ebm.energy, held_out(args, ebm)
    record = RunRecord(Path(args.output_dir) / "selftest.json", vars(args))
    generator = torch.Generator(ebm.device).manual_seed(args.seed)
    noise = dequantisation_noise(1, levels, args.seed)[0]
    num_levels = ebm.config.num_levels
    x1 = ebm.dequantiser.training_points(levels, num_levels, ebm.space, noise).to(ebm.device)
    points = ebm.dequantiser.points(
        levels, num_levels, ebm.space, noise, energy.path, energy.end
    ).y.to(ebm.device)
    x0 = torch.randn(
        (args.num_reference, *points.shape[1:]), generator=generator, device=ebm.device
    )
    found = balance(energy, x1, args.num_times, generator)
    flow = FlowDensity(num_steps=args.flow_steps, num_probes=args.num_probes, seed=args.seed)
    checks = [
        balance_check(energy, found),
        reference_check(energy, x0, points[0].numel())[0],
        refinement_check(energy, points),
        flow_check(energy, points, flow),
    ]
    for check in checks:
        verdict = "ok  " if check.passed else "FAIL"
        print(
            f"{verdict} {check.name:20} {check.value:+.4f} +- {check.stderr:.4f} {check.unit}, "
            f"allowed {check.allowance}; {check.note}"
            if check.unit
            else f"--   {check.name:20} {check.note}"
        )
    output_dir = Path(args.output_dir)
    with explained_write(output_dir):
        output_dir.mkdir(parents=True, exist_ok=True)
        plot(found, output_dir / "selftest.png")
    figures = {
        "passed": all(check.passed for check in checks),
        "checks": [as_record(check) for check in checks],
        "mean_time_score": {key: value.tolist() for key, value in found._asdict().items()},
        "model": args.model,
    }
    record.write(figures)
    return figures


def plot(found: Balance, target: Path) -> None:
    """The mean time score over the clock."""
    figure = Figure(figsize=(7, 3.5), layout="constrained")
    axes = figure.subplots()
    axes.errorbar(found.shares, found.mean, yerr=found.stderr, marker="o", capsize=3)
    axes.axhline(0, color="grey", lw=1)
    axes.set(xlabel="share of the clock", ylabel="E[s] per dim and unit of the clock (nats)")
    figure.savefig(target, dpi=110)


if __name__ == "__main__":
    sys.exit(run_script(main))

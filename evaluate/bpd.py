"""Bits per dim of a model on held-out images, by estimators that stand on different grounds.

python evaluate/bpd.py digits --estimator all
"""

import sys
from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from ebm_app.ebm import EBM
from ebm_app.evaluation.command_line import (
    Row,
    add_data_flags,
    disagreements,
    held_out,
    open_model,
    print_rows,
    reaches,
    score_row,
)
from ebm_app.likelihood import PFODEDensity, RatioIntegral, RatioODE, VariationalBound
from ebm_app.likelihood.dequantisation import TruncatedNormal, dequantisation_noise
from ebm_app.probability_flow.ode import SOLVERS
from ebm_app.runs.cli import Parser, RunRecord, run_script
from ebm_app.runs.processes import shut_down

NAMES = ("ratio", "ode", "pf_ode", "elbo", "truncated_normal", "truncated_normal_pf_ode")
NOTES = """
ratio, ode: the integral of the time score, by fixed nodes and by RK45 at 1e-6; normalised only as
far as the time score is exact (python evaluate/ais.py gives log Z).
pf_ode: the density of the model's own flow, normalised.
elbo: an upper bound on the bits of the model's own diffusion, whose density is normalised.
truncated_normal: the bound at tau = 3, by the integral and by the flow. It is loose by about half
a bit for a model that was not trained for it (--dequantisation truncated_normal).
All stop at t = 1 - eps; compare figures at one eps only."""


def parse_args(argv: Sequence[str] | None) -> Namespace:
    """The command line."""
    parser = Parser(__doc__)
    add_data_flags(parser)
    add = parser.add_argument
    add(
        "--estimator",
        nargs="+",
        default=["ratio"],
        choices=[*NAMES, "all"],
        help="how log p is found; the first one gives the figure that a report begins with",
    )
    add("--num_nodes", type=int, help="quadrature nodes; the model's own if not given")
    add("--tau", type=float, default=3.0, help="truncation of the truncated-normal bound")
    add("--solver", default="rk4", choices=sorted(SOLVERS), help="of the probability-flow ODE")
    add("--pf_ode_steps", type=int, default=20, help="its steps in the clock, if fixed")
    add("--tolerance", type=float, default=1e-5, help="its tolerance, if adaptive")
    add("--num_probes", type=int, default=2, help="probes of its divergence; 0: exact, D passes")
    add("--num_draws", type=int, default=2, help="draws of the noise at a node of the elbo")
    add("--score", help="the Stein score: head or integral; the head where the model has one")
    add("--output_dir", default="runs/bpd", help="where the record goes")
    parser.add_common()
    return parser.parse_args(argv)


def rows(args: Namespace) -> dict[str, Row]:
    """The estimators by name."""
    flow = PFODEDensity(
        args.solver, args.pf_ode_steps, args.tolerance, args.num_probes, args.score, seed=args.seed
    )
    truncated = TruncatedNormal(args.tau)
    return {
        "ratio": Row(RatioIntegral()),
        "ode": Row(RatioODE()),
        "pf_ode": Row(flow),
        "elbo": Row(VariationalBound(num_draws=args.num_draws, score=args.score, seed=args.seed)),
        "truncated_normal": Row(RatioIntegral(), truncated),
        "truncated_normal_pf_ode": Row(flow, truncated),
    }


def chosen(args: Namespace, ebm: EBM) -> list[str]:
    """The estimators asked for; of all of them, those that the model can answer."""
    if "all" not in args.estimator:
        return list(dict.fromkeys(args.estimator))
    able = [name for name in NAMES if reaches(rows(args)[name], ebm)]
    if len(able) < len(NAMES):
        print(f"note: without the truncated-normal bound, {why_not(args, ebm)}", file=sys.stderr)
    return able


def why_not(args: Namespace, ebm: EBM) -> str:
    """What keeps a model from the truncated-normal bound."""
    if ebm.space.scale is None:
        return f"as {type(ebm.space).__name__} stretches the cells unequally"
    return (
        f"which at tau {args.tau} is read later than t = {ebm.energy.end}, where the model ends: "
        "lower --tau"
    )


def main(argv: Sequence[str] | None = None) -> dict[str, Any] | None:
    """Score a split; the figures, on the main process."""
    args = parse_args(argv)
    accelerator, ebm = open_model(args)
    if args.num_nodes is not None:
        ebm.energy = ebm.energy.with_nodes(args.num_nodes)
    levels = held_out(args, ebm)
    noise = dequantisation_noise(args.repeats, levels, args.seed)
    record = RunRecord(Path(args.output_dir) / "bpd.json", vars(args))
    is_main = accelerator.is_main_process
    scores, results = {}, {}
    for name in chosen(args, ebm):
        bar = partial(tqdm, desc=name, disable=not is_main)
        scores[name], results[name] = score_row(
            accelerator, ebm, levels, noise, rows(args)[name], args.batch_size, bar
        )
    first = next(iter(results))
    figures = {**results[first], "estimator": first, "split": args.split, "model": args.model}
    figures.update(estimators=results, disagreements=disagreements(scores))
    if is_main:
        print_rows(results)
        for pair in figures["disagreements"]:
            print(
                f"{pair['first']} - {pair['second']}: {pair['difference']:+.4f} "
                f"+- {pair['stderr']:.4f} bits per dim"
            )
        print(NOTES if len(results) > 1 else "", file=sys.stderr)
        record.write(figures)
    shut_down(accelerator)
    return figures if is_main else None


if __name__ == "__main__":
    sys.exit(run_script(main))

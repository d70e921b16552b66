"""Bits per dim of a model on held-out images, by one estimator of log p or several.

python evaluate/bpd.py digits --estimator all
python evaluate/bpd.py digits --estimator pf_ode --estimator_args num_steps=40 num_probes=4
"""

from ebm_app.io.start import run_script  # isort: skip  before what takes seconds

import sys
from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from ebm_app.evaluation.command_line import add_data_flags, held_out, open_model
from ebm_app.image_models.scoring import bits_by_estimator, disagreements
from ebm_app.io.arguments import settings_of, settings_of_each
from ebm_app.io.cli import Parser, flag
from ebm_app.io.errors import UserError
from ebm_app.io.fields import Nodes
from ebm_app.io.output import Output
from ebm_app.io.processes import shut_down
from ebm_app.likelihood import ESTIMATORS, Estimator, make_estimator
from ebm_app.likelihood.dequantisation import DEQUANTISERS, dequantisation_noise

ALL = "all"
#: estimators by the model's own quadrature; those by the Stein score may take its gradient
WITH_NODES = ("ratio", "elbo", "pf_ode", "pf_ode_exact")
DEQUANTISER_NOTES = "; ".join(f"{name}: {kind.note}" for name, kind in DEQUANTISERS.items())


def parse_args(argv: Sequence[str] | None) -> Namespace:
    """The command line."""
    parser = Parser(__doc__)
    add_data_flags(parser)
    add = parser.add_argument
    add(
        "--estimator",
        nargs="+",
        choices=[*ESTIMATORS, ALL],
        help="how log p is found (default: elbo, or ratio for a model without a Stein head); the "
        "last line begins with the first one's metrics. "
        f"{estimator_notes('; ')}; {ALL}: those whose cost does not grow with the pixels",
    )
    add(
        "--estimator_args",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="settings of the estimators; each goes to all that have it",
    )
    add(
        "--dequantisation",
        choices=sorted(DEQUANTISERS),
        help=f"the model's own if not given. {DEQUANTISER_NOTES}",
    )
    add(
        "--dequantiser_args",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="settings of the dequantisation",
    )
    add("--num_nodes", type=flag(Nodes), help="quadrature nodes; the model's own if not given")
    add("--output_dir", default="runs/bpd", help="where the record goes")
    parser.add_common()
    args = parser.parse_args(argv)
    names = set(args.estimator or [])
    if ALL in names and len(names) > 1:
        raise UserError(f"--estimator {ALL} names all of its own: leave the others out")
    if names and not names & {*WITH_NODES, ALL}:
        parser.refuse(["num_nodes"], f"is of {' and '.join(WITH_NODES)}: leave it out")
    return args


def estimator_notes(separator: str) -> str:
    """What every estimator computes."""
    return separator.join(f"{name}: {kind.note}" for name, kind in ESTIMATORS.items())


def make_estimators(args: Namespace, default: str) -> dict[str, Estimator]:
    """The estimators asked for, by name, with their settings."""
    names = dict.fromkeys(args.estimator or [default])
    if ALL in names:
        names = [name for name, kind in ESTIMATORS.items() if not kind.slow]
    settings = settings_of_each({name: ESTIMATORS[name] for name in names}, args.estimator_args)
    return {name: make_estimator(name, settings[name], args.seed) for name in names}


def main(argv: Sequence[str] | None = None) -> dict[str, Any] | None:
    """Evaluate a split; the metrics, on the main process."""
    args = parse_args(argv)
    accelerator, ebm = open_model(args)
    estimators = make_estimators(args, ebm.default_estimator)
    if args.num_nodes is not None:
        ebm.energy = ebm.energy.with_nodes(args.num_nodes)
    dequantiser_name = args.dequantisation or ebm.config.dequantisation
    kind = DEQUANTISERS[dequantiser_name]
    dequantiser = kind(**settings_of(kind, args.dequantiser_args))
    levels = held_out(args, ebm)
    noise = dequantisation_noise(args.repeats, levels, args.seed)
    is_main = accelerator.is_main_process
    output = Output(Path(args.output_dir) / "bpd.json", vars(args), is_main)
    bits, results = {}, {}
    for name, estimator in estimators.items():
        bar = partial(tqdm, desc=name, disable=not is_main)
        bits[name], results[name] = bits_by_estimator(
            accelerator, ebm, levels, noise, estimator, dequantiser, args.batch_size, bar
        )
    first = next(iter(results))
    metrics = {
        **results[first],
        "estimator": first,
        "dequantisation": dequantiser_name,
        "split": args.split,
        "model": args.model,
        "estimators": results,
        "disagreements": disagreements(bits),
    }
    if is_main:
        print_results(metrics)
        output.save(metrics)
    shut_down(accelerator)
    return metrics if is_main else None


def print_results(metrics: dict[str, Any]) -> None:
    """A line for each estimator, with its own error in the mean and in one image, and a line for
    each pair of them."""
    print("estimator     bits/dim  stderr  num.err  an image      eps     nfe       s")
    for name, row in metrics["estimators"].items():
        errors = [row["numerical_error"], row["image_error"]]
        error, image = ("" if value is None else f"{value:.1e}" for value in errors)
        print(
            f"{name:13}{row['bits_per_dim']:9.4f} {row['stderr']:7.4f} {error:>8}  {image:>8} "
            f"{row['eps']:8.1e} {row['nfe']:7.0f} {row['seconds']:7.1f}"
        )
    for pair in metrics["disagreements"]:
        print(
            f"{pair['first']} - {pair['second']}: {pair['difference']:+.4f} "
            f"+- {pair['stderr']:.4f} bits per dim"
        )
    if len(metrics["estimators"]) > 1:
        print(estimator_notes("\n"), "Compare bits at one eps only.", sep="\n", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(run_script(main))

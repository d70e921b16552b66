"""Bits per dim of a model on held-out images, by one estimator of log p or several.

python evaluate/bpd.py digits --estimator all
python evaluate/bpd.py digits --estimator probability_flow --estimator_args num_steps=40
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from ebm_app.cli.command_line import parse
from ebm_app.cli.held_out import HeldOutFlags, held_out, open_model
from ebm_app.ebm import EBM
from ebm_app.evaluation.scoring import bits_by_estimator, disagreements
from ebm_app.likelihood import (
    ALIASES,
    ESTIMATORS,
    Estimator,
    make_estimator,
    resolve_estimator,
)
from ebm_app.likelihood.dequantisation import DEQUANTISERS, dequantisation_noise
from ebm_app.utils.fields import configuration, setting
from ebm_app.utils.output import Output
from ebm_app.utils.processes import shut_down
from ebm_app.utils.registry import choose, settings_of_each

ALL = "all"


def notes_of(kinds: dict[str, Any]) -> str:
    """What every kind does."""
    return "; ".join(f"{name}: {kind.note}" for name, kind in kinds.items())


@configuration(kw_only=True)
class Arguments(HeldOutFlags):
    """The command line."""

    estimator: tuple[str, ...] = setting(
        "how log p is computed; elbo by default, or time_integral for a model without a Stein "
        f"head. The last line begins with the first one's metrics. {notes_of(ESTIMATORS)}; {ALL}: "
        "all of them",
        (),
    )
    estimator_args: tuple[str, ...] = setting(
        "settings KEY=VALUE of the estimators; each goes to all that have it", ()
    )
    dequantisation: str | None = setting(
        f"the model's own if not given. {notes_of(DEQUANTISERS)}", None
    )
    labels: bool = setting("tell the model the class of every image: bits of p(x | label)", False)
    output_dir: Path = setting("where the record goes", Path("runs/bpd"))


def make_estimators(args: Arguments, ebm: EBM) -> dict[str, Estimator]:
    """The estimators asked for, by name, with their settings; all are those for the model."""
    names = dict.fromkeys(args.estimator or [ebm.default_estimator])
    for name in names:
        choose("estimator", name, [*ESTIMATORS, *ALIASES, ALL])
    if ALL in names:
        names = [name for name, kind in ESTIMATORS.items() if kind.supports(ebm.density)]
    kinds = {name: ESTIMATORS[resolve_estimator(name)[0]] for name in names}
    settings = settings_of_each(kinds, args.estimator_args)
    return {name: make_estimator(name, settings[name], args.seed) for name in names}


def main(argv: Sequence[str] | None = None) -> dict[str, Any] | None:
    """Evaluate a split; the metrics, on the main process."""
    args = parse(Arguments, __doc__, argv)
    accelerator, ebm = open_model(args)
    estimators = make_estimators(args, ebm)
    dequantiser_name = args.dequantisation or ebm.config.dequantisation
    dequantiser = DEQUANTISERS[choose("dequantisation", dequantiser_name, DEQUANTISERS)]()
    levels, data = held_out(args, ebm)
    labels = data.split_labels(args.split)[: args.limit] if args.labels else None
    noise = dequantisation_noise(args.repeats, levels, args.seed)
    is_main = accelerator.is_main_process
    output = Output(args.output_dir / "bpd.json", args)
    bits, results = {}, {}
    for name, estimator in estimators.items():
        bar = partial(tqdm, desc=name, disable=not is_main)
        of_model = (accelerator, ebm, levels, noise, estimator, dequantiser)
        bits[name], results[name] = bits_by_estimator(
            *of_model, args.batch_size, bar, labels=labels
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
        output.save(metrics)
        print_results(metrics)
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
        if parts := row.get("parts"):
            print(", ".join(f"{part} {bits:.4f}" for part, bits in parts.items()))
    for pair in metrics["disagreements"]:
        print(
            f"{pair['first']} - {pair['second']}: {pair['difference']:+.4f} "
            f"± {pair['stderr']:.4f} bits per dim"
        )

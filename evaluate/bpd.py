"""Compute bits per dim of a model on held-out images, with one or more estimators of log p.

python evaluate/bpd.py digits --estimator all
python evaluate/bpd.py digits --estimator probability_flow --estimator_args num_steps=40
python evaluate/bpd.py digits --estimator "elbo num_nodes=32" elbo --split validation

The first table has the mean over images, its standard error (stderr), and the numerical error of
the mean (numerical_error) and of a single image (image_error). The numerical error is due to the
estimator. The second table has the differences between estimators, which measure the error of the
model.
"""

import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from ebm_app.command_line import parse, run_script
from ebm_app.ebm import EBM
from ebm_app.evaluation.flags import HeldOutFlags, held_out, open_model
from ebm_app.evaluation.held_out import labels_for
from ebm_app.evaluation.reference import save_bits
from ebm_app.evaluation.scoring import bits_by_estimator, disagreements
from ebm_app.likelihood import ESTIMATORS, Estimator, make_estimator
from ebm_app.utils.fields import configuration, setting
from ebm_app.utils.output import Output, to_markdown, warn_of_disagreements
from ebm_app.utils.processes import shut_down
from ebm_app.utils.registry import choose, settings_of_each

ALL = "all"


@configuration(kw_only=True)
class Arguments(HeldOutFlags):
    estimator: tuple[str, ...] = setting(
        "estimators of log p, each 'NAME' or 'NAME key=value ...'; if not given, elbo, or "
        "time_integral for a model without a Stein head. The first estimator is at the top level "
        "of the JSON output. elbo: variational lower bound; path_integral: integral of both "
        "scores along noisy copies of the image; probability_flow: density of the probability "
        "flow ODE; time_integral: integral of the time score at the image; energy: one evaluation "
        "of an energy network; all: every estimator that the model supports",
        (),
    )
    estimator_args: tuple[str, ...] = setting(
        "settings KEY=VALUE, applied to every estimator that has them", ()
    )
    labels: bool = setting("evaluate p(x | label) with the labels of the images", False)
    output_dir: Path = setting("folder for the record", Path("runs/bpd"))


def make_estimators(args: Arguments, ebm: EBM) -> dict[str, Estimator]:
    """Return the selected estimators, keyed by their text "NAME key=value ..."."""

    runs = {run: run.split() or [""] for run in args.estimator or [ebm.default_estimator]}
    for name, *_ in runs.values():
        choose("estimator", name, [*ESTIMATORS, ALL])
    if ALL in runs:
        runs = {name: [name] for name, kind in ESTIMATORS.items() if kind.supports(ebm.model)}
    kinds = {run: ESTIMATORS[name] for run, (name, *_) in runs.items()}
    settings = settings_of_each(kinds, args.estimator_args)
    estimators = {}
    for run, (name, *pairs) in runs.items():
        own = settings_of_each({run: kinds[run]}, pairs)[run]
        estimators[run] = make_estimator(name, settings[run] | own)
    return estimators


def main(argv: Sequence[str] | None = None) -> dict[str, Any] | None:
    """Evaluate a split; return the metrics on the main process, and None on others."""
    args = parse(Arguments, __doc__, argv)

    accelerator, ebm = open_model(args)
    estimators = make_estimators(args, ebm)
    data, levels = held_out(args, ebm)
    labels = labels_for(ebm.config, data, args.split)[: args.limit] if args.labels else None
    is_main = accelerator.is_main_process
    output = Output(args.output_dir / "bpd.json", args)
    output.data["images"] = data.summary()
    if is_main:
        print(data.describe(), file=sys.stderr)
    bits, results = {}, {}
    for name, estimator in estimators.items():
        bar = partial(tqdm, desc=name, disable=not is_main)
        bits[name], results[name] = bits_by_estimator(
            accelerator,
            ebm,
            levels,
            estimator,
            args.batch_size,
            args.repeats,
            seed=args.seed,
            wrap=bar,
            labels=labels,
        )
        if is_main:  # later estimators may take hours or fail
            with suppress(OSError):  # reported by ``save`` below
                output.write({"estimators": results})
    first = next(iter(results))
    figures = {
        **results[first],
        "estimator": first,
        "dequantisation": ebm.config.dequantisation,
        "split": args.split,
        "model": args.model,
        "estimators": results,
        "disagreements": disagreements(bits),
    }
    if is_main:
        output.save(figures)
        is_own = args.dataset in (None, ebm.config.dataset) and not args.labels
        is_default = not (args.estimator or args.estimator_args or args.t_margin)
        if is_own and is_default:  # the web app compares images with these
            save_bits(args.output_dir, ebm, bits[first], args.split)
        print(to_markdown([{"estimator": name, **row} for name, row in results.items()]))
        if len(results) > 1:
            print(to_markdown(figures["disagreements"]))
        warn_of_disagreements({name: row["bits_per_dim"] for name, row in results.items()})
    shut_down(accelerator)
    return figures if is_main else None


if __name__ == "__main__":
    raise SystemExit(run_script(main))

"""Compare the errors that estimators of log p state with the spread of repeats.

python evaluate/errors.py digits --estimator elbo path_integral time_integral --limit 16

Each image is evaluated with --num_seeds seeds. The table has the root mean squares of the spread
over seeds and of the stated error, in nats per image, and the share of evaluations whose distance
from the mean over seeds is within the error: 0.68 for a calibrated error. The errors of ``energy``
and ``amortised`` refer to ``elbo``; their distance is from its mean, if it is the first estimator.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import sqrt
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm

from ebm_app.cli import bpd
from ebm_app.cli.command_line import parse, run_script
from ebm_app.cli.held_out import held_out, open_model
from ebm_app.utils.fields import AtLeastTwo, configuration, setting
from ebm_app.utils.output import Output, to_markdown

#: Estimators that predict another estimator
PREDICTORS = ("energy", "amortised")


@configuration(kw_only=True)
class Arguments(bpd.Arguments):
    num_seeds: AtLeastTwo = setting("number of seeds", 20)
    output_dir: Path = setting("folder for the record", Path("runs/errors"))


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Evaluate every image with several seeds; return the table."""
    args = parse(Arguments, __doc__, argv)
    _, ebm = open_model(args)
    _, levels = held_out(args, ebm)
    output, table, first = Output(args.output_dir / "errors.json", args), [], None
    for name in bpd.make_estimators(args, ebm):
        results = []
        for seed in tqdm(range(args.seed, args.seed + args.num_seeds), desc=name):
            estimator = bpd.make_estimators(replace(args, seed=seed), ebm)[name]
            results.append(ebm.likelihood(levels, estimator, repeats=args.repeats, seed=seed))
        values = torch.stack([result.log_prob for result in results]).double()
        errors = torch.stack([result.error for result in results]).double()
        # unbiased: the mean of N seeds is closer to each of them than the truth
        distances = (values - values.mean(0)) * sqrt(args.num_seeds / (args.num_seeds - 1))
        spread = distances.square().mean().sqrt().item()
        if name in PREDICTORS and first is not None:
            distances = values - first
        first = values.mean(0) if first is None else first
        covered = (distances.abs() <= errors).double().mean().item()
        error = errors.square().mean().sqrt().item()
        table.append({"estimator": name, "spread": spread, "error": error, "covered": covered})
    print(to_markdown(table))
    output.save({"table": table})
    return {"table": table}


if __name__ == "__main__":
    raise SystemExit(run_script(main))

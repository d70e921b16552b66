"""Check a model against identities that hold for every exact one.

python evaluate/selftest.py digits
"""

from ebm_app.io.start import run_script  # isort: skip  before what takes seconds

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Le
from tqdm.auto import tqdm

from ebm_app.evaluation.checks import all_passed, as_record, describe
from ebm_app.evaluation.command_line import add_data_flags, held_out, open_model
from ebm_app.evaluation.selftest import SelfTestBudget, iterate_checks
from ebm_app.io.cli import Parser, flag
from ebm_app.io.fields import Steps
from ebm_app.io.output import Output
from ebm_app.likelihood import PFODEDensity
from ebm_app.likelihood.pf_ode import NumProbes

NumTimes = Annotated[int, Ge(2), Le(10_000)]
#: draws that are held in memory
NumReference = Annotated[int, Ge(2), Le(100_000)]


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the checks; their outcome is in the metrics, not in the exit code."""
    parser = Parser(__doc__)
    add_data_flags(parser)
    add, times = parser.add_argument, "times at which the mean time score is taken"
    add("--num_times", type=flag(NumTimes), default=32, help=times)
    add("--num_reference", type=flag(NumReference), default=1000, help="draws of N(0, I)")
    add("--pf_ode_steps", type=flag(Steps), default=20, help="steps of the probability-flow ODE")
    add("--num_probes", type=flag(NumProbes), default=2, help="probes of its divergence; 0: exact")
    add("--output_dir", default="runs/selftest", help="where record and plot go")
    parser.add_common()
    args = parser.parse_args(argv)
    pf_ode = PFODEDensity(num_steps=args.pf_ode_steps, num_probes=args.num_probes, seed=args.seed)
    budget = SelfTestBudget(args.num_times, args.num_reference, pf_ode, args.seed)
    _, ebm = open_model(args)
    levels = held_out(args, ebm)
    output = Output(Path(args.output_dir) / "selftest.json", vars(args))
    from ebm_app.evaluation.likelihood_plots import balance_figure  # a second to import

    total = budget.num_reports(len(levels))
    *_, report = tqdm(iterate_checks(ebm, levels, budget), desc="self-test", total=total)
    for check in report.checks:
        print(describe(check))
    metrics = {
        "passed": all_passed(report.checks),
        "checks": [as_record(check) for check in report.checks],
        "mean_time_score": {
            key: getattr(report.balance, key).tolist() for key in ("shares", "mean", "stderr")
        },
        "model": args.model,
    }
    with output.saving(metrics):
        balance_figure(report.balance).savefig(output.folder / "selftest.png", dpi=110)
    return metrics


if __name__ == "__main__":
    sys.exit(run_script(main))

"""Log ratios of distant densities: the paper's tables beside ours.

python evaluate/toy.py --quick
python evaluate/toy.py --problems gaussians_d10 --methods ctsm_v_time1 tsm_stein
torchrun --standalone --nproc_per_node 2 evaluate/toy.py    (every cell, on two processes)
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ebm_app.io.command_line import parse
from ebm_app.io.fields import configuration, setting
from ebm_app.io.start import run_script
from ebm_app.ratios.problems import TOY_PROBLEMS
from studies.ratio_tables import StudyBudget, StudyFlags, budget_of, chosen_cells, run_study

QUICK_PROBLEMS = ["gaussians_d10", "mixtures_k1"]
QUICK_METHODS = ["tsm_stein", "ctsm_time1", "ctsm_v_time1"]
QUICK = StudyBudget(num_seeds=2, num_points=2_000, iterations=400, learning_rates=(5e-3,))


@configuration(kw_only=True)
class Arguments(StudyFlags):
    """The command line."""

    output_dir: Path = setting("where runs and table go; it is resumed", Path("runs/toy"))


def main(argv: Sequence[str] | None = None) -> dict[str, Any] | None:
    """Run the cells and print the table; its rows, on the main process."""
    args = parse(Arguments, __doc__, argv)
    problems, methods = args.problems, args.methods
    if args.quick:
        problems, methods = problems or QUICK_PROBLEMS, methods or QUICK_METHODS
    cells = chosen_cells(problems, methods, list(TOY_PROBLEMS))
    return run_study(args, cells, budget_of(args, QUICK), "toy")


if __name__ == "__main__":
    sys.exit(run_script(main))

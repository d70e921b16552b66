"""Log ratios of distant densities: the paper's tables beside ours.

python evaluate/toy.py --quick
python evaluate/toy.py --problems gaussians_d10 --methods ctsm_v_time1 tsm_stein
torchrun --standalone --nproc_per_node 2 evaluate/toy.py    (every cell, on two processes)
"""

from ebm_app.io.start import run_script  # isort: skip  before what takes seconds

import sys
from collections.abc import Sequence
from typing import Any

from ebm_app.io.cli import Parser
from ebm_app.ratios.problems import TOY_PROBLEMS
from studies.ratio_tables import (
    StudyBudget,
    add_study_flags,
    budget_of,
    chosen_cells,
    run_study,
)

QUICK_PROBLEMS = ["gaussians_d10", "mixtures_k1"]
QUICK_METHODS = ["nce", "tsm_stein", "ctsm_time1", "ctsm_v_time1", "ctsm_v_mixture"]
QUICK = StudyBudget(num_seeds=2, num_points=2_000, iterations=400, learning_rates=(5e-3,))


def main(argv: Sequence[str] | None = None) -> dict[str, Any] | None:
    """Run the cells and print the table; its rows, on the main process."""
    parser = Parser(__doc__)
    add_study_flags(parser, "runs/toy")
    args = parser.parse_args(argv)
    problems, methods = args.problems, args.methods
    if args.quick:
        problems, methods = problems or QUICK_PROBLEMS, methods or QUICK_METHODS
    cells = chosen_cells(problems, methods, list(TOY_PROBLEMS))
    return run_study(args, cells, budget_of(args, QUICK), "toy", ["error"])


if __name__ == "__main__":
    sys.exit(run_script(main))

"""Log ratios of distant densities: the paper's tables beside ours.

python evaluate/toy.py --quick
python evaluate/toy.py --problems gaussians_d10 --methods ctsm_v_time1 tsm_stein
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ebm_app.cli.command_line import parse, run_script
from ebm_app.ratios.problems import TOY_PROBLEMS
from ebm_app.utils.fields import configuration, setting
from studies.ratio_tables import StudyFlags, run_study

QUICK = {
    "problems": ("gaussians_d10", "mixtures_k1"),
    "methods": ("tsm_stein", "ctsm_time1", "ctsm_v_time1"),
    "iterations": 400,
    "learning_rates": (5e-3,),
    "num_seeds": 2,
}


@configuration(kw_only=True)
class Arguments(StudyFlags):
    """The command line."""

    output_dir: Path = setting("where runs and table go; it is resumed", Path("runs/toy"))


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the cells and print the table; its rows."""
    return run_study(parse(Arguments, __doc__, argv), TOY_PROBLEMS, QUICK, "toy")


if __name__ == "__main__":
    sys.exit(run_script(main))

"""The paper's error bounds (Theorem 4, Proposition 5) beside the errors that they bound.

python evaluate/bounds.py --quick
"""

from ebm_app.io.start import run_script  # isort: skip  before what takes seconds

import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
from annotated_types import Ge, Le

from ebm_app.io.cli import Parser, flag, resolve_device
from ebm_app.io.output import Output
from studies.bounds.study import (
    proposition5_rows,
    proposition5_table,
    theorem4_rows,
    theorem4_table,
)

#: all draws are held in memory
NumDraws = Annotated[int, Ge(2), Le(100_000)]
NumExamples = Annotated[int, Ge(1), Le(100_000)]
NumSteps = Annotated[int, Ge(1), Le(10_000)]
QUICK = {
    "num_draws": 1000,
    "num_steps": [1, 4, 16, 64],
    "num_examples": [300, 1000, 3000],
    "replicates": 100,
}


def parse_args(argv: Sequence[str] | None) -> Namespace:
    """The command line."""
    parser = Parser(__doc__)
    add, steps = parser.add_argument_group("study").add_argument, [2**k for k in range(9)]
    add("--num_draws", type=flag(NumDraws), default=10_000, help="draws of the data for Theorem 4")
    add(
        "--num_steps", type=flag(NumSteps), nargs="+", default=steps, help="its numbers K of steps"
    )
    sizes = [300, 1000, 3000, 10_000]
    add(
        "--num_examples",
        type=flag(NumExamples),
        nargs="+",
        default=sizes,
        help="sizes N of Proposition 5",
    )
    add("--replicates", type=flag(NumDraws), default=400, help="data sets of each size")
    add = parser.add_argument_group("run").add_argument
    add("--quick", action="store_true", help="smaller defaults for all of these")
    add("--output_dir", default="runs/bounds", help="where record and plots go")
    parser.add_common()
    args = parser.parse_args(argv)
    if args.quick:
        parser.set_defaults(**QUICK)
        args = parser.parse_args(argv)
    args.num_steps, args.num_examples = sorted(set(args.num_steps)), sorted(set(args.num_examples))
    return args


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Both studies: their tables, record and plots."""
    args = parse_args(argv)
    # a second to import: --help does without
    from studies.bounds.plots import plot_proposition5, plot_theorem4

    torch.set_num_threads(1)  # the tensors are small: threads would only wait for each other
    device = resolve_device(args.device)
    output = Output(Path(args.output_dir) / "bounds.json", vars(args))
    table = {
        "theorem4": theorem4_rows(args.num_draws, args.num_steps, args.seed, device),
        "proposition5": proposition5_rows(
            args.num_draws, args.num_examples, args.replicates, args.seed, device
        ),
    }
    print(theorem4_table(table["theorem4"]), proposition5_table(table["proposition5"]), sep="\n\n")
    answer = {"table": table}
    with output.saving(answer):
        plot_theorem4(table["theorem4"], output.folder / "theorem4.png")
        plot_proposition5(table["proposition5"], output.folder / "proposition5.png")
    return answer


if __name__ == "__main__":
    sys.exit(run_script(main))

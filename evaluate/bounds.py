"""The paper's error bound (Theorem 4) beside the error that it bounds.

python evaluate/bounds.py --quick
"""

import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm

from ebm_app.io.command_line import CommonFlags, parse
from ebm_app.io.fields import configuration, setting
from ebm_app.io.output import Output
from ebm_app.io.processes import resolve_device
from ebm_app.io.records import to_dict
from ebm_app.io.start import run_script
from ebm_app.numerics.tensors import seeded
from ebm_app.paths import PATHS
from studies.bounds import GaussianMixture, kl_bound, lipschitz_constant, ripple
from studies.grid import to_markdown

#: draws of the data, and the numbers K of steps; a minute where quick
DRAWS, NUM_STEPS = 10_000, tuple(2**k for k in range(9))
QUICK_DRAWS, QUICK_STEPS = 1_000, (1, 4, 16, 64)
#: name -> means (K, D), standard deviations and weights of a mixture of Gaussians
PROBLEMS = {
    "shift": ([[1.0, -0.5]], (1.0,), (1.0,)),
    "narrow": ([[0.7, 0.7]], (0.6,), (1.0,)),
    "mixture": ([[-1.0, 0.5], [1.5, 0.5]], (0.6, 0.6), (0.3, 0.7)),
}
#: sizes of the error added to the time score
ERRORS = (0.0, 0.1)


@configuration(kw_only=True)
class Arguments(CommonFlags):
    """The command line."""

    quick: bool = setting("fewer draws and steps", False)
    output_dir: Path = setting("where the record goes", Path("runs/bounds"))


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Both sides of the bound for every problem, path, error of the score and number of steps."""
    args = parse(Arguments, __doc__, argv)
    torch.set_num_threads(1)  # the tensors are small: threads would only wait for each other
    device = resolve_device(args.device)
    num_draws, num_steps = (QUICK_DRAWS, QUICK_STEPS) if args.quick else (DRAWS, NUM_STEPS)
    output = Output(args.output_dir / "bounds.json", to_dict(args))
    rows = []
    for (name, problem), path in tqdm(list(product(PROBLEMS.items(), PATHS))):
        means, stds, weights = problem
        means = torch.tensor(means, dtype=torch.float64)
        problem = GaussianMixture(PATHS[path](), means, stds, weights)
        x = problem.draw(num_draws, seeded(device, args.seed, 0))
        constant = lipschitz_constant(problem, x)
        for error, steps in product(ERRORS, num_steps):
            found = kl_bound(problem, x, constant, steps, ripple(error))
            rows.append({"problem": name, "path": path, "error": error, **found})
    answer = {"table": rows}
    output.save(answer)
    print(to_markdown(rows))
    return answer


if __name__ == "__main__":
    sys.exit(run_script(main))

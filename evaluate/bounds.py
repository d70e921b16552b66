"""The paper's error bounds (Theorem 4, Proposition 5) beside the errors that they bound.

python evaluate/bounds.py --quick
"""

from ebm_app.io.start import run_script  # isort: skip  before what takes seconds

import math
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tqdm.auto import tqdm

from ebm_app.io.command_line import CommonFlags, parse
from ebm_app.io.errors import UserError
from ebm_app.io.fields import configuration, setting
from ebm_app.io.output import Output
from ebm_app.io.processes import resolve_device
from ebm_app.io.records import to_dict
from ebm_app.numerics.tensors import seeded, standard_error
from ebm_app.objectives.weighting import WEIGHTINGS
from ebm_app.paths import PATHS, LinearVPPath
from studies.grid import to_markdown
from studies.proposition5 import TARGETS, GaussianFamily, Regression, ScoreErrors, fit_replicates
from studies.theorem4 import GaussianMixture, Ripple, first_order, kl_bound, lipschitz_constant

Rows = list[dict[str, Any]]


class Budget(NamedTuple):
    """``num_draws`` of the data and the numbers K of steps of Theorem 4; the sizes N of the data
    sets of Proposition 5, and how many of each."""

    num_draws: int = 10_000
    num_steps: tuple[int, ...] = tuple(2**k for k in range(9))
    num_examples: tuple[int, ...] = (300, 1000, 3000, 10_000)
    replicates: int = 400


QUICK = Budget(1000, (1, 4, 16, 64), (300, 1000, 3000), 100)
#: name -> means (K, D), standard deviations and weights of a mixture of Gaussians
PROBLEMS = {
    "shift": ([[1.0, -0.5]], (1.0,), (1.0,)),
    "narrow": ([[0.7, 0.7]], (0.6,), (1.0,)),
    "mixture": ([[-1.0, 0.5], [1.5, 0.5]], (0.6, 0.6), (0.3, 0.7)),
}
#: sizes of the error added to the time score
ERRORS = (0.0, 0.1)
#: (mu_1, mu_2, log s) that Proposition 5 estimates, the margin of its times, and its grid
THETA, MARGIN, GRID = (1.0, -0.5, math.log(0.8)), 0.05, 16


@configuration(kw_only=True)
class Arguments(CommonFlags):
    """The command line."""

    quick: bool = setting("fewer draws: a minute", False)
    output_dir: Path = setting("where record and plots go", Path("runs/bounds"))


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Both studies: their tables, record and plots."""
    args = parse(Arguments, __doc__, argv)
    torch.set_num_threads(1)  # the tensors are small: threads would only wait for each other
    budget, device = QUICK if args.quick else Budget(), resolve_device(args.device)
    output = Output(args.output_dir / "bounds.json", to_dict(args))
    table = {
        "theorem4": theorem4_rows(budget, args.seed, device),
        "proposition5": proposition5_rows(budget, args.seed, device),
    }
    for name, rows in table.items():
        print(f"{name}\n\n{to_markdown(rows)}\n")
    from studies.bounds_plots import plot_proposition5, plot_theorem4  # a second to import

    answer = {"table": table}
    with output.saving(answer):
        plot_theorem4(table["theorem4"], output.folder / "theorem4.png")
        plot_proposition5(table["proposition5"], output.folder / "proposition5.png")
    return answer


def theorem4_rows(budget: Budget, seed: int = 0, device: str = "cpu") -> Rows:
    """Both sides of Theorem 4 for every problem, path, error of the score and number of steps."""
    rows = []
    for name, path_name in tqdm(list(product(PROBLEMS, PATHS)), desc="Theorem 4"):
        means, stds, weights = PROBLEMS[name]
        means = torch.tensor(means, dtype=torch.float64)
        problem = GaussianMixture(PATHS[path_name](), means, stds, weights)
        x = problem.draw(budget.num_draws, seeded(device, seed, 0))
        constant = lipschitz_constant(problem, x)
        shared = {
            "lipschitz_square": constant.square().mean().item(),
            "first_order": first_order(problem, x).item(),
        }
        for error, steps in product(ERRORS, budget.num_steps):
            found = kl_bound(problem, x, constant, steps, Ripple(error))
            place = {"problem": name, "path": path_name, "error": error}
            rows.append({**place, **found, **shared})
    return rows


def proposition5_rows(budget: Budget, seed: int = 0, device: str = "cpu") -> Rows:
    """Errors of fitted time scores beside their limit, for every weighting, objective and size;
    the data sets are the same for all.

    Raises:
        UserError: where fewer than two fits have converged.
    """
    family = GaussianFamily(LinearVPPath(), MARGIN)
    theta = torch.tensor(THETA, dtype=torch.float64, device=device)
    errors, problem = ScoreErrors(family, theta, GRID), family.data(theta)
    x = problem.draw(budget.num_draws, seeded(device, seed, 0))
    discretisation = kl_bound(problem, x, lipschitz_constant(problem, x), GRID)["discretisation"]
    rows = []
    for weighting, objective, size in product(WEIGHTINGS, TARGETS, budget.num_examples):
        regression = Regression(objective, family, WEIGHTINGS[weighting]())
        limit = regression.asymptotics(theta, *family.draw_rule(theta))
        e = errors.expected_square(limit.covariance).item()
        generator = seeded(device, seed, size)
        fits = fit_replicates(regression, theta, size, budget.replicates, generator)
        fitted = int(fits.converged.sum())
        if fitted < 2:
            raise UserError(f"{objective}, {weighting}: {fitted} fits to {size} draws converged")
        square, kl = errors.measured(fits.theta[fits.converged])
        row = {
            "objective": objective,
            "weighting": weighting,
            "num_examples": size,
            "failed": budget.replicates - fitted,
            "e": e,
            "scaled_error": size * square.mean().item(),
            "scaled_error_stderr": size * standard_error(square).item(),
            "kl_square": kl.square().mean().item(),
            "kl_square_stderr": standard_error(kl.square()).item(),
            "bound": discretisation + 2 * e / size,
        }
        rows.append(row)
    return rows


if __name__ == "__main__":
    sys.exit(run_script(main))

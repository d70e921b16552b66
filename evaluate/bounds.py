"""The paper's error bounds (Theorem 4, Proposition 5) beside the errors that they bound.

python evaluate/bounds.py --quick
"""

import math
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from tqdm.auto import tqdm

from ebm_app.io.command_line import CommonFlags, parse
from ebm_app.io.errors import UserError
from ebm_app.io.fields import configuration, setting
from ebm_app.io.output import Output
from ebm_app.io.processes import resolve_device
from ebm_app.io.records import to_dict
from ebm_app.io.start import run_script
from ebm_app.io.writing import save_figure
from ebm_app.numerics.tensors import seeded, standard_error
from ebm_app.paths import PATHS, LinearVPPath
from studies.bounds import (
    OBJECTIVES,
    GaussianMixture,
    Regression,
    ScoreErrors,
    kl_bound,
    lipschitz_constant,
    ripple,
)
from studies.grid import to_markdown

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Rows = list[dict[str, Any]]


class Budget(NamedTuple):
    """``num_draws`` of the data and the numbers K of steps of Theorem 4; the sizes N of the data
    sets of Proposition 5, and how many of each."""

    num_draws: int = 10_000
    num_steps: tuple[int, ...] = tuple(2**k for k in range(9))
    num_examples: tuple[int, ...] = (300, 1000, 3000, 10_000)
    replicates: int = 100


QUICK = Budget(1000, (1, 4, 16, 64), (300, 1000, 3000), 50)
#: name -> means (K, D), standard deviations and weights of a mixture of Gaussians
PROBLEMS = {
    "shift": ([[1.0, -0.5]], (1.0,), (1.0,)),
    "narrow": ([[0.7, 0.7]], (0.6,), (1.0,)),
    "mixture": ([[-1.0, 0.5], [1.5, 0.5]], (0.6, 0.6), (0.3, 0.7)),
}
#: sizes of the error added to the time score
ERRORS = (0.0, 0.1)
#: (mu_1, mu_2, log s) that Proposition 5 estimates, and its grid
THETA, GRID = (1.0, -0.5, math.log(0.8)), 16


@configuration(kw_only=True)
class Arguments(CommonFlags):
    """The command line."""

    quick: bool = setting("fewer draws: a minute", False)
    output_dir: Path = setting("where record and plot go", Path("runs/bounds"))


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Both studies: their tables, record and plot."""
    args = parse(Arguments, __doc__, argv)
    torch.set_num_threads(1)  # the tensors are small: threads would only wait for each other
    budget, device = QUICK if args.quick else Budget(), resolve_device(args.device)
    output = Output(args.output_dir / "bounds.json", to_dict(args))
    table = {
        "theorem4": theorem4_rows(budget, args.seed, device),
        "proposition5": proposition5_rows(budget, args.seed, device),
    }
    answer = {"table": table}
    with output.saving(answer):
        plot(table, output.folder / "bounds.png")
    for name, rows in table.items():
        print(f"{name}\n\n{to_markdown(rows)}\n")
    return answer


def theorem4_rows(budget: Budget, seed: int = 0, device: str = "cpu") -> Rows:
    """Both sides of Theorem 4 for every problem, path, error of the score and number of steps."""
    rows = []
    for name, path in tqdm(list(product(PROBLEMS, PATHS)), desc="Theorem 4"):
        means, stds, weights = PROBLEMS[name]
        means = torch.tensor(means, dtype=torch.float64)
        problem = GaussianMixture(PATHS[path](), means, stds, weights)
        x = problem.draw(budget.num_draws, seeded(device, seed, 0))
        constant = lipschitz_constant(problem, x)
        for error, steps in product(ERRORS, budget.num_steps):
            found = kl_bound(problem, x, constant, steps, ripple(error))
            rows.append({"problem": name, "path": path, "error": error, **found})
    return rows


def proposition5_rows(budget: Budget, seed: int = 0, device: str = "cpu") -> Rows:
    """Errors of fitted time scores beside their limit, for every objective and size; the data sets
    are the same for both.

    Raises:
        UserError: where fewer than two fits have converged.
    """
    theta = torch.tensor(THETA, dtype=torch.float64, device=device)
    rows = []
    for objective, size in product(OBJECTIVES, budget.num_examples):
        regression = Regression(objective, LinearVPPath())
        errors, problem = ScoreErrors(regression, theta, GRID), regression.data(theta)
        x = problem.draw(budget.num_draws, seeded(device, seed, 0))
        bound = kl_bound(problem, x, lipschitz_constant(problem, x), GRID)["discretisation"]
        generator, fits = seeded(device, seed, size), []
        for _ in tqdm(range(budget.replicates), desc=f"{objective}, N = {size}", leave=False):
            fits.append(regression.fit(theta, regression.draw(theta, size, generator)))
        converged = [fit for fit in fits if fit is not None]
        if len(converged) < 2:
            raise UserError(f"{objective}: {len(converged)} fits to {size} draws converged")
        square, kl = errors.measured(torch.stack(converged))
        e = errors.limit().item()
        row = {
            "objective": objective,
            "num_examples": size,
            "failed": len(fits) - len(converged),
            "e": e,
            "scaled_error": size * square.mean().item(),
            "scaled_error_stderr": size * standard_error(square).item(),
            "kl_square": kl.square().mean().item(),
            "kl_square_stderr": standard_error(kl.square()).item(),
            "bound": bound + 2 * e / size,
        }
        rows.append(row)
    return rows


def plot(table: dict[str, Rows], target: Path) -> None:
    """Left: |KL| and the root of Theorem 4's bound (dashed) against K, on the first path. Right: N
    times the squared error of fitted time scores and its limit e (lines) against N."""
    import pandas as pd
    from matplotlib.figure import Figure  # a second to import: --help does without

    figure = Figure(figsize=(9.5, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    bounds, fits = (pd.DataFrame(rows) for rows in table.values())
    of_path = bounds[bounds["path"] == bounds["path"].iloc[0]]
    for color, ((problem, error), part) in enumerate(of_path.groupby(["problem", "error"])):
        label = f"{problem}, error {error:g}" if error else f"{problem}, exact score"
        points(left, part, "num_steps", part["kl"].abs(), part["kl_stderr"], color, label)
        left.plot(part["num_steps"], part["bound"] ** 0.5, "--", color=f"C{color}")
    for color, (objective, part) in enumerate(fits.groupby("objective")):
        error = part["scaled_error"], part["scaled_error_stderr"]
        points(right, part, "num_examples", *error, color, objective)
        right.axhline(part["e"].iloc[0], color=f"C{color}", lw=1)
    left.set(xlabel="steps K", ylabel="nats", title="Theorem 4: |KL|, dashed: its bound")
    right.set(xlabel="examples N", title="Proposition 5: N E[(s_hat - s)²], lines: e")
    save_figure(figure, target)


def points(
    axes: "Axes", part: Any, x: str, values: Any, errors: Any, color: int, label: str
) -> None:
    """Values with their errors on logarithmic axes."""
    style = {"fmt": "o", "ms": 4, "capsize": 2, "color": f"C{color}", "label": label}
    axes.errorbar(part[x], values, errors, **style)
    axes.set(xscale="log", yscale="log")
    axes.legend(fontsize="x-small")


if __name__ == "__main__":
    sys.exit(run_script(main))

"""Theorem 4 and Proposition 5, measured: rows of both sides of each bound, and tables of them."""

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import torch
from tqdm.auto import tqdm

from ebm_app.io.errors import UserError
from ebm_app.numerics.tensors import seeded, standard_error
from ebm_app.objectives.weighting import WEIGHTINGS
from ebm_app.paths import PATHS, LinearVPPath, PathSample
from studies.bounds.proposition5 import TARGETS, Fits, GaussianFamily, Regression, ScoreErrors, fit
from studies.bounds.theorem4 import (
    GaussianMixture,
    Ripple,
    first_order,
    kl_bound,
    lipschitz_constant,
)

Row = dict[str, Any]
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


def theorem4_rows(
    num_draws: int, num_steps: Sequence[int], seed: int = 0, device: str = "cpu"
) -> list[Row]:
    """Both sides of Theorem 4 for every problem, path, error of the score and number of steps."""
    rows = []
    for name, path_name in tqdm(list(product(PROBLEMS, PATHS)), desc="Theorem 4"):
        means, stds, weights = PROBLEMS[name]
        means = torch.tensor(means, dtype=torch.float64)
        problem = GaussianMixture(PATHS[path_name](), means, stds, weights)
        x = problem.draw(num_draws, seeded(device, seed, 0))
        constant = lipschitz_constant(problem, x)
        shared = {
            "lipschitz_square": constant.square().mean().item(),
            "first_order": first_order(problem, x).item(),
        }
        for error, steps in product(ERRORS, num_steps):
            found = kl_bound(problem, x, constant, steps, Ripple(error))
            derived = {key: getattr(found, key) for key in ("bound", "triangle_bound", "ratio")}
            place = {"problem": name, "path": path_name, "error": error}
            rows.append({**place, **found._asdict(), **derived, **shared})
    return rows


def proposition5_rows(
    num_draws: int,
    num_examples: Sequence[int],
    replicates: int,
    seed: int = 0,
    device: str = "cpu",
) -> list[Row]:
    """Errors of fitted time scores beside their limit, for every weighting, objective and size;
    the data sets are the same for all."""
    family = GaussianFamily(LinearVPPath(), MARGIN)
    theta = torch.tensor(THETA, dtype=torch.float64, device=device)
    errors, problem = ScoreErrors(family, theta, GRID), family.data(theta)
    x = problem.draw(num_draws, seeded(device, seed, 0))
    discretisation = kl_bound(problem, x, lipschitz_constant(problem, x), GRID).discretisation
    rows = []
    for weighting, objective in product(WEIGHTINGS, TARGETS):
        regression = Regression(objective, family, WEIGHTINGS[weighting]())
        limit = regression.asymptotics(theta, *family.draw_rule(theta))
        e = errors.expected_square(limit.covariance).item()
        for size in num_examples:
            generator = seeded(device, seed, size)
            name = f"{objective}, {weighting}, N = {size}"
            fits = fit_replicates(regression, theta, size, replicates, generator, name)
            fitted = int(fits.converged.sum())
            if fitted < 2:
                raise UserError(f"{name}: {fitted} fits have converged, raise --num_examples")
            square, kl = errors.measured(fits.theta[fits.converged])
            row = {
                "objective": objective,
                "weighting": weighting,
                "num_examples": size,
                "num_steps": GRID,
                "fitted": fitted,
                "failed": replicates - fitted,
                "e": e,
                "scaled_error": size * square.mean().item(),
                "scaled_error_stderr": size * standard_error(square).item(),
                "kl_square": kl.square().mean().item(),
                "kl_square_stderr": standard_error(kl.square()).item(),
                "bound": discretisation + 2 * e / size,
            }
            rows.append(row)
    return rows


def fit_replicates(
    regression: Regression,
    theta: torch.Tensor,
    num_examples: int,
    num: int,
    generator: torch.Generator,
    name: str,
) -> Fits:
    """theta_hat of ``num`` data sets of independent draws, a few at a time."""
    size, fits = max(1, 100_000 // num_examples), []
    for start in tqdm(range(0, num, size), desc=name, leave=False):
        shape = (min(size, num - start), num_examples)
        sample = regression.family.draw(theta, math.prod(shape), generator)
        samples = PathSample(*(part.unflatten(0, shape) for part in sample))
        fits.append(fit(regression, theta, samples))
    return Fits(*(torch.cat(parts) for parts in zip(*fits, strict=True)))


def theorem4_table(rows: Sequence[Row]) -> str:
    """A line for every problem, path and error, a column for every number of steps."""
    import pandas as pd  # half a second to import

    frame = pd.DataFrame(rows)
    frame["E[L^2]^.5"] = (frame["lipschitz_square"] ** 0.5).round(2)
    index = ["problem", "path", "error", "E[L^2]^.5"]
    table = frame.pivot_table("ratio", index, "num_steps", sort=False)
    text = table.to_string(float_format="{:.2f}".format, sparsify=False)
    return f"Theorem 4: sqrt(bound) / |KL| at K steps\n{text}"


def proposition5_table(rows: Sequence[Row]) -> str:
    """A line for every weighting, objective and number of examples."""
    import pandas as pd  # half a second to import

    frame = pd.DataFrame(rows)
    frame["E[KL^2]^.5"], frame["its bound"] = frame["kl_square"] ** 0.5, frame["bound"] ** 0.5
    columns = ["weighting", "objective", "num_examples", "scaled_error", "scaled_error_stderr"]
    columns += ["e", "E[KL^2]^.5", "its bound", "failed"]
    text = frame[columns].to_string(float_format="{:.4g}".format, index=False)
    return f"Proposition 5: N times the squared error of the time score, and its limit e\n{text}"

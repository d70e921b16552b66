r"""Mutual information of paired rows, in nats, with an interval.

    I(X; Y) = KL(p(x, y) || p(x) p(y)) = E_{p(x, y)} log p(x, y) / (p(x) p(y)).

A classifier separates pairs (x_i, y_i) from pairs of different rows of the same fold. Columns are
replaced by the normal scores of their ranks, which leaves I unchanged.

Sources: Belghazi et al. 2018, arXiv:1801.04062; Czyz et al. 2023, arXiv:2306.11078, for the
examples.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import scipy
import torch
from torch import Tensor

from ebm_app.ratios.classifier import classify
from ebm_app.ratios.cross_fit import CrossFit, Estimate, Sample
from ebm_app.ratios.rows import as_columns, assign_folds
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import Seed, Steps, check_argument
from ebm_app.utils.random import make_generator

#: Number of pairs with a different row for each row
NUM_SHUFFLES = 12


def mutual_information(
    x: Any, y: Any, num_folds: int = 5, steps: int = 1_000, random_state: int = 0
) -> Estimate:
    """Estimate I(X; Y) in nats from independent pairs of rows.

    Args:
        x, y: arrays or data frames of numbers, (N, dx) and (N, dy), or (N,) for one column; row i
            of both is one draw of (X, Y).
        num_folds: K, at least 3.
        steps: max training steps of each network.
        random_state: seed of folds, weights and batches.

    >>> numbers = np.random.default_rng(0)
    >>> x = numbers.standard_normal(1_000)
    >>> y = 0.8 * x + 0.6 * numbers.standard_normal(1_000)  # -1/2 log(1 - 0.8^2) = 0.51 nats
    >>> estimate = mutual_information(x, y)
    >>> estimate.interval[0] < 0.51 < estimate.interval[1], estimate.stderr < 0.05
    (True, True)

    Raises:
        UserError: for values that are not real numbers, missing or infinite; for constant columns,
            a column of X that is a monotone function of one of Y, and fewer than 5 distinct rows
            per fold.
    """
    return InformationFit(x, y, num_folds, steps, random_state).result()


class InformationFit(CrossFit):
    """Cross-fitting of ``mutual_information``, with the same arguments."""

    what = "mutual information"

    def __init__(
        self, x: Any, y: Any, num_folds: int = 5, steps: int = 1_000, random_state: int = 0
    ) -> None:
        import pandas as pd  # takes half a second to import

        learn = partial(classify, num_steps=check_argument(Steps, "steps", steps))
        generator = make_generator("cpu", check_argument(Seed, "random_state", random_state))
        x, y = as_columns(x, "x"), as_columns(y, "y")
        if len(x) != len(y):
            raise UserError(
                f"x has {len(x)} rows and y has {len(y)}. Pass one row of y for each row of x."
            )
        pairs, dim_x = pd.concat([x, y], axis=1), x.shape[1]
        fold, group = assign_folds(pairs, "x with y", num_folds, generator)
        scores = normal_scores(pairs.to_numpy())
        check_copies(scores, dim_x, pairs.columns)
        scores = torch.from_numpy(scores)
        first, second = _different_rows(fold, num_folds, generator)
        shuffled = torch.cat([scores[first, :dim_x], scores[second, dim_x:]], 1)
        units = torch.stack([group[first], group[second]], 1)
        super().__init__(
            Sample(shuffled, fold[first], units),
            Sample(scores, fold, group[:, None]),
            partial(learn, blocks=[slice(0, dim_x), slice(dim_x, None)]),
            num_folds,
            generator,
        )


def check_copies(scores: np.ndarray, dim_x: int, names: Sequence[Any]) -> None:
    """Raise a UserError if a continuous column of X is a monotone function of a column of Y, so
    that I(X; Y) is infinite. ``scores`` (N, dx + dy) are those of ``normal_scores``."""
    correlation = np.corrcoef(scores.T)[:dim_x, dim_x:]
    for i, j in np.argwhere(abs(correlation) > 1 - 1e-9):
        if 2 * len(np.unique(scores[:, i])) > len(scores):
            raise UserError(
                f"Columns '{names[i]}' of x and '{names[dim_x + j]}' of y are monotone functions "
                "of each other, so the mutual information is infinite. Remove one of them."
            )


def normal_scores(x: np.ndarray) -> np.ndarray:
    """Return Phi^-1(r / (N + 1)) of the ranks r = 1..N of each column: (N, d) -> (N, d). Equal
    values share their mean rank."""
    return scipy.special.ndtri(scipy.stats.rankdata(x, axis=0) / (len(x) + 1))


def _different_rows(
    fold: Tensor, num_folds: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return indices of pairs of different rows of a fold, up to ``NUM_SHUFFLES`` per row."""
    first, second = [], []
    for number in range(num_folds):
        rows = (fold == number).nonzero().flatten()
        rows = rows[torch.randperm(len(rows), generator=generator)]
        shifts = torch.randperm(len(rows) - 1, generator=generator)[:NUM_SHUFFLES] + 1
        first += [rows] * len(shifts)
        second += [rows.roll(-shift) for shift in shifts.tolist()]
    return torch.cat(first), torch.cat(second)


#: Name -> I(X; Y) in nats, and the correlation and the number of columns of ``draw_example``
EXAMPLES: dict[str, tuple[float, float, int]] = {
    "normal_1x1": (-math.log(1 - 0.75**2) / 2, 0.75, 1),
    "sparse_5x5": (-math.log(1 - 0.8**2), 0.8, 5),
}


def draw_example(name: str, num: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw normal X and Y (N, d) float64, whose first two columns X_i and Y_i are correlated."""
    _, rho, dim = EXAMPLES[name]
    x, y = (torch.randn(num, dim, generator=generator, dtype=torch.float64) for _ in "xy")
    y[:, :2] = rho * x[:, :2] + math.sqrt(1 - rho**2) * y[:, :2]
    return x, y

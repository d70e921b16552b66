"""Log ratio of the densities of two samples, by classification."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from ebm_app.ratios.classifier import classify
from ebm_app.ratios.cross_fit import CrossFit, Learner, RatioEstimate, Sample
from ebm_app.ratios.rows import as_columns, assign_folds, check_columns
from ebm_app.utils.fields import Seed, Steps, check_argument
from ebm_app.utils.random import make_generator


def log_density_ratio(
    x0: Any, x1: Any, num_folds: int = 5, steps: int = 1_000, random_state: int = 0
) -> RatioEstimate:
    """Estimate log p_1 / p_0 from independent rows of both densities.

    A classifier separates the samples. If they hardly overlap, use ``CTSMRatio``.

    Args:
        x0, x1: arrays or data frames of numbers, (N0, D) and (N1, D), or (N,) for one column.
        num_folds: K, at least 3.
        steps: max training steps of each network.
        random_state: seed of folds, weights and batches.

    >>> generator = torch.Generator().manual_seed(0)
    >>> x0, x1 = (torch.randn(900, 2, generator=generator) + shift for shift in (0, 0.5))
    >>> ratio = log_density_ratio(x0, x1)  # (x_1 + x_2) / 2 - 1 / 4
    >>> abs(ratio.log_ratio([[1.0, 1.0]]).item() - 0.75) < 0.3
    True
    >>> ratio.interval[0] < 0.25 < ratio.interval[1]  # KL(p_1 || p_0)
    True

    Raises:
        UserError: for values that are not real numbers, missing or infinite; for columns that are
            constant or differ between the samples; for fewer than 5 distinct rows per fold.
    """
    learn = partial(classify, num_steps=check_argument(Steps, "steps", steps))
    return RatioFit(x0, x1, learn, num_folds, random_state).result()


class RatioFit(CrossFit):
    """Cross-fitted log ratio of two samples, with the arguments and errors of
    ``log_density_ratio``. Columns are standardised for the learner."""

    def __init__(
        self, x0: Any, x1: Any, learn: Learner, num_folds: int, random_state: int
    ) -> None:
        generator = make_generator("cpu", check_argument(Seed, "random_state", random_state))
        sides = {what: as_columns(x, what) for what, x in (("x0", x0), ("x1", x1))}
        self.columns = sides["x0"].columns
        check_columns(sides["x1"].columns, self.columns)
        folds = [assign_folds(side, what, num_folds, generator) for what, side in sides.items()]
        rows = [torch.tensor(side.to_numpy()).contiguous() for side in sides.values()]
        self.centre = (rows[0].mean(0) + rows[1].mean(0)) / 2
        self.scale = ((rows[0].var(0) + rows[1].var(0)) / 2).sqrt()
        first = len(rows[0])
        samples = [
            Sample(self._scaled(x), fold, number * first + group[:, None])
            for number, (x, (fold, group)) in enumerate(zip(rows, folds, strict=True))
        ]
        super().__init__(*samples, learn, num_folds, generator)

    def result(self) -> RatioEstimate:
        """Train the remaining folds and return the estimate."""
        return RatioEstimate(
            **vars(super().result()),
            mean_ratio=lambda x: self.mean_ratio(self._scaled(x)),
            columns=self.columns,
        )

    def _scaled(self, x: Tensor) -> Tensor:
        return (x - self.centre) / self.scale

"""The log ratio of the densities of two samples, by classification."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ebm_app.ratios.classifier import NetworkRatio
from ebm_app.ratios.cross_fit import CrossFit, Learned, Learner, NumFolds, RatioEstimate, Sample
from ebm_app.ratios.rows import Columns, assign_folds
from ebm_app.utils.fields import Seed, Steps, check_argument
from ebm_app.utils.random import make_generator


def log_density_ratio(
    x0: Any, x1: Any, num_folds: int = 5, steps: int = 1_000, random_state: int = 0
) -> RatioEstimate:
    """Estimate log p_1 / p_0 from independent rows of both densities.

    A classifier tells the samples apart. If they hardly overlap, use ``CTSMRatio``.

    Args:
        x0, x1: arrays or data frames of numbers, (N0, D) and (N1, D), or (N,) for one column.
        num_folds: K, at least 3. steps: max training steps of each network.
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
            constant or differ between the samples; for fewer than 5 distinct rows a fold.
    """
    learn = partial(classify, num_steps=check_argument(Steps, "steps", steps))
    estimation = RatioFit(x0, x1, learn, num_folds, random_state)
    for _ in estimation.run():
        pass
    return estimation.result()


class RatioFit(CrossFit):
    """Cross-fitted log ratio of two samples: iterate ``run``, then call ``result``. Arguments and
    errors as of ``log_density_ratio``; learners get standardised columns."""

    def __init__(
        self, x0: Any, x1: Any, learn: Learner, num_folds: int, random_state: int
    ) -> None:
        num_folds = check_argument(NumFolds, "num_folds", num_folds)
        generator = make_generator("cpu", check_argument(Seed, "random_state", random_state))
        self.columns = Columns.of(x0, "x0")
        sides = self.columns, Columns.of(x1, "x1")
        sides[0].check_same(sides[1])
        rows = [torch.from_numpy(side.values) for side in sides]
        folds = [assign_folds(side, num_folds, generator) for side in sides]
        self.centre = (rows[0].mean(0) + rows[1].mean(0)) / 2
        self.scale = ((rows[0].var(0) + rows[1].var(0)) / 2).sqrt()
        first = len(rows[0])
        samples = [
            Sample(self._scaled(x), fold, number * first + group[:, None])
            for number, (x, (fold, group)) in enumerate(zip(rows, folds, strict=True))
        ]
        super().__init__(*samples, first + len(rows[1]), learn, num_folds, generator)

    def result(self) -> RatioEstimate:
        """The estimate, after ``run``."""
        r0, r1 = self.held_out
        return RatioEstimate(
            **self.figures(),
            log_ratio0=r0,
            log_ratio1=r1,
            mean_ratio=lambda x: self.mean_ratio(self._scaled(x)),
            columns=self.columns,
        )

    def _scaled(self, x: Tensor) -> Tensor:
        return (x - self.centre) / self.scale


def classify(
    train: Sequence[Tensor],
    selection: Sequence[Tensor],
    generator: torch.Generator,
    num_steps: int,
) -> Learned:
    """Learn a log ratio by classification; see ``NetworkRatio.train``."""
    return NetworkRatio.train(train, selection, [slice(None)], num_steps, generator)

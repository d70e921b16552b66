r"""Mutual information of data, with an interval, from log ratios learned on other rows.

    I(X; Y) = E_{p(x, y)} log p(x, y) / (p(x) p(y)),   in nats.

The rows are cut into K folds. The log ratio at a fold is learned from the K - 1 others, by
classifiers over the Student-t copula of ranks, and the Donsker-Varadhan bound of the fold is taken
with it: a normalised estimate that too few rows make too small. To see by how much, the same is
done with ratios of a single fold. If what is missing falls as 1/rows,

    I = B_{K-1} + (B_{K-1} - B_1) / (K - 2),

with B_k the bound by ratios of k folds, averaged over the rows. Both a learned ratio and nearest
neighbours find too little of fine structure. So, in few dimensions, half of what these find beyond
I is added to it. The error holds the influence of every row on I, copies of a row being one, half
of what I adds to B_{K-1}, and the other half of what neighbours find.

>>> import numpy as np
>>> from ebm_app import mutual_information
>>> numbers = np.random.default_rng(0)
>>> x = numbers.standard_normal(1_000)
>>> y = 0.8 * x + 0.6 * numbers.standard_normal(1_000)  # -1/2 log(1 - 0.8^2) = 0.51 nats
>>> found = mutual_information(x, y)
>>> found.interval[0] < 0.51 < found.interval[1], found.stderr < 0.05
(True, True)

Sources: Donsker and Varadhan 1983, and Poole et al. 2019, arXiv:1905.06922, for the bounds;
Schucany, Gray and Owen, J. Am. Stat. Assoc. 66, 1971, for the correction (generalised jackknife);
Gao, Ver Steeg and Galstyan 2015, arXiv:1411.2003, on what nearest neighbours miss.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ebm_app.io.errors import UserError
from ebm_app.numerics.tensors import seeded
from ebm_app.tabular.classifier import ClassifierTraining
from ebm_app.tabular.columns import check_pair
from ebm_app.tabular.information import MutualInformation, combined
from ebm_app.tabular.lower_bounds import PairRatios, donsker_varadhan
from ebm_app.tabular.neighbours import neighbour_information
from ebm_app.tabular.npy import as_columns, column_labels
from ebm_app.tabular.pair_classifiers import Fit, PairClassifiers, Pairs
from ebm_app.tabular.rank_columns import prepared, row_groups
from ebm_app.tabular.t_copula import TCopula

#: streams of random numbers
FOLDS, BATCHES, SHUFFLES = range(3)
#: with fewer rows of a fold for each column, the correlation of the copula is shrunk
ROWS_PER_COLUMN = 10
#: nearest neighbours are asked in few dimensions
MAX_NEIGHBOUR_DIM = 6


@dataclass(frozen=True)
class MISettings:
    """How much work an estimate is.

    Args:
        num_folds: K, parts of the rows, at least 3.
        num_members: classifiers whose log ratios are averaged, of other weights and batches.
        validation_share: of the rows learned from, by which the step of least loss is found;
            ``min_validation`` rows, if half of them are as many.
        num_shuffles: shuffled pairs for each row of a fold, for the normaliser.
        training: of the classifiers.

    Raises:
        UserError: for fewer than 3 folds, no member or no shuffle.
    """

    num_folds: int = 3
    num_members: int = 2
    validation_share: float = 0.15
    min_validation: int = 100
    num_shuffles: int = 20
    training: ClassifierTraining = field(default_factory=ClassifierTraining)

    def __post_init__(self) -> None:
        if self.num_folds < 3 or min(self.num_members, self.num_shuffles) < 1:
            raise UserError(
                "too little work is asked for: give 3 folds, 1 member and 1 shuffle at least"
            )


class Progress(NamedTuple):
    """``step`` of ``num_steps`` at most, and the bound so far, in nats: that of the rows which
    choose the step."""

    step: int
    num_steps: int
    so_far: float


def mutual_information(
    x: Any, y: Any, settings: MISettings = MISettings(), random_state: int = 0
) -> MutualInformation:
    """I(X; Y) in nats from independent rows of both.

    Args:
        x, y: arrays or data frames of numbers, (N, dx) and (N, dy), or (N,) for one column; row i
            of both is one draw of (X, Y). Columns of few values are discrete.
        settings: how much work the estimate is.
        random_state: seed of the folds, weights and batches.

    >>> import numpy as np
    >>> numbers = np.random.default_rng(0)
    >>> x, y = numbers.integers(0, 2, (2, 300))  # independent
    >>> found = mutual_information(x, y)
    >>> found.discrete, found.interval[0] < 0 < found.interval[1]
    (['column 1 of x', 'column 1 of y'], True)

    Raises:
        UserError: for data that are not real numbers or not as many rows each, fewer than 10
            distinct rows a fold, NaN or infinite values, constant columns, and a column that X
            and Y share.
    """
    estimation = Estimation(x, y, settings, random_state)
    for _ in estimation.run():
        pass
    return estimation.result()


class Estimation:
    """The steps of ``mutual_information``, for who wants to see them pass: iterate ``run``, then
    ask for the ``result``."""

    def __init__(
        self, x: Any, y: Any, settings: MISettings = MISettings(), random_state: int = 0
    ) -> None:
        names = [*column_labels(x, "x"), *column_labels(y, "y")]
        x, y = as_columns(x, "x"), as_columns(y, "y")
        check_pair(x, y, 10 * settings.num_folds, names)
        self.settings, self.seed = settings, random_state
        self.columns = prepared(x, random_state), prepared(y, random_state + 1)
        numbers = [*self.columns[0].discrete, *(x.shape[1] + i for i in self.columns[1].discrete)]
        self.discrete = [names[number] for number in numbers]
        self.groups = torch.from_numpy(row_groups(np.concatenate([x, y], 1)))
        num_groups = int(self.groups.max()) + 1
        if num_groups < 10 * settings.num_folds:
            raise UserError(f"{num_groups} rows differ from each other: give more of them")
        generator = seeded("cpu", random_state, FOLDS)
        order = torch.randperm(num_groups, generator=generator)
        self.fold = (order % settings.num_folds)[self.groups]
        self.order = torch.randperm(num_groups, generator=generator)[self.groups]

    def run(self) -> Iterator[Progress]:
        """Train; yields before the first step and after every validation."""
        steps = self.settings.training.steps
        yield Progress(0, steps, self._so_far())
        for step in self.classifiers.train():
            yield Progress(step, steps, self._so_far())

    def result(self) -> MutualInformation:
        """The estimate from what is learned so far."""
        generator = seeded("cpu", self.seed, SHUFFLES)
        whole, single = [], []
        for fold in range(self.settings.num_folds):
            rows = (self.fold == fold).nonzero().flatten()
            rows = rows[torch.randperm(len(rows), generator=generator)]
            shifts = torch.randperm(len(rows) - 1, generator=generator) + 1
            shifts = shifts[: self.settings.num_shuffles].tolist()
            for part, ratios in enumerate((whole, single)):
                ratios.append((rows, self._ratios(2 * fold + part, rows, shifts)))
        return combined(
            whole,
            single,
            self.groups,
            neighbours=self._neighbours(),
            discrete=self.discrete,
            degrees_of_freedom=[fit.copula.df for fit in self.classifiers.fits[::2]],
            best_steps=self.classifiers.stack.best_steps,
        )

    @cached_property
    def classifiers(self) -> PairClassifiers:
        """Fits 2 k and 2 k + 1 are of all folds but k, and of the one after k."""
        pairs = Pairs(*(torch.from_numpy(side.features).float() for side in self.columns))
        scores, untied = (
            np.concatenate(parts, 1)
            for parts in zip(*((side.scores, side.untied) for side in self.columns), strict=True)
        )
        dim_x, num_folds = self.columns[0].scores.shape[1], self.settings.num_folds
        num_distinct = int(self.groups.max()) + 1
        # shrunk, a copula misses what it shrank by, which falls slower than 1/rows
        is_small = num_distinct < ROWS_PER_COLUMN * num_folds * scores.shape[1]
        fits = []
        for fold in range(num_folds):
            for inside in (self.fold != fold, self.fold == (fold + 1) % num_folds):
                train, validation = self._split(inside)
                rows = torch.cat([train, validation])
                held_out = (torch.arange(len(rows)) >= len(train)).numpy()
                copula = TCopula.fit(untied[rows.numpy()], dim_x, held_out if is_small else None)
                quantiles = torch.from_numpy(copula.quantiles(scores))
                fits.append(Fit(copula, quantiles, train, validation))
        generator = seeded("cpu", self.seed, BATCHES)
        return PairClassifiers(
            pairs, fits, self.settings.training, generator, self.settings.num_members
        )

    def _split(self, inside: Tensor) -> tuple[Tensor, Tensor]:
        """Rows to learn from and to validate on; copies of a row stay together."""
        order = self.order[inside].unique()  # sorted, one for each distinct row
        least = min(self.settings.min_validation, len(order) // 2)
        num = max(round(self.settings.validation_share * len(order)), least)
        validates = inside & (self.order < order[num])
        return (inside & ~validates).nonzero().flatten(), validates.nonzero().flatten()

    def _ratios(self, fit: int, rows: Tensor, shifts: list[int]) -> PairRatios:
        joint = self.classifiers.log_ratio(fit, rows, rows)
        apart = [self.classifiers.log_ratio(fit, rows, rows.roll(-shift)) for shift in shifts]
        return PairRatios(joint, torch.stack(apart), shifts)

    def _so_far(self) -> float:
        bounds = []
        for number in range(0, 2 * self.settings.num_folds, 2):
            rows = self.classifiers.fits[number].validation
            bounds.append(donsker_varadhan(self._ratios(number, rows, [1, 2, 3, 4])))
        return sum(bounds) / len(bounds)

    def _neighbours(self) -> float | None:
        """By nearest neighbours among distinct rows of normal scores, whose ties would look like
        near neighbours; None in many dimensions, or where all columns are discrete."""
        num = sum(side.scores.shape[1] for side in self.columns)
        if num > MAX_NEIGHBOUR_DIM or len(self.discrete) == num:
            return None
        first = np.unique(self.groups.numpy(), return_index=True)[1]
        return neighbour_information(*(side.spaced()[first] for side in self.columns))

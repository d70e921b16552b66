r"""Mutual information of data, with an interval, from log ratios learned on other rows.

    I(X; Y) = E_{p(x, y)} log p(x, y) / (p(x) p(y)),   in nats.

The rows are cut into K folds. The log ratio at a fold is learned from the K - 1 others, by
classifiers over the Student-t copula of ranks, or where X or Y is a class over a discriminant
analysis or logistic regression, and the Donsker-Varadhan bound of the fold is taken with it: a
normalised estimate that too few rows make too small. To see what more rows would teach, the same
is done with ratios of a single fold. If what is missing falls as 1/rows,

    I = B_{K-1} + max(B_{K-1} - B_1, 0) / (K - 2),

with B_k the bound by ratios of k folds, averaged over the rows; I is B_1 where that is larger, and
nothing is added beyond the entropy of a class. The error is the larger of the influence of the
rows on I, copies of a row being one, and the spread of the bounds over the folds; to which are
added, as squares, what was extrapolated, by how much B_1 is larger, and half of what nearest
neighbours find beyond I.

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

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from annotated_types import Ge, Le
from torch import Tensor

from ebm_app.io.fields import LARGEST, Seed, Steps, argument_of
from ebm_app.numerics.tensors import seeded
from ebm_app.tabular.class_ratio import ClassRatio
from ebm_app.tabular.classifier import BATCH_SIZE, Classifiers, Draws
from ebm_app.tabular.columns import Columns, check_pair, check_rows
from ebm_app.tabular.folds import Folds
from ebm_app.tabular.information import InformationEstimate, combined
from ebm_app.tabular.lower_bounds import PairRatios, donsker_varadhan
from ebm_app.tabular.neighbours import neighbour_information
from ebm_app.tabular.scores import Side
from ebm_app.tabular.t_copula import TCopula

NumFolds = Annotated[int, Ge(3), Le(LARGEST)]
#: log ratios (n,), float64, at pairs of rows (n,) and (n,)
Base = Callable[[Tensor, Tensor], np.ndarray]
#: streams of random numbers
FOLDS, BATCHES, SHUFFLES = range(3)
#: with fewer rows of a fold for each column, the correlation of the copula is shrunk
ROWS_PER_COLUMN = 10
#: classifiers of every fit, of other weights and batches, whose log ratios are averaged
NUM_MEMBERS = 2
#: shuffled pairs for each row: of a step, of the bound while it is learned, and of the result
STEP_SHUFFLES, SHUFFLES_SO_FAR, RESULT_SHUFFLES = 4, 4, 20
#: rows of a class that are learned from at least
ROWS_OF_CLASS = 5
#: nearest neighbours are asked in few dimensions
MAX_NEIGHBOUR_DIM = 6


class Progress(NamedTuple):
    """``step`` of ``num_steps`` at most, and the bound so far, in nats: that of the rows which
    choose the step."""

    step: int
    num_steps: int
    so_far: float


def mutual_information(
    x: Any, y: Any, num_folds: int = 3, steps: int = 2_000, random_state: int = 0
) -> InformationEstimate:
    """I(X; Y) in nats from independent rows of both.

    Args:
        x, y: arrays or data frames of numbers, (N, dx) and (N, dy), or (N,) for one column; row i
            of both is one draw of (X, Y). Columns of few values are discrete.
        num_folds: K, parts of the rows, at least 3. steps: of the classifiers, at most.
        random_state: seed of the folds, weights and batches.

    >>> import numpy as np
    >>> numbers = np.random.default_rng(0)
    >>> x, y = numbers.integers(0, 2, (2, 300))  # independent
    >>> found = mutual_information(x, y)
    >>> found.discrete, found.interval[0] < 0 < found.interval[1]
    (['column 1 of x', 'column 1 of y'], True)

    Raises:
        UserError: for data that are not real numbers or not as many rows each, fewer than 5
            distinct rows a fold, NaN or infinite values, constant columns, and a column that X
            and Y share.
    """
    estimation = Estimation(x, y, num_folds, steps, random_state)
    for _ in estimation.run():
        pass
    return estimation.result()


class Fit(NamedTuple):
    """A ratio to learn: what it begins with, and the numbers of the rows that it is learned from
    and validated on."""

    base: Base
    train: Tensor
    validation: Tensor


class Estimation:
    """The steps of ``mutual_information``, for who wants to see them pass: iterate ``run``, then
    ask for the ``result``. The classifiers tell pairs from those with y moved on by a few places,
    as in Belghazi et al. 2018, arXiv:1801.04062."""

    def __init__(
        self, x: Any, y: Any, num_folds: int = 3, steps: int = 2_000, random_state: int = 0
    ) -> None:
        num_folds = argument_of(NumFolds, "num_folds", num_folds)
        random_state = argument_of(Seed, "random_state", random_state)
        self.steps = argument_of(Steps, "steps", steps)
        self.num_folds, self.seed = num_folds, random_state
        sides = Columns.of(x, "x"), Columns.of(y, "y")
        check_pair(*sides)
        labels = [*sides[0].labels, *sides[1].labels]
        x, y = (side.values for side in sides)
        self.sides = Side.of(x, random_state), Side.of(y, random_state + 1)
        discrete = [*self.sides[0].discrete, *(x.shape[1] + i for i in self.sides[1].discrete)]
        self.discrete = [labels[number] for number in discrete]
        generator = seeded("cpu", random_state, FOLDS)
        self.folds = Folds(np.concatenate([x, y], 1), num_folds, generator)
        num = self.folds.num_distinct
        check_rows(num, f"of {len(x)} rows {num} differ from each other", num_folds, 3)
        self.features = [torch.from_numpy(side.features).float() for side in self.sides]

    def run(self) -> Iterator[Progress]:
        """Train; yields before the first step and after every validation."""
        self.fits = self._fits()
        self.generator = seeded("cpu", self.seed, BATCHES)
        dim = sum(part.shape[1] for part in self.features)
        num = NUM_MEMBERS * len(self.fits)
        self.classifiers = Classifiers(num, dim, self.steps, self.generator)
        validation = self._draws([fit.validation for fit in self._learners()])
        yield Progress(0, self.steps, self._so_far())
        for step in self.classifiers.train(self._draws_of_step, validation):
            yield Progress(step, self.steps, self._so_far())

    def result(self) -> InformationEstimate:
        """The estimate from what is learned so far."""
        generator = seeded("cpu", self.seed, SHUFFLES)
        whole, single = [], []
        for fold in range(self.num_folds):
            rows = (self.folds.fold == fold).nonzero().flatten()
            rows = rows[torch.randperm(len(rows), generator=generator)]
            shifts = torch.randperm(len(rows) - 1, generator=generator) + 1
            shifts = shifts[:RESULT_SHUFFLES].tolist()
            for part, ratios in enumerate((whole, single)):
                ratios.append((rows, self._ratios(2 * fold + part, rows, shifts)))
        entropy = min((side.entropy for side in self.sides if side.is_class), default=math.inf)
        others = (self._neighbours(), self.discrete, entropy)
        return combined(whole, single, self.folds.groups, *others)

    @torch.no_grad()
    def log_ratios(self, number: int, x_rows: Tensor, y_rows: Tensor) -> Tensor:
        """The log ratio of one fit at pairs of rows (n,) and (n,): (n,), float64."""
        members = slice(number * NUM_MEMBERS, (number + 1) * NUM_MEMBERS)
        base, inputs = self._pairs(self.fits[number], x_rows, y_rows)
        return base + self.classifiers.residual(members, inputs)

    def _fits(self) -> list[Fit]:
        """Fits 2 k and 2 k + 1 are of all folds but k, and of the one after k."""
        fits, fold = [], self.folds.fold
        for number in range(self.num_folds):
            for inside in (fold != number, fold == (number + 1) % self.num_folds):
                train, validation = self.folds.split(inside)
                of_class = self._class_base(train.numpy(), validation.numpy())
                base = of_class or self._copula_base(train.numpy(), validation.numpy())
                fits.append(Fit(base, train, validation))
        return fits

    def _class_base(self, train: np.ndarray, validation: np.ndarray) -> Base | None:
        """Where a side is a class with enough rows of each value."""
        of_class = next((number for number in (1, 0) if self.sides[number].is_class), None)
        if of_class is None:
            return None
        classes = self.sides[of_class].scores[:, 0]
        labels = np.unique(classes, return_inverse=True)[1]
        if np.bincount(labels[train], minlength=labels.max() + 1).min() < ROWS_OF_CLASS:
            return None
        x = self.sides[1 - of_class].asinh
        table = ClassRatio.fit(x, labels, train, validation)(x)

        def base(*rows: Tensor) -> np.ndarray:
            return table[rows[1 - of_class].numpy(), labels[rows[of_class].numpy()]]

        return base

    def _copula_base(self, train: np.ndarray, validation: np.ndarray) -> Base:
        scores, untied = (
            np.concatenate(parts, 1)
            for parts in zip(*((side.scores, side.untied) for side in self.sides), strict=True)
        )
        dim_x = self.sides[0].scores.shape[1]
        # shrunk, a copula misses what it shrank by, which falls slower than 1/rows
        num = self.folds.num_distinct
        is_small = num < ROWS_PER_COLUMN * self.num_folds * scores.shape[1]
        rows = np.concatenate([train, validation])
        held_out = np.arange(len(rows)) >= len(train)
        copula = TCopula.fit(untied[rows], dim_x, held_out if is_small else None)
        s = copula.quantiles(scores)

        def base(x_rows: Tensor, y_rows: Tensor) -> np.ndarray:
            return copula.log_ratio(s[x_rows.numpy(), :dim_x], s[y_rows.numpy(), dim_x:])

        return base

    def _learners(self) -> list[Fit]:
        """The fit of every classifier."""
        return [fit for fit in self.fits for _ in range(NUM_MEMBERS)]

    def _draws_of_step(self) -> Draws:
        rows = []
        for fit in self._learners():
            size = min(BATCH_SIZE, len(fit.train))
            rows.append(
                fit.train[torch.randint(len(fit.train), (size,), generator=self.generator)]
            )
        return self._draws(rows)

    def _draws(self, rows: Sequence[Tensor]) -> Draws:
        """Pairs of the rows of every classifier, and shuffled ones."""
        most = min(map(len, rows))
        shifts = torch.randint(1, most, (STEP_SHUFFLES,), generator=self.generator).tolist()
        bases, inputs = [], []
        for fit, part in zip(self._learners(), rows, strict=True):
            y_rows = torch.stack([part] + [part.roll(-shift) for shift in shifts])
            x_rows = part.expand_as(y_rows)
            base, features = self._pairs(fit, x_rows.flatten(), y_rows.flatten())
            bases.append(base.view(y_rows.shape))
            inputs.append(features.view(*y_rows.shape, -1))
        return Draws.padded(bases, inputs)

    def _pairs(self, fit: Fit, x_rows: Tensor, y_rows: Tensor) -> tuple[Tensor, Tensor]:
        """What the base says (n,), float64, and what the networks read (n, d)."""
        inputs = torch.cat([self.features[0][x_rows], self.features[1][y_rows]], 1)
        return torch.from_numpy(fit.base(x_rows, y_rows)), inputs

    def _ratios(self, number: int, rows: Tensor, shifts: list[int]) -> PairRatios:
        apart = [self.log_ratios(number, rows, rows.roll(-shift)) for shift in shifts]
        return PairRatios(self.log_ratios(number, rows, rows), torch.stack(apart), shifts)

    def _so_far(self) -> float:
        bounds = []
        for number in range(0, 2 * self.num_folds, 2):
            rows = self.fits[number].validation
            shifts = list(range(1, min(SHUFFLES_SO_FAR + 1, len(rows))))
            bounds.append(donsker_varadhan(self._ratios(number, rows, shifts)))
        return sum(bounds) / len(bounds)

    def _neighbours(self) -> float | None:
        """By nearest neighbours among distinct rows of normal scores, whose ties would look like
        near neighbours; None in many dimensions, or where all columns are discrete."""
        num = sum(side.scores.shape[1] for side in self.sides)
        if num > MAX_NEIGHBOUR_DIM or len(self.discrete) == num:
            return None
        first = np.unique(self.folds.groups.numpy(), return_index=True)[1]
        return neighbour_information(*(side.spaced()[first] for side in self.sides))

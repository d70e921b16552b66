r"""Mutual information of data, with an interval, from log ratios learned on other rows.

    I(X; Y) = E_{p(x, y)} log p(x, y) / (p(x) p(y)),   in nats.

The rows are cut into K folds. The log ratio at a fold is learned from the K - 1 others, by
classifiers over the Student-t copula of ranks, and the Donsker-Varadhan bound of the fold is taken
with it: a normalised estimate that too few rows make too small. Where X or Y is a class, and rows
are fewer than a thousand, the log ratio is a mean of that one and of logistic regression, by the
shares of the largest bound on rows that were not learned from. To see what more rows would teach,
the same is done with ratios of a single fold. If what is missing falls as 1/rows,

    I = B_{K-1} + max(B_{K-1} - B_1, 0) / (K - 2),

with B_k the bound by ratios of k folds, averaged over the rows; I is B_1 where that is larger. The
error is the larger of the influence of the rows on I, copies of a row being one, and the spread of
the bounds over the folds; to which are added, as squares, what was extrapolated, by how much B_1
is larger, and half of what nearest neighbours find beyond I.

Sources: Donsker and Varadhan 1983, and Poole et al. 2019, arXiv:1905.06922, for the bounds;
Schucany, Gray and Owen, J. Am. Stat. Assoc. 66, 1971, for the correction (generalised jackknife);
Gao, Ver Steeg and Galstyan 2015, arXiv:1411.2003, on what nearest neighbours miss.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from annotated_types import Ge, Le
from torch import Tensor

from ebm_app.tabular.classifier import BATCH_SIZE, Classifiers, Draws
from ebm_app.tabular.columns import Columns, check_pair, check_rows
from ebm_app.tabular.information import InformationEstimate, combined
from ebm_app.tabular.logistic import class_log_ratios
from ebm_app.tabular.lower_bounds import PairRatios, best_weights, donsker_varadhan, weighted
from ebm_app.tabular.neighbours import neighbour_information
from ebm_app.tabular.scores import Side, row_groups
from ebm_app.tabular.t_copula import TCopula, t_scores
from ebm_app.utils.fields import LARGEST, Int, Seed, Steps, check_argument
from ebm_app.utils.random import make_generator

NumFolds = Annotated[Int, Ge(3), Le(LARGEST)]
#: streams of random numbers
FOLDS, BATCHES, SHUFFLES = range(3)
#: with fewer rows of a fold for each column, the correlation of the copula is shrunk
ROWS_PER_COLUMN = 10
#: classifiers of every fit, of other weights and batches, whose log ratios are averaged
NUM_MEMBERS = 2
#: of the rows learned from, by which the step of least loss is found, and how many there are if
#: half of them are as many
VALIDATION_SHARE, MIN_VALIDATION = 0.15, 100
#: shuffled pairs for each row: of a step, of the bound while it is learned, and of the result
STEP_SHUFFLES, SHUFFLES_SO_FAR, RESULT_SHUFFLES = 4, 4, 20
#: with as many distinct rows the classifiers are alone
SMALL = 1_000
#: nearest neighbours are asked in few dimensions
MAX_NEIGHBOUR_DIM = 6


def mutual_information(
    x: Any, y: Any, num_folds: int = 3, steps: int = 2_000, random_state: int = 0
) -> InformationEstimate:
    """I(X; Y) in nats from independent rows of both.

    Args:
        x, y: arrays or data frames of numbers, (N, dx) and (N, dy), or (N,) for one column; row i
            of both is one draw of (X, Y). Columns of few values are discrete.
        num_folds: K, parts of the rows, at least 3. steps: of the classifiers, at most.
        random_state: seed of the folds, weights and batches.

    >>> numbers = np.random.default_rng(0)
    >>> x = numbers.standard_normal(1_000)
    >>> y = 0.8 * x + 0.6 * numbers.standard_normal(1_000)  # -1/2 log(1 - 0.8^2) = 0.51 nats
    >>> found = mutual_information(x, y)
    >>> found.interval[0] < 0.51 < found.interval[1], found.stderr < 0.05
    (True, True)

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
    """A ratio to learn: its ``copula``, the quantiles s (N, D) of all rows by it, and the numbers
    of the rows it is learned from and validated on. Where one side is a class, ``tables`` (N, C)
    are logistic regressions of the rows learned from, and of both."""

    copula: TCopula
    s: np.ndarray
    train: Tensor
    validation: Tensor
    tables: tuple[Tensor, Tensor] | None


class Estimation:
    """The steps of ``mutual_information``, for who wants to see them pass: iterate ``run``, then
    ask for the ``result``. The classifiers tell pairs from those with y moved on by a few places,
    as in Belghazi et al. 2018, arXiv:1801.04062."""

    def __init__(
        self, x: Any, y: Any, num_folds: int = 3, steps: int = 2_000, random_state: int = 0
    ) -> None:
        num_folds = check_argument(NumFolds, "num_folds", num_folds)
        random_state = check_argument(Seed, "random_state", random_state)
        self.steps = check_argument(Steps, "steps", steps)
        self.num_folds, self.seed = num_folds, random_state
        sides = Columns.of(x, "x"), Columns.of(y, "y")
        check_pair(*sides)
        x, y = (side.values for side in sides)
        self.sides = Side.of(x, random_state), Side.of(y, random_state + 1)
        self.dim_x = x.shape[1]
        pairs = zip(sides, self.sides, strict=True)
        self.discrete = [given.labels[n] for given, side in pairs for n in side.discrete]
        self.groups = torch.from_numpy(row_groups(np.concatenate([x, y], 1)))
        self.num_distinct = int(self.groups.max()) + 1
        distinct = f"of {len(x)} rows {self.num_distinct} differ from each other"
        check_rows(self.num_distinct, distinct, num_folds, 3)
        generator = make_generator("cpu", random_state, FOLDS)
        order = torch.randperm(self.num_distinct, generator=generator)
        self.fold = (order % num_folds)[self.groups]
        self.order = torch.randperm(self.num_distinct, generator=generator)[self.groups]
        self.shuffle = torch.randperm(len(x), generator=generator)
        #: the side that is a class, if one is, and the class of every row
        is_small = self.num_distinct < SMALL
        are_one = [len(s.discrete) == s.scores.shape[1] == 1 for s in self.sides]
        self.of_class = next((n for n in (1, 0) if is_small and are_one[n]), None)
        if self.of_class is not None:
            labels = np.unique((x, y)[self.of_class], return_inverse=True)[1].reshape(-1)
            self.labels = torch.from_numpy(labels)
        self.features = [torch.from_numpy(side.features).float() for side in self.sides]

    def run(self) -> Iterator[tuple[int, float]]:
        """Train; yields before the first step and after every validation the steps done and the
        bound so far, in nats: that of the rows which choose the step."""
        self.fits = self._fits()
        self.generator = make_generator("cpu", self.seed, BATCHES)
        dim = sum(part.shape[1] for part in self.features)
        num = NUM_MEMBERS * len(self.fits)
        self.classifiers = Classifiers(num, dim, self.steps, self.generator)
        validation = self._draws([fit.validation for fit in self._learners()])
        yield 0, self._so_far()
        for step in self.classifiers.train(self._draws_of_step, validation):
            yield step, self._so_far()

    def result(self) -> InformationEstimate:
        """The estimate from what is learned so far."""
        generator = make_generator("cpu", self.seed, SHUFFLES)
        whole, single = [], []
        for fold in range(self.num_folds):
            rows = (self.fold == fold).nonzero().flatten()
            rows = rows[torch.randperm(len(rows), generator=generator)]
            shifts = torch.randperm(len(rows) - 1, generator=generator) + 1
            shifts = shifts[:RESULT_SHUFFLES].tolist()
            for part, ratios in enumerate((whole, single)):
                number = 2 * fold + part
                found = self._ratios(number, rows, shifts, final=True)
                ratios.append((rows, weighted(found, best_weights(self._validated(number)))))
        return combined(whole, single, self.groups, self._neighbours(), self.discrete)

    @torch.no_grad()
    def log_ratios(self, number: int, x_rows: Tensor, y_rows: Tensor, final: bool) -> Tensor:
        """The log ratios of one fit at pairs of rows (n,) and (n,): (1, n) or (2, n), float64, by
        classifiers and by logistic regression, the ``final`` one or that without validation."""
        members = slice(number * NUM_MEMBERS, (number + 1) * NUM_MEMBERS)
        fit = self.fits[number]
        base, inputs = self._pairs(fit, x_rows, y_rows)
        parts = [base + self.classifiers.residual(members, inputs)]
        if fit.tables is not None:
            rows = (x_rows, y_rows)
            table, of_class = fit.tables[final], self.of_class
            parts.append(table[rows[1 - of_class], self.labels[rows[of_class]]])
        return torch.stack(parts)

    def _validated(self, number: int) -> PairRatios:
        """The log ratios of one fit at the rows it was validated on."""
        rows = self.fits[number].validation
        num = SHUFFLES_SO_FAR if self.of_class is None else RESULT_SHUFFLES
        return self._ratios(number, rows, list(range(1, min(num + 1, len(rows)))), final=False)

    def _fits(self) -> list[Fit]:
        """Fits 2 k and 2 k + 1 are of all folds but k, and of the one after k."""
        scores = np.hstack([side.scores for side in self.sides])
        untied = np.hstack([side.untied for side in self.sides])
        # shrunk, a copula misses what it shrank by, which falls slower than 1/rows
        is_small = self.num_distinct < ROWS_PER_COLUMN * self.num_folds * scores.shape[1]
        fits = []
        for fold in range(self.num_folds):
            for inside in (self.fold != fold, self.fold == (fold + 1) % self.num_folds):
                train, validation = self._split(inside)
                rows = torch.cat([train, validation])
                held_out = (torch.arange(len(rows)) >= len(train)).numpy()
                held_out = held_out if is_small else None
                copula = TCopula.fit(untied[rows.numpy()], self.dim_x, held_out)
                s, tables = t_scores(scores, copula.df), self._tables(train, rows)
                fits.append(Fit(copula, s, train, validation, tables))
        return fits

    def _tables(self, *rows: Tensor) -> tuple[Tensor, Tensor] | None:
        """Logistic regressions (N, C) of several choices of rows, where a side is a class."""
        if self.of_class is None:
            return None
        side = self.sides[1 - self.of_class]
        given = side.asinh, self.labels.numpy(), self.groups.numpy()
        found = [class_log_ratios(*given, part.numpy(), self.seed) for part in rows]
        return None if any(part is None for part in found) else tuple(map(torch.from_numpy, found))

    def _split(self, inside: Tensor) -> tuple[Tensor, Tensor]:
        """Rows to learn from and to validate on; copies of a row stay together."""
        order = self.order[inside].unique()  # sorted, one for each distinct row
        least = min(MIN_VALIDATION, len(order) // 2)
        num = max(round(VALIDATION_SHARE * len(order)), least)
        validates = inside & (self.order < order[num])
        # shuffled: rows that follow each other in a file may be alike
        train, validation = (inside & ~validates)[self.shuffle], validates[self.shuffle]
        return self.shuffle[train], self.shuffle[validation]

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
        """What the copula says (n,), float64, and what the networks read (n, d)."""
        s = np.hstack([fit.s[x_rows, : self.dim_x], fit.s[y_rows, self.dim_x :]])
        base = fit.copula.log_ratio(s)
        inputs = torch.cat([self.features[0][x_rows], self.features[1][y_rows]], 1)
        return torch.from_numpy(base), inputs

    def _ratios(self, number: int, rows: Tensor, shifts: list[int], final: bool) -> PairRatios:
        """Of all members: ``joint`` (1 or 2, m) and ``apart`` (1 or 2, S, m)."""
        joint = self.log_ratios(number, rows, rows, final)
        apart = [self.log_ratios(number, rows, rows.roll(-shift), final) for shift in shifts]
        return PairRatios(joint, torch.stack(apart, 1), shifts)

    def _so_far(self) -> float:
        found = [self._validated(number) for number in range(0, 2 * self.num_folds, 2)]
        bounds = [donsker_varadhan(weighted(parts, best_weights(parts))) for parts in found]
        return sum(bounds) / len(bounds)

    def _neighbours(self) -> float | None:
        """By nearest neighbours among distinct rows of normal scores, whose ties would look like
        near neighbours; None in many dimensions, or where all columns are discrete."""
        num = sum(side.scores.shape[1] for side in self.sides)
        if num > MAX_NEIGHBOUR_DIM or len(self.discrete) == num:
            return None
        first = np.unique(self.groups.numpy(), return_index=True)[1]
        return neighbour_information(*(side.spaced()[first] for side in self.sides))

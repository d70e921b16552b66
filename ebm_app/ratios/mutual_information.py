r"""Mutual information of data, from the time score between the product of the marginals and the
joint density.

    I(X; Y) = E_{p(x, y)} log p(x, y) / (p(x) p(y)),   in nats.

Pairs (x_i, y_i) are draws of p_1 and pairs (x_i, y_j) of p_0. The estimate is cross-fitted: the
rows are cut into folds, a log ratio is learned without each in turn by CTSM-v on a bridge from p_0
to p_1, over a base of Gaussian mixtures, and averaged over the rows left out. X and Y are each
whitened first, which changes no mutual information and leaves p_0 with covariance I.

>>> import numpy as np
>>> from ebm_app.ratios.mutual_information import MISettings, RatioTraining, estimate
>>> numbers = np.random.default_rng(0)
>>> x = numbers.standard_normal(500)
>>> y = 0.8 * x + 0.6 * numbers.standard_normal(500)  # -1/2 log(1 - 0.8^2) = 0.51 nats
>>> short = MISettings(num_folds=2, num_seeds=1, training=RatioTraining(5, eval_every=5))
>>> found = estimate(x, y, short)
>>> abs(found.mutual_information - 0.51) < 4 * found.stderr < 0.4
True

Source: arXiv:2502.02300, sections 3 and 6.3, for Gaussians; here for any data.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ebm_app.errors import UserError
from ebm_app.numerics import log_mean_exp, mixed_seed, seeded, standard_error
from ebm_app.ratios.data.columns import check_pair
from ebm_app.ratios.data.npy import as_columns
from ebm_app.ratios.data.paired_rows import PairedRows, whiten
from ebm_app.ratios.data.preprocessing import PREPROCESSING
from ebm_app.ratios.estimators import RatioEstimator
from ebm_app.ratios.methods import MixtureResidual
from ebm_app.ratios.training import Criterion, RatioTrainer, RatioTraining, draw
from ebm_app.registry import choose

FOLDS, CHECK = 5, 6


@dataclass(frozen=True)
class MISettings:
    """How much work an estimate is.

    Args:
        num_folds: parts of the rows, each left out once, at least 2.
        num_seeds: estimates that are averaged, of other folds, weights and draws.
        learning_rate: of Adam. training: of each fold.
        validation_share: of the rows learned from, by whose loss the best weights are chosen.

    Raises:
        UserError: for fewer than 2 folds or no seed.
    """

    num_folds: int = 3
    num_seeds: int = 2
    learning_rate: float = 1e-3
    training: RatioTraining = RatioTraining(iterations=2_000, eval_every=200)
    validation_share: float = 0.15

    def __post_init__(self) -> None:
        if self.num_folds < 2 or self.num_seeds < 1:
            raise UserError("an estimate needs at least 2 folds and 1 seed")


class FoldResult(NamedTuple):
    """Of one fold of one seed: the rows left out, their log ratios (n,), log E[p_1/p_0] over pairs
    of p_0 among them, which is 0 where the ratio is normalised, and the step that was best."""

    seed: int
    rows: Tensor
    log_ratio: Tensor
    log_normaliser: float
    best_step: int


class MIEstimate(NamedTuple):
    """Nats: the estimate, its standard error (rows, and seeds if there are several), the mean
    log E_{p_0}[p_1/p_0], and the best step of every fold."""

    mutual_information: float
    stderr: float
    log_normaliser: float
    best_steps: list[int]


def estimate(
    x: np.ndarray,
    y: np.ndarray,
    settings: MISettings = MISettings(),
    preprocessing: str = "none",
    seed: int = 0,
    device: str = "cpu",
) -> MIEstimate:
    """I(X; Y) in nats from independent rows of both.

    Args:
        x, y: (N, dx) and (N, dy), or (N,) for one column; row i of both is one draw of (X, Y).
        settings: how much work the estimate is.
        preprocessing: of every column, a key of ``PREPROCESSING``; it changes no mutual
            information, but how hard it is to learn.
        seed: of the folds, weights and draws. device: "cpu" or "cuda".

    Raises:
        UserError: for arrays that are not real numbers or not as long as each other, NaN or
            infinite values, constant or linearly dependent columns, and an unknown preprocessing.
    """
    x, y = as_columns(x, "x"), as_columns(y, "y")
    check_pair(x, y)
    scores = PREPROCESSING[choose("preprocessing", preprocessing, PREPROCESSING)]
    tensors = (torch.from_numpy(scores(part)).to(device) for part in (x, y))
    return summarise(folds(*tensors, settings, seed), len(x), settings.num_seeds)


def folds(x: Tensor, y: Tensor, settings: MISettings, seed: int = 0) -> Iterator[FoldResult]:
    """Learn a log ratio without each fold, and average it over that fold; seed by seed.

    Args:
        x, y: (N, dx) and (N, dy), preprocessed; on the device of the work.
    """
    data = PairedRows(*(whiten(part).to(torch.get_default_dtype()) for part in (x, y)))
    for repeat in range(settings.num_seeds):
        order = torch.randperm(len(x), generator=seeded("cpu", seed, repeat, FOLDS)).to(x.device)
        for number, held_out in enumerate(order.tensor_split(settings.num_folds)):
            rest = order[~torch.isin(order, held_out)]
            trainer = _train(data, rest, settings, mixed_seed(seed, repeat, number))
            ratio, left_out = trainer.best_ratio(), data.take(held_out)
            values = ratio.log_ratio(left_out.joint).cpu()
            generator = seeded(str(x.device), seed, repeat, number, CHECK)
            apart = left_out.sample0(len(held_out), generator)
            normaliser = log_mean_exp(ratio.log_ratio(apart)).item()
            yield FoldResult(repeat, held_out.cpu(), values, normaliser, trainer.best_step)


def summarise(results: Iterable[FoldResult], num_rows: int, num_seeds: int) -> MIEstimate:
    """The estimate from the results of all folds."""
    values = torch.zeros(num_seeds, num_rows, dtype=torch.float64)
    normalisers, steps = [], []
    for result in results:
        values[result.seed, result.rows] = result.log_ratio.double()
        normalisers.append(result.log_normaliser)
        steps.append(result.best_step)
    by_seed = values.mean(1)
    of_rows = standard_error(values.mean(0)).item()
    of_seeds = standard_error(by_seed).item() if num_seeds > 1 else 0.0
    mean_normaliser = sum(normalisers) / len(normalisers)
    return MIEstimate(by_seed.mean().item(), math.hypot(of_rows, of_seeds), mean_normaliser, steps)


def _train(data: PairedRows, rows: Tensor, settings: MISettings, seed: int) -> RatioTrainer:
    num = max(2, round(settings.validation_share * len(rows)))
    validation, train = data.take(rows[:num]), data.take(rows[num:])
    method = MixtureResidual(math.sqrt(2), fit_draws=len(train.x))
    device = str(rows.device)
    criterion = _loss_on(validation, method, seeded(device, seed, FOLDS))
    lr, training = settings.learning_rate, settings.training
    trainer = RatioTrainer(method, train, seed, lr, training, criterion, device)
    for _ in trainer.run():
        pass
    return trainer


def _loss_on(
    pair: PairedRows, method: MixtureResidual, generator: torch.Generator, num: int = 8192
) -> Criterion:
    """The loss on draws that stay the same."""
    frozen = draw(pair, method.sampler.sample, num, generator)

    @torch.no_grad()
    def criterion(ratio: RatioEstimator) -> dict[str, Tensor]:
        return {"error": ratio.loss(frozen).double().mean()}

    return criterion

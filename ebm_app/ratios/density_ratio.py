r"""The log density ratio of two samples, with an error at every point.

    log p_1(x)/p_0(x) = integral over t of d/dt log p_t(x),   in nats,

along a bridge p_t from one sample to the other. The time score is learned by CTSM-v over Gaussian
mixtures in closed form. The rows of either sample are cut into folds, a ratio is learned without
each in turn, and normalised on the rows of p_0 left out: E_{p_0} p_1/p_0 = 1. The rows left out of
p_1 then give

    KL(p_1 || p_0) = E_{p_1} log p_1/p_0.

Source: arXiv:2502.02300, sections 3 and 5, for the objective and the bridge.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ebm_app.errors import UserError
from ebm_app.numerics import effective_sample_size, log_mean_exp, mixed_seed, seeded
from ebm_app.ratios.data.npy import as_columns, column_labels
from ebm_app.ratios.data.preprocessing import is_constant
from ebm_app.ratios.data.two_samples import TwoSamples
from ebm_app.ratios.estimators import RatioEstimator
from ebm_app.ratios.methods import MixtureResidual
from ebm_app.ratios.training import Criterion, RatioTrainer, RatioTraining, draw

FOLDS, FROZEN = 5, 6
#: a normaliser that rests on fewer rows may be far off
FEWEST_ROWS = 30


@dataclass(frozen=True)
class RatioSettings:
    """How much work a ratio is.

    Args:
        num_folds: parts of the rows of either sample, each left out once, at least 2.
        learning_rate: of Adam. training: of each fold.
        validation_share: of the rows learned from, by whose loss the best weights are chosen.

    Raises:
        UserError: for fewer than 2 folds.
    """

    num_folds: int = 3
    learning_rate: float = 1e-3
    training: RatioTraining = field(
        default_factory=lambda: RatioTraining(iterations=2_000, eval_every=200)
    )
    validation_share: float = 0.15

    def __post_init__(self) -> None:
        if self.num_folds < 2:
            raise UserError(f"there is {self.num_folds} fold: give at least 2")


@dataclass(frozen=True, eq=False)
class DensityRatio:
    """What ``log_density_ratio`` learned. Nats.

    Attributes:
        kl, kl_stderr: KL(p_1 || p_0) of the rows left out, and its standard error: the rows of
            both samples, and the folds.
        log_normalisers: log E_{p_0} p_1/p_0 of every fold before it was taken off.
        effective_rows: the least number of rows of p_0 that a normaliser rests on; also what is
            left of them after weighting by the ratio.
        warnings: what speaks against the ratio, a sentence each.
    """

    ratios: list[RatioEstimator]
    place: np.ndarray
    scale: np.ndarray
    log_normalisers: list[float]
    kl: float
    kl_stderr: float
    effective_rows: float
    warnings: list[str]

    def score_samples(
        self, x: Any, return_std: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """log p_1/p_0 at the points x (N, D), or (N,) where D is 1: (N,), the mean over the folds.

        Args:
            return_std: whether to return the standard deviation over the folds too, (N,). Far from
                both samples it is too small.

        Raises:
            UserError: for another number of columns, and values that are not finite numbers.
        """
        x = as_columns(x, "x")
        if x.shape[1] != len(self.place):
            raise UserError(f"x has {x.shape[1]} columns: give {len(self.place)}, as the samples")
        _check_finite(x, "x")
        points = _standardised(x, self.place, self.scale)
        values = torch.stack(
            [
                ratio.log_ratio(points) - constant
                for ratio, constant in zip(self.ratios, self.log_normalisers, strict=True)
            ]
        )
        mean = values.mean(0).numpy()
        return (mean, values.std(0).numpy()) if return_std else mean


def log_density_ratio(
    x0: Any, x1: Any, settings: RatioSettings = RatioSettings(), random_state: int = 0
) -> DensityRatio:
    """The log ratio of the densities of two samples.

    Args:
        x0, x1: arrays or data frames of numbers, (N0, D) and (N1, D), or (N0,) and (N1,) for one
            column; independent rows of p_0 and of p_1. settings: how much work the ratio is.
        random_state: seed of the folds, weights and draws.

    >>> import numpy as np
    >>> from ebm_app import log_density_ratio
    >>> from ebm_app.ratios.density_ratio import RatioSettings, RatioTraining
    >>> numbers = np.random.default_rng(0)
    >>> x0, x1 = numbers.normal(0, 1, 500), numbers.normal(1, 1, 500)  # log p_1/p_0 = x - 1/2
    >>> ratio = log_density_ratio(x0, x1, RatioSettings(training=RatioTraining(20, eval_every=10)))
    >>> values, errors = ratio.score_samples([0.0, 1.0], return_std=True)
    >>> bool((abs(values - [-0.5, 0.5]) < 0.3).all()), bool((errors > 0).all())
    (True, True)

    Raises:
        UserError: for data that are not real numbers or of different columns, fewer than 20 rows
            a fold, values that are not finite, and columns that are constant.
    """
    names = column_labels(x0, "x0")
    samples = as_columns(x0, "x0"), as_columns(x1, "x1")
    _check(samples, names, 20 * settings.num_folds)
    both = np.concatenate(samples)
    place, scale = both.mean(0), both.std(0)
    rows0, rows1 = (_standardised(part, place, scale) for part in samples)
    folds = [
        torch.randperm(len(rows), generator=seeded("cpu", random_state, number, FOLDS))
        % settings.num_folds
        for number, rows in enumerate((rows0, rows1))
    ]
    ratios, left_out = [], []
    for fold in range(settings.num_folds):
        rest = TwoSamples(rows0[folds[0] != fold], rows1[folds[1] != fold])
        ratio = _trained(rest, settings, mixed_seed(random_state, fold))
        ratios.append(ratio)
        left_out.append(
            tuple(
                ratio.log_ratio(rows[of == fold])
                for rows, of in zip((rows0, rows1), folds, strict=True)
            )
        )
    normalisers = [log_mean_exp(of0).item() for of0, _ in left_out]
    values = [of1.mean().item() - c for (_, of1), c in zip(left_out, normalisers, strict=True)]
    effective = min(effective_sample_size(of0).item() for of0, _ in left_out)
    return DensityRatio(
        ratios,
        place,
        scale,
        normalisers,
        sum(values) / len(values),
        _error(left_out, values),
        effective,
        _warnings(effective, normalisers),
    )


def _error(left_out: list[tuple[Tensor, Tensor]], values: list[float]) -> float:
    """Of the mean of the folds' divergences, by what each row moves them: 1 to E_{p_1} and
    p_1/p_0 to the normaliser."""
    variances = [
        (of0 - log_mean_exp(of0)).exp().var().item() / len(of0) + of1.var().item() / len(of1)
        for of0, of1 in left_out
    ]
    of_rows = math.sqrt(sum(variances)) / len(values)
    return math.hypot(of_rows, float(np.std(values, ddof=1)) / math.sqrt(len(values)))


def _warnings(effective: float, normalisers: list[float]) -> list[str]:
    found = []
    if effective < FEWEST_ROWS:
        found.append(
            f"a normaliser rests on {effective:.0f} rows of x0: the samples hardly overlap there, "
            "so give more rows of x0"
        )
    largest = max(normalisers, key=abs)
    if abs(largest) > 0.2:
        found.append(
            f"a learned ratio had to be normalised by {largest:+.2f} nats: train longer or give "
            "more rows"
        )
    return found


def _trained(rest: TwoSamples, settings: RatioSettings, seed: int) -> RatioEstimator:
    parts = []
    for rows in (rest.rows0, rest.rows1):
        num = max(2, round(settings.validation_share * len(rows)))
        order = torch.randperm(len(rows), generator=seeded("cpu", seed, len(parts), FOLDS))
        parts.append((rows[order[:num]], rows[order[num:]]))
    validation, train = (TwoSamples(*(part[i] for part in parts)) for i in range(2))
    method = MixtureResidual(math.sqrt(2), fit_draws=len(train.rows0) + len(train.rows1))
    criterion = _loss_on(validation, method, seeded("cpu", seed, FROZEN))
    trainer = RatioTrainer(
        method, train, seed, settings.learning_rate, settings.training, criterion
    )
    for _ in trainer.run():
        pass
    return trainer.best_ratio()


def _loss_on(
    pair: TwoSamples, method: MixtureResidual, generator: torch.Generator, num: int = 8192
) -> Criterion:
    """The loss on draws that stay the same."""
    frozen = draw(pair, method.sampler.sample, num, generator)

    @torch.no_grad()
    def criterion(ratio: RatioEstimator) -> dict[str, Tensor]:
        return {"error": ratio.loss(frozen).double().mean()}

    return criterion


def _check(samples: tuple[np.ndarray, np.ndarray], names: list[str], least: int) -> None:
    x0, x1 = samples
    if x0.shape[1] != x1.shape[1]:
        raise UserError(f"x0 has {x0.shape[1]} columns and x1 has {x1.shape[1]}: give the same")
    for name, part in (("x0", x0), ("x1", x1)):
        _check_finite(part, name)
        if len(part) < least:
            raise UserError(f"{name} has {len(part)} rows: give at least {least}")
        constant = [label for label, z in zip(names, part.T, strict=True) if is_constant(z)]
        if constant:
            raise UserError(f"constant in {name} are {', '.join(constant)}: leave them out")


def _check_finite(x: np.ndarray, name: str) -> None:
    if not np.isfinite(x).all():
        raise UserError(f"{name} holds NaN or infinite values: fill in or leave out rows")


def _standardised(x: np.ndarray, place: np.ndarray, scale: np.ndarray) -> Tensor:
    return torch.from_numpy((x - place) / scale).to(torch.get_default_dtype())

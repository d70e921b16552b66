r"""Estimate of a KL divergence from held-out log ratios, with an interval.

For a log ratio r(x) that was learned on other rows, the Donsker-Varadhan bound is

    KL(p_1 || p_0) >= E_{p_1} r - log E_{p_0} exp r,   in nats,

with equality for r = log p_1 / p_0.

Source: Donsker and Varadhan 1983; Poole et al. 2019, arXiv:1905.06922, section 2.1.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.special import logsumexp, stdtrit

from ebm_app.utils.fields import finite_or_none

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Half-width of a 95 percent interval, in standard errors
HALF_WIDTH = 1.96
#: Min effective number of rows of p_0 in the normaliser, and min fraction of its rows; no bound is
#: reported below either
MIN_EFFECTIVE_ROWS, MIN_EFFECTIVE_SHARE = 30.0, 0.005


@dataclass(frozen=True, kw_only=True)
class RatioEstimate:
    """Estimate of a KL divergence in nats, such as a mutual information.

    Attributes:
        estimator: the estimator, with its arguments.
        what: name of the divergence.
        value: Donsker-Varadhan bound on held-out rows, at least 0. If the densities ``are_far``,
            it is ``mean_log_ratio`` for ``CTSMRatio`` and None for a classifier.
        stderr: standard error of ``value``, from the influence of each independent row. For a mean
            log ratio, it is the jackknife over the folds.
        interval: 95 percent interval of the divergence: from 1.96 standard errors below the
            smaller of ``value`` and ``mean_log_ratio`` to 1.96 above the larger of ``value`` and
            ``training_value``. For the jackknife over K folds, the quantile of Student's t with
            K - 1 degrees of freedom replaces 1.96. None if ``value`` is None.
        normaliser: E_{p_0} exp r, which is 1 for the exact ratio, and its ``normaliser_stderr``.
        effective_rows: effective number of rows of p_0 in the normaliser.
        mean_log_ratio: E_{p_1} r. It is not a bound, but less noisy than ``value``, whose error is
            mostly that of the normaliser.
        training_value: ``value`` on the training rows; overfitting makes it too large.
        log_ratio0, log_ratio1: held-out r at the rows of both samples, (N0,) and (N1,).
        warnings: reasons to doubt the estimate, one sentence each.
    """

    estimator: str
    what: str
    value: float | None
    stderr: float | None
    interval: tuple[float, float] | None
    normaliser: float
    normaliser_stderr: float
    effective_rows: float
    mean_log_ratio: float
    training_value: float | None
    log_ratio0: np.ndarray = field(repr=False)
    log_ratio1: np.ndarray = field(repr=False)
    warnings: tuple[str, ...]

    @property
    def are_far(self) -> bool:
        """Whether the densities are too far apart for a bound from these rows."""
        return are_far(self.log_ratio0)

    def figures(self) -> dict[str, Any]:
        """Return all fields except per-row values, for JSON. An overflowing normaliser becomes
        None."""
        numbers = {item.name: getattr(self, item.name) for item in fields(self) if item.repr}
        names = "normaliser", "normaliser_stderr"
        normaliser = finite_or_none({name: numbers[name] for name in names})
        lists = {"interval": self.interval and list(self.interval), "warnings": [*self.warnings]}
        return {**numbers, **normaliser, **lists}

    def summary(self) -> str:
        """Return the estimate as text, warnings first."""
        lines = [f"Warning: {warning}" for warning in self.warnings]
        if self.interval is not None:
            low, high = self.interval
            lines.append(
                f"{self.what}: {self.value:.4f} ± {self.stderr:.4f} nats by {self.estimator}, 95 "
                f"percent interval {low:.4f} to {high:.4f}"
            )
        else:
            lines.append(f"{self.what}: no value by {self.estimator}")
        lines.append(
            f"Mean ratio over p_0, 1 if exact: {self.normaliser:.4f} ± "
            f"{self.normaliser_stderr:.4f}, from {self.effective_rows:.0f} effective rows"
        )
        return "\n".join(lines)

    def plot(self) -> "Figure":
        """Plot histograms of the held-out log ratios of both samples."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(4.2, 3.0), dpi=130, layout="constrained")
        axes = figure.subplots()
        samples = {"rows of p_0": self.log_ratio0, "rows of p_1": self.log_ratio1}
        edges = np.histogram_bin_edges(np.concatenate(list(samples.values())), 40)
        for name, values in samples.items():
            axes.hist(values, edges, density=True, alpha=0.5, label=name)
        axes.set(xlabel="log ratio, nats", ylabel="density per nat")
        axes.legend(fontsize="small")
        return figure


def donsker_varadhan(r0: np.ndarray, r1: np.ndarray) -> float:
    """Return E_{p_1} r - log E_{p_0} exp r in nats, from log ratios (N0,) and (N1,).

    >>> donsker_varadhan(np.zeros(3), np.ones(2))
    1.0
    """
    return float(r1.mean()) - log_mean_exp(r0)


class HeldOut(NamedTuple):
    """Log ratios at the rows of (p_0, p_1), and how they were learned.

    Args:
        log_ratios: held-out r, (N0,) and (N1,).
        units: indices (N0, U0) and (N1, U1) of the independent draws in each row.
        training: for each fold, r at its training rows.
        estimator, what: names in the estimate.
    """

    log_ratios: tuple[np.ndarray, np.ndarray]
    units: tuple[np.ndarray, np.ndarray]
    training: Sequence[tuple[np.ndarray, np.ndarray]]
    estimator: str
    what: str

    def excess(self) -> np.ndarray:
        """Return exp r / E_{p_0} exp r - 1 at the rows of p_0, the influence of each row on the
        log of the normaliser."""
        r0, _ = self.log_ratios
        return np.exp(r0 - log_mean_exp(r0)) - 1

    def error(self, influence0: np.ndarray, influence1: np.ndarray) -> float:
        """Return the standard error of the sum of a mean over p_0 and one over p_1, from the
        influence of each row, whose mean is 0."""
        total = np.zeros(1 + max(part.max() for part in self.units))
        for units, influence in zip(self.units, (influence0, influence1), strict=True):
            for column in units.T:
                np.add.at(total, column, influence / len(influence))
        return float(np.sqrt(np.square(total).sum()))


def bound_estimate(held_out: HeldOut) -> RatioEstimate:
    """Return the estimate whose value is the Donsker-Varadhan bound. It is None if the normaliser
    has few effective rows or the log ratio is constant."""
    r0, r1 = held_out.log_ratios
    if are_far(r0):
        warning = (
            f"The normaliser has {effective_rows(r0):.1f} effective rows, too few for a bound. "
            "Use CTSMRatio or more rows."
        )
        return _record(held_out, warnings=(warning,))
    if np.ptp(np.concatenate([r0, r1])) == 0:
        warning = "The learned log ratio is constant, so that there is no bound."
        return _record(held_out, warnings=(warning,))
    value = donsker_varadhan(r0, r1)
    training = float(np.mean([donsker_varadhan(*part) for part in held_out.training]))
    stderr = held_out.error(-held_out.excess(), r1 - r1.mean())
    warnings = []
    if training - max(value, 0.0) > max(2 * HALF_WIDTH * stderr, 0.02):
        warnings.append(
            f"The bound on training rows, {training:.3f} nats, is far above the bound on held-out "
            "rows. Use more rows or fewer columns."
        )
    estimate = _record(held_out, value, stderr, training, tuple(warnings))
    if abs(estimate.normaliser - 1) <= max(3 * estimate.normaliser_stderr, 0.2):
        return estimate
    warning = (
        f"The mean ratio over p_0 was {estimate.normaliser:.3f} instead of 1 before "
        "normalisation. Use more rows or train longer."
    )
    return replace(estimate, warnings=(*estimate.warnings, warning))


def mean_estimate(held_out: HeldOut) -> RatioEstimate:
    """Return the estimate whose value is the mean log ratio over p_1, for densities that are too
    far apart for a bound. The delete-a-group jackknife over the folds includes the error of the
    learned ratio."""
    r0, r1 = held_out.log_ratios
    means = np.array([part.mean() for _, part in held_out.training])
    freedom = len(means) - 1
    stderr = float(np.sqrt(freedom * means.var()))
    warning = (
        f"The densities are far apart, with {effective_rows(r0):.1f} effective rows in the "
        "normaliser. The value is the mean log ratio, which is not a bound."
    )
    half_width = float(stdtrit(freedom, 0.975))
    value, training = float(r1.mean()), float(means.mean())
    return _record(held_out, value, stderr, training, (warning,), half_width)


def _record(
    held_out: HeldOut,
    value: float | None = None,
    stderr: float | None = None,
    training: float | None = None,
    warnings: tuple[str, ...] = (),
    half_width: float = HALF_WIDTH,
) -> RatioEstimate:
    """Return the estimate, with the interval that ``RatioEstimate`` defines."""
    r0, r1 = held_out.log_ratios
    mean, interval = float(r1.mean()), None
    if value is not None and stderr is not None and training is not None:
        low = min(value, mean) - half_width * stderr  # a few rows dominate the normaliser,
        high = max(value, training, 0.0) + half_width * stderr  # so that its error is skewed
        value, interval = max(value, 0.0), (max(low, 0.0), high)
    with np.errstate(over="ignore"):
        normaliser = float(np.exp(log_mean_exp(r0)))
    return RatioEstimate(
        estimator=held_out.estimator,
        what=held_out.what,
        value=value,
        stderr=stderr,
        interval=interval,
        training_value=training,
        normaliser=normaliser,
        normaliser_stderr=normaliser * held_out.error(held_out.excess(), 0 * r1),
        effective_rows=effective_rows(r0),
        mean_log_ratio=mean,
        log_ratio0=r0,
        log_ratio1=r1,
        warnings=warnings,
    )


def log_mean_exp(r: np.ndarray) -> float:
    """Return the log of the mean of exp r, for r (N,)."""
    return float(logsumexp(r) - np.log(len(r)))


def effective_rows(r: np.ndarray) -> float:
    """Return (sum w)^2 / sum w^2 of the weights w = exp r, for r (N,)."""
    return float(np.exp(2 * logsumexp(r) - logsumexp(2 * r)))


def are_far(r0: np.ndarray) -> bool:
    """Return whether the effective rows of log ratios (N0,) are too few for a bound:
    less than 30, or 0.5 percent of N0."""
    return effective_rows(r0) < max(MIN_EFFECTIVE_ROWS, MIN_EFFECTIVE_SHARE * len(r0))

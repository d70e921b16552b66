r"""Held-out estimates of a log density ratio and of the KL divergence, with an interval.

    r(x) = log p_1(x) / p_0(x),   in nats.

The rows of both samples are split into K folds. For each fold k, a ratio r_k is learned from K - 2
other folds, and its settings are selected on fold k + 1. On fold k it gives the bound

    KL(p_1 || p_0) >= E_{p_1} r - log E_{p_0} exp r        (Donsker-Varadhan),

with equality for the exact ratio. For new rows, r is the mean over k of r_k.

Source: Donsker and Varadhan 1983; Poole et al. 2019, arXiv:1905.06922, section 2.1.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ebm_app.ratios.rows import as_columns, check_columns
from ebm_app.utils.tensors import effective_sample_size, log_mean_exp

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import Index

Ratio = Callable[[Tensor], Tensor]
Samples = tuple[Tensor, Tensor]
#: Half-width of a 95 percent interval, in standard errors
HALF_WIDTH = 1.96
#: Min effective number of rows of p_0 in the normaliser; no bound is reported below it
MIN_EFFECTIVE_ROWS = 30.0


#: (training rows of p_0 and p_1, rows for selection, generator) -> log ratio of the selected
#: training step, and log ratio of the last step, which may be overfitted
Learner = Callable[[Samples, Samples, torch.Generator], tuple[Ratio, Ratio]]


class Sample(NamedTuple):
    """Rows of one density (N, D) float64, their folds (N,), and the indices (N, U) of the U
    independent observations in each row."""

    rows: Tensor
    fold: Tensor
    units: Tensor


class CrossFit:
    """Cross-fitting: ``run`` trains a learner for each fold, and ``result`` returns the estimate.

    Args:
        p0, p1: samples of both densities.
        learn: the learner.
        num_folds: K, at least 3.
        generator: source of randomness of the learner.
    """

    what = "KL(p_1 || p_0)"

    def __init__(
        self, p0: Sample, p1: Sample, learn: Learner, num_folds: int, generator: torch.Generator
    ) -> None:
        self.samples, self.learn = (p0, p1), learn
        self.num_folds, self.generator = num_folds, generator
        self.held_out = [torch.zeros(len(part.rows), dtype=torch.float64) for part in (p0, p1)]
        self.ratios: list[Ratio] = []
        self.training_bounds: list[float] = []

    def run(self) -> Iterator[int]:
        """Train fold by fold, and yield the number of trained folds."""
        for fold in range(len(self.ratios), self.num_folds):
            selection = (fold + 1) % self.num_folds
            train = self._rows(*(k for k in range(self.num_folds) if k not in (fold, selection)))
            ratio, last = self.learn(train, self._rows(selection), self.generator)
            self.ratios.append(ratio)
            self.training_bounds.append(donsker_varadhan(*map(last, train)))
            for part, out in zip(self.samples, self.held_out, strict=True):
                out[part.fold == fold] = ratio(part.rows[part.fold == fold])
            yield fold + 1

    def mean_ratio(self, x: Tensor) -> Tensor:
        """Return the mean log ratio over folds at rows (n, D): (n,) float64, not normalised."""
        return torch.stack([ratio(x) for ratio in self.ratios]).mean(0)

    def result(self) -> "Estimate":
        """Train the remaining folds and return the estimate."""
        for _ in self.run():
            pass
        r0, r1 = self.held_out
        log_normaliser = log_mean_exp(r0)
        weights = (r0 - log_normaliser).exp() - 1
        effective = effective_sample_size(r0).item()
        training_bound = sum(self.training_bounds) / len(self.training_bounds)
        bound: dict[str, Any] = {}
        if effective >= MIN_EFFECTIVE_ROWS and torch.cat([r0, r1]).std() > 0:
            value, error = donsker_varadhan(r0, r1), self._error(-weights, r1 - r1.mean())
            # a few rows dominate the normaliser, so its error is skewed
            low, high = min(value, r1.mean().item()), max(value, training_bound, 0.0)
            interval = max(low - HALF_WIDTH * error, 0.0), high + HALF_WIDTH * error
            bound = {"value": max(value, 0.0), "stderr": error, "interval": interval}
        return Estimate(
            mean_log_ratio=r1.mean().item(),
            training_bound=training_bound,
            normaliser=log_normaliser.exp().item(),
            normaliser_stderr=log_normaliser.exp().item() * self._error(weights, 0 * r1),
            effective_rows=effective,
            log_ratio0=r0,
            log_ratio1=r1,
            what=self.what,
            **bound,
        )

    def _rows(self, *folds: int) -> Samples:
        chosen = torch.tensor(folds)
        p0, p1 = (part.rows[torch.isin(part.fold, chosen)] for part in self.samples)
        return p0, p1

    def _error(self, influence0: Tensor, influence1: Tensor) -> float:
        """Return the standard error of the sum of two means, from the influence (mean 0) of each
        row."""
        num_units = 1 + max(int(part.units.max()) for part in self.samples)
        total = torch.zeros(num_units, dtype=torch.float64)
        for part, influence in zip(self.samples, (influence0, influence1), strict=True):
            for units in part.units.T:
                total.index_add_(0, units, influence / len(influence))
        return total.square().sum().sqrt().item()


def donsker_varadhan(r0: Tensor, r1: Tensor) -> float:
    """Return E_{p_1} r - log E_{p_0} exp r in nats, from log ratios (N0,) and (N1,).

    >>> donsker_varadhan(torch.zeros(3), torch.ones(2))
    1.0
    """
    return (r1.mean() - log_mean_exp(r0)).item()


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Estimate of a KL divergence in nats, such as a mutual information.

    Attributes:
        value: Donsker-Varadhan bound on held-out rows, at least 0.
        stderr: standard error of ``value``, from the influence of each observation.
        interval: 95 percent interval of the divergence. It begins 1.96 standard errors below the
            smaller of ``value`` and ``mean_log_ratio``, and ends 1.96 standard errors above the
            larger of ``value`` and ``training_bound``. ``value``, ``stderr`` and ``interval`` are
            None if the normaliser has fewer than 30 effective rows or the log ratio is constant.
        mean_log_ratio: E_{p_1} r before normalisation. It is not a bound, but less noisy than
            ``value``, whose error is mostly that of the normaliser.
        training_bound: bound on the training rows after the last training step; overfitting makes
            it too large.
        normaliser: E_{p_0} exp r, which is 1 for the exact ratio, and its ``normaliser_stderr``.
        effective_rows: effective number of rows of p_0 in the normaliser.
        log_ratio0, log_ratio1: out-of-fold r at the rows of both samples, (N0,) and (N1,) float64,
            not normalised.
        what: name of the divergence.
    """

    mean_log_ratio: float
    training_bound: float
    normaliser: float
    normaliser_stderr: float
    effective_rows: float
    log_ratio0: Tensor = field(repr=False)
    log_ratio1: Tensor = field(repr=False)
    what: str
    value: float | None = None
    stderr: float | None = None
    interval: tuple[float, float] | None = None

    @property
    def warnings(self) -> list[str]:
        """Reasons to doubt the estimate, one sentence each."""
        if self.effective_rows < MIN_EFFECTIVE_ROWS:
            return [
                f"The normaliser has {self.effective_rows:.1f} effective rows, fewer than "
                f"{MIN_EFFECTIVE_ROWS:.0f}. No bound or interval is reported. Use more rows."
            ]
        if self.interval is None:
            return ["The learned log ratio is constant. No bound or interval is reported."]
        reasons, half = [], HALF_WIDTH * (self.stderr or 0.0)
        if self.training_bound - (self.value or 0.0) > 2 * half:
            reasons.append(
                f"The bound on training rows, {self.training_bound:.3f} nats, is far above the "
                "bound on held-out rows. Use more rows or fewer columns."
            )
        if abs(self.normaliser - 1) > max(3 * self.normaliser_stderr, 0.2):
            reasons.append(
                f"The mean ratio over p_0 was {self.normaliser:.3f} instead of 1 before "
                "normalisation. Use more rows or train longer."
            )
        return reasons

    def figures(self) -> dict[str, Any]:
        """Return the warnings and all numbers except per-row values, for JSON."""
        names = [item.name for item in fields(self) if item.repr and item.name != "what"]
        interval = self.interval and list(self.interval)
        numbers = {name: getattr(self, name) for name in names}
        return {**numbers, "interval": interval, "warnings": self.warnings}

    def summary(self) -> str:
        """Return the estimate as text, warnings first."""
        lines = [f"Warning: {warning}" for warning in self.warnings]
        if self.interval is not None:
            low, high = self.interval
            lines.append(
                f"{self.what}: {self.value:.4f} ± {self.stderr:.4f} nats, 95 percent interval "
                f"{low:.4f} to {high:.4f}"
            )
        lines += [
            f"Bound on training rows: {self.training_bound:.4f} nats",
            f"Mean log ratio without normaliser: {self.mean_log_ratio:.4f} nats",
            f"Mean ratio over p_0, 1 if exact: {self.normaliser:.4f} ± "
            f"{self.normaliser_stderr:.4f}, from {self.effective_rows:.0f} effective rows",
        ]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return self.summary()

    def plot(self) -> "Figure":
        """Plot histograms of the held-out log ratios of both samples."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(4.2, 3.0), dpi=130, layout="constrained")
        axes = figure.subplots()
        samples = {"rows of p_0": self.log_ratio0, "rows of p_1": self.log_ratio1}
        edges = np.histogram_bin_edges(torch.cat(list(samples.values())).numpy(), 40)
        for name, values in samples.items():
            axes.hist(values.numpy(), edges, density=True, alpha=0.5, label=name)
        axes.set(xlabel="log ratio, nats", ylabel="density per nat")
        axes.legend(fontsize="small")
        return figure


@dataclass(frozen=True, kw_only=True, repr=False)
class RatioEstimate(Estimate):
    """``Estimate`` with a log ratio that can be evaluated at new rows.

    Attributes:
        mean_ratio: rows (n, D) float64 -> log ratio before normalisation.
        columns: columns of x0.
    """

    mean_ratio: Ratio = field(repr=False)
    columns: "Index" = field(repr=False)

    def log_ratio(self, x: Any) -> Tensor:
        """Return log p_1(x) / p_0(x) at rows (n, D): (n,) float64, in nats.

        The mean of the ratio over p_0 is normalised to 1, unless it has too few effective rows.

        Raises:
            UserError: if the columns are not those of x0, or values are missing or infinite.
        """
        rows = as_columns(x, "x")
        check_columns(rows.columns, self.columns)
        value = self.mean_ratio(torch.tensor(rows.to_numpy()).contiguous())
        return value if self.interval is None else value - log_mean_exp(self.log_ratio0)

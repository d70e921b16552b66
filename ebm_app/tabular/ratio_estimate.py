"""A learned log density ratio: its values anywhere, their error, and what tells whether to trust
them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ebm_app.tabular.columns import Columns
from ebm_app.tabular.conformal import weighted_quantile
from ebm_app.tabular.estimate import Estimate, error_of_rows
from ebm_app.utils.errors import UserError, shorten
from ebm_app.utils.fields import Fraction, check_argument
from ebm_app.utils.tensors import effective_sample_size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: a normaliser that rests on fewer rows may be far off
FEWEST_ROWS = 100
#: where a classifier separates a larger share, the samples hardly overlap
MOST_APART = 0.99
#: below which a column has drifted
LEVEL = 0.05


@dataclass(frozen=True)
class RatioEstimate(Estimate):
    """log p_1(x) / p_0(x), in nats. ``value``, ``stderr`` and ``interval`` are of ``kl_bound``.

    Attributes:
        log_ratio0, log_ratio1: r at the rows of both samples, each by a ratio learned without it,
            (N0,) and (N1,).
        log_normaliser: log E_{p_0} exp r before it was subtracted; 0 for an exact ratio.
        column_p_values: of every column by itself, (D,), Holm's (see ``drift``): those below 0.05
            have drifted. ``p_value`` is of all columns jointly, and of how they depend on each
            other.
        groups: the number of the distinct row that each row is, (N0,) and (N1,).
        at: rows (n, D) -> the log ratios of the K folds before the normaliser, (K, n), and the
            errors of what is left out, (n,). sample0: the rows of p_0.
    """

    log_ratio0: np.ndarray
    log_ratio1: np.ndarray
    log_normaliser: float
    column_p_values: np.ndarray
    groups: Sequence[Tensor]
    at: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
    sample0: Columns

    @property
    def value(self) -> float:
        """The Donsker-Varadhan bound of the divergence KL(p_1 || p_0) >= E_{p_1} r - log E_{p_0}
        exp r, over rows that a ratio was learned without. Too few rows make it loose."""
        return torch.from_numpy(self.log_ratio1).mean().item()

    @property
    def stderr(self) -> float:
        """The standard error of that bound."""
        of0, of1 = map(torch.from_numpy, (self.log_ratio0, self.log_ratio1))
        return self._error(of0.exp(), of1)

    kl_bound, kl_stderr = value, stderr

    @property
    def p_value(self) -> float:
        """Of the hypothesis that both samples are of one density, by the difference of the mean of
        sigmoid(r) over the rows left out (Lopez-Paz and Oquab 2017, arXiv:1610.06545)."""
        of0, of1 = (torch.from_numpy(r).sigmoid() for r in (self.log_ratio0, self.log_ratio1))
        error = self._error(of0, of1)
        return NormalDist().cdf((of0.mean() - of1.mean()).item() / error) if error else 1.0

    @property
    def effective_rows(self) -> float:
        """The rows of p_0 that a mean over p_1 by weights exp(r) rests on."""
        return effective_sample_size(torch.from_numpy(self.log_ratio0)).item()

    def doubts(self) -> dict[str, bool]:
        share = ((self.log_ratio0 < 0).mean() + (self.log_ratio1 > 0).mean()) / 2
        away = abs(self.log_normaliser)
        return {
            f"the normaliser rests on {self.effective_rows:.0f} rows of p_0, so that the "
            "divergence and the log ratio may be off by a constant: give more rows of p_0": (
                self.effective_rows < FEWEST_ROWS
            ),
            f"{share:.1%} of the rows tell which sample they are of: the densities hardly "
            "overlap, and where they do not the log ratio is a guess": share > MOST_APART,
            f"the classifiers were {away:.3f} nats from normalised, which is more than the error: "
            "give more rows, or fewer columns": away > max(2 * self.kl_stderr, 0.05),
        }

    def _error(self, *values: Tensor) -> float:
        """Of the difference of the means over both samples; copies of a row are one."""
        parts = zip(values, self.groups, strict=True)
        return math.hypot(*(error_of_rows(part - part.mean(), group) for part, group in parts))

    @property
    def weights(self) -> np.ndarray:
        """exp r (N0,) at the rows of p_0, of mean 1: means over p_0 with them are means over p_1
        (covariate shift)."""
        return np.exp(self.log_ratio0)

    @property
    def drifted(self) -> list[str]:
        """The columns of which ``column_p_values`` are below 0.05, as messages call them."""
        tests = zip(self.sample0.labels, self.column_p_values, strict=True)
        return [label for label, p_value in tests if p_value < LEVEL]

    def score_samples(
        self, x: Any, return_std: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """r (n,) at rows (n, D), in nats, and on request its standard error (n,), the jackknife
        over the K folds. An interval of 95 percent is the Student quantile of K - 1 degrees of
        freedom times as wide to either side: 2.3 errors for 10 folds. A linear ratio that
        was not told from 0, and is left out, counts as an error.

        At the rows that it was learned from, ``log_ratio0`` and ``log_ratio1`` are fairer.

        Raises:
            UserError: for rows of other columns, and NaN or infinite values.
        """
        rows = Columns.of(x, "x")
        rows.check_same(self.sample0)
        rows.check_finite()
        parts, doubt = self.at(rows.values)
        value = parts.mean(0) - self.log_normaliser
        if not check_argument(bool, "return_std", return_std):
            return value
        return value, np.hypot(math.sqrt(len(parts) - 1) * parts.std(0), doubt)

    def conformal_bound(self, scores: Any, x: Any, coverage: float = 0.9) -> np.ndarray:
        """What the score of a row of p_1 does not exceed with about a probability of ``coverage``,
        at rows (n, D): (n,), infinite where p_0 has too few rows for it (see ``conformal``).

        Args:
            scores: such as |y - f(x)| at the rows of p_0, (N0,), by a model f that was not trained
                on them: f(x) -+ the bound is then a prediction interval.

        Raises:
            UserError: for other scores than one finite number a row of p_0, a coverage that is not
                between 0 and 1, and as ``score_samples``.
        """
        level = check_argument(Fraction, "coverage", coverage)
        of0 = Columns.of(scores, "scores")
        of0.check_finite()
        if of0.values.shape != (len(self.log_ratio0), 1):
            raise UserError(
                f"scores has the shape {of0.values.shape}: give one for each of the "
                f"{len(self.log_ratio0)} rows of x0"
            )
        at = self.score_samples(x)
        return weighted_quantile(of0.values[:, 0], self.log_ratio0, at, level)

    def lines(self) -> list[str]:
        low, high = self.interval
        p_value = "< 1e-6" if self.p_value < 1e-6 else f"= {self.p_value:.2g}"
        return [
            f"KL divergence of p_1 from p_0: at least {self.kl_bound:.4f} ± {self.kl_stderr:.4f} "
            f"nats, 95 percent interval of this bound {low:.4f} to {high:.4f}",
            f"both samples of one density: p {p_value}",
            f"columns that differ by themselves (p < {LEVEL} after Holm): "
            f"{shorten(', '.join(self.drifted)) or 'none'}",
            f"a mean over p_1 by weights of p_0 rests on {self.effective_rows:.0f} of "
            f"{len(self.log_ratio0)} rows",
        ]

    def figures(self) -> dict[str, Any]:
        """The numbers of the summary, as JSON takes them."""
        return {
            "kl_bound": self.kl_bound,
            "kl_stderr": self.kl_stderr,
            "interval": list(self.interval),
            "p_value": self.p_value,
            "column_p_values": self.column_p_values.tolist(),
            "log_normaliser": self.log_normaliser,
            "effective_rows": self.effective_rows,
            "num_rows": [len(self.log_ratio0), len(self.log_ratio1)],
            "warnings": self.warnings,
        }

    def plot(self) -> "Figure":
        """How the log ratio is distributed over both samples, at rows it was learned without."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(4.2, 3.0), dpi=130, layout="constrained")
        axes = figure.subplots()
        samples = {"rows of p_0": self.log_ratio0, "rows of p_1": self.log_ratio1}
        edges = np.histogram_bin_edges(np.concatenate(list(samples.values())), 40)
        for name, values in samples.items():
            axes.hist(values, edges, density=True, histtype="stepfilled", alpha=0.5, label=name)
        axes.axvline(0, color="black", lw=0.8)
        axes.set(xlabel="log p_1 / p_0, nats", ylabel="share a nat")
        axes.legend(fontsize="small")
        return figure

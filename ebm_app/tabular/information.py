"""An estimate of mutual information: its value, its error, and what tells whether to trust it."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ebm_app.tabular.estimate import HALF_WIDTH, Estimate, error_of_rows
from ebm_app.tabular.lower_bounds import PairRatios, donsker_varadhan, influences
from ebm_app.utils.tensors import effective_sample_size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: rows left out, and the log ratios there
LeftOut = Sequence[tuple[Tensor, PairRatios]]
#: a normaliser that rests on fewer pairs may be far off
FEWEST_PAIRS = 100


@dataclass(frozen=True)
class InformationEstimate(Estimate):
    """Nats.

    Attributes:
        value: the estimate. stderr: its standard error.
        lower_bound: the Donsker-Varadhan bound by ratios of all other folds, and ``fewer_rows``,
            by ratios of one fold only. mean_log_ratio: without a normaliser; no bound.
        neighbours: by nearest neighbours in few dimensions, not all discrete, else None.
        effective_pairs: the shuffled pairs that the normaliser of the poorest fold rests on.
        num_rows, num_distinct: rows, and how many differ from each other.
        discrete: columns that are taken to be discrete.
        log_ratio: at every row, by a ratio that was learned without it, (N,).
        influence: what every row moves the value by, times N, (N,). beside_rows: the part of the
            error that is not theirs.
    """

    value: float
    stderr: float
    lower_bound: float
    fewer_rows: float
    mean_log_ratio: float
    neighbours: float | None
    effective_pairs: float
    num_rows: int
    num_distinct: int
    discrete: list[str]
    log_ratio: np.ndarray
    influence: np.ndarray
    beside_rows: float

    def doubts(self) -> dict[str, bool]:
        gain = self.value - max(self.lower_bound, self.fewer_rows)  # extrapolated
        short = self.fewer_rows - self.lower_bound
        beyond = 0.0 if self.neighbours is None else max(self.neighbours - self.value, 0.0)
        half = HALF_WIDTH * self.stderr
        low, high = min(self.lower_bound, self.value), max(self.value, self.mean_log_ratio)
        return {
            f"the value, {self.value:.3f}, is below 0 by more than its error: give more rows, or "
            "fewer columns": self.value < -half,
            f"the normaliser rests on {self.effective_pairs:.0f} shuffled pairs: the value may be "
            "too large, and the mean log ratio has none": self.effective_pairs < FEWEST_PAIRS,
            f"the bound and the mean log ratio lie {high - low:.3f} nats apart, more than the "
            "interval is wide: give more rows, or fewer columns": high - low > 2 * half,
            f"{gain:.3f} nats of the value are extrapolated from {self.fewer_rows:.3f} and "
            f"{self.lower_bound:.3f} with fewer rows: give more rows, or quote the lower "
            "bound": gain > max(0.02, 0.05 * self.value),
            f"ratios of fewer rows find more, {self.fewer_rows:.3f} for {self.lower_bound:.3f} "
            "nats: give more rows, or fewer columns": short > half / 2,
            f"nearest neighbours find {self.value + beyond:.3f} nats, {beyond:.3f} more than the "
            "ratios: look for rows that nearly repeat and fine structure, or train "
            "longer": beyond > max(half / 2, 0.02),
        }

    def lines(self) -> list[str]:
        low, high = self.interval
        lines = [
            f"mutual information {self.value:.4f} ± {self.stderr:.4f} nats, "
            f"95 percent interval {low:.4f} to {high:.4f}",
            f"Donsker-Varadhan lower bound {self.lower_bound:.4f}, and {self.fewer_rows:.4f} by "
            "ratios of fewer rows",
            f"mean log ratio without a normaliser: {self.mean_log_ratio:.4f}",
        ]
        if self.neighbours is not None:
            lines.append(f"nearest neighbours: {self.neighbours:.4f}")
        if self.discrete:
            lines.append(f"taken as discrete: {', '.join(self.discrete)}")
        if self.num_distinct < self.num_rows:
            lines.append(f"of {self.num_rows} rows {self.num_distinct} are distinct")
        return lines

    def figures(self) -> dict[str, Any]:
        """All but what is of single rows, as JSON takes it."""
        named = {n: part for n, part in asdict(self).items() if not isinstance(part, np.ndarray)}
        return {**named, "interval": list(self.interval), "warnings": self.warnings}

    def plot(self) -> "Figure":
        """The value, its interval and the bounds beside it."""
        from matplotlib.figure import Figure

        others = {
            "Donsker-Varadhan bound": self.lower_bound,
            "the same, fewer rows": self.fewer_rows,
            "mean log ratio": self.mean_log_ratio,
            "nearest neighbours": self.neighbours,
        }
        rows = {name: at for name, at in others.items() if at is not None and math.isfinite(at)}
        figure = Figure(figsize=(4.2, 3.0), dpi=130, layout="constrained")
        axes = figure.subplots()
        axes.axvspan(*self.interval, color="C1", alpha=0.2, lw=0)
        half = HALF_WIDTH * self.stderr
        axes.errorbar([self.value], [0], xerr=[half], fmt="o", color="C1", capsize=4)
        axes.plot(list(rows.values()), range(1, len(rows) + 1), "o", color="C0")
        axes.set_yticks(range(len(rows) + 1), ["estimate, 95 percent", *rows])
        axes.set(xlabel="nats")
        axes.invert_yaxis()
        return figure


def combined(
    whole: LeftOut,
    single: LeftOut,
    groups: Tensor,
    neighbours: float | None,
    discrete: list[str],
) -> InformationEstimate:
    """The estimate from the log ratios of all folds, by ratios of all other folds and of one."""
    gain_factor = 1 / (len(whole) - 2)
    bound, of_bound = _bound(whole, len(groups))
    fewer, of_fewer = _bound(single, len(groups))
    gain, short = gain_factor * max(bound - fewer, 0.0), max(fewer - bound, 0.0)
    value = bound + gain + short
    beyond = 0.0 if neighbours is None else max(neighbours - value, 0.0)
    influence = of_bound + gain_factor * (of_bound - of_fewer) if gain else of_bound
    of_folds = torch.tensor([donsker_varadhan(ratios) for _, ratios in whole])
    spread = of_folds.std().item() / math.sqrt(len(whole))
    log_ratio = torch.zeros(len(groups), dtype=torch.float64)
    for rows, ratios in whole:
        log_ratio[rows] = ratios.joint
    of_rows = error_of_rows(influence, groups)
    stderr = math.hypot(max(of_rows, spread), gain, short, beyond / 2)
    return InformationEstimate(
        value=value,
        stderr=stderr,
        lower_bound=bound,
        fewer_rows=fewer,
        mean_log_ratio=log_ratio.mean().item(),
        neighbours=neighbours,
        effective_pairs=min(
            effective_sample_size(ratios.apart.flatten()).item() for _, ratios in whole
        ),
        num_rows=len(groups),
        num_distinct=int(groups.max()) + 1,
        discrete=discrete,
        log_ratio=log_ratio.numpy(),
        influence=influence.numpy(),
        beside_rows=math.sqrt(max(stderr**2 - of_rows**2, 0.0)),
    )


def _bound(parts: LeftOut, num_rows: int) -> tuple[float, Tensor]:
    """The Donsker-Varadhan bound averaged over the rows, and N times what each moves it by."""
    total = sum(len(rows) * donsker_varadhan(ratios) for rows, ratios in parts) / num_rows
    influence = torch.zeros(num_rows, dtype=torch.float64)
    for rows, ratios in parts:
        influence[rows] = influences(ratios) + donsker_varadhan(ratios) - total
    return total, influence

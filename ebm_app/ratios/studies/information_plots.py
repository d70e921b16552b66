"""Plots of estimates of mutual information during training, narrow enough for a phone."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ebm_app.numerics import standard_error
from ebm_app.ratios.mutual_information import FoldResult, MIEstimate

WIDTH, DPI = 4.2, 130  # inches, dots an inch
STYLES = ("-", "--", ":")


def plot_approach(
    curves: Mapping[str, Sequence[dict[str, Any]]], truth: float, iterations: int
) -> Figure:
    """Estimates against the step beside the true value, and milliseconds a step below.

    Args:
        curves: method -> its evaluations, with "step", "divergence" (KL, in nats; None where it is
            not finite) and "step_ms".
    """
    figure = _figure(4.4)
    above, below = figure.subplots(2, 1, height_ratios=[3, 1])
    above.axhline(truth, color="black", ls="--", lw=1, label=f"true value, {truth:g} nats")
    for index, (method, curve) in enumerate(curves.items()):
        points = [(at["step"], at["divergence"]) for at in curve if at["divergence"] is not None]
        style = {
            "color": f"C{index}",
            "ls": STYLES[index % len(STYLES)],
            "marker": "os^"[index % 3],
        }
        above.plot(*zip(*points or [([], [])], strict=True), ms=4, label=method, **style)
    above.set(xlabel="step", ylabel="mutual information, nats", xlim=(0, iterations))
    above.set_ylim(min(0.0, above.get_ylim()[0]), max(1.2 * truth, above.get_ylim()[1]))
    above.legend(fontsize="small", loc="lower right")
    times = [curve[-1]["step_ms"] or 0.0 for curve in curves.values() if curve]
    bars = below.barh(list(curves), times, color=[f"C{index}" for index in range(len(curves))])
    below.bar_label(bars, fmt="%.1f", padding=2, fontsize="small")
    below.set(xlabel="milliseconds a step", xlim=(0, 1.2 * max(times, default=0.0) or 1.0))
    below.invert_yaxis()
    return figure


def plot_folds(
    results: Sequence[FoldResult], num_folds: int, estimate: MIEstimate | None = None
) -> Figure:
    """Mean log ratio over the rows of every fold, with its standard error, and once it is there
    the estimate with its own."""
    figure = _figure(3.0)
    axes = figure.subplots()
    means = [result.log_ratio.mean().item() for result in results]
    errors = [standard_error(result.log_ratio).item() for result in results]
    axes.errorbar(range(1, len(results) + 1), means, errors, fmt="o", capsize=4, label="a fold")
    if estimate is not None:
        middle, spread = estimate.mutual_information, estimate.stderr
        axes.axhline(middle, color="C1", label=f"estimate, {middle:.3f} ± {spread:.3f} nats")
        axes.axhspan(middle - spread, middle + spread, color="C1", alpha=0.2, lw=0)
    axes.set(xlabel="fold", ylabel="mean log ratio, nats", xlim=(0.5, num_folds + 0.5))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.legend(loc="outside lower center", ncols=2, fontsize="small")
    return figure


def _figure(height: float) -> Figure:
    return Figure(figsize=(WIDTH, height), dpi=DPI, layout="constrained")

"""Plots of estimates of mutual information and of density ratios, narrow enough for a phone."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure


def plot_progress(bounds: Sequence[tuple[int, float]], num_steps: int) -> Figure:
    """The bound so far, in nats, against the step, by pairs of both."""
    figure = _figure()
    axes = figure.subplots()
    axes.plot(*np.reshape(bounds, (-1, 2)).T, "o-", ms=4, clip_on=False)
    axes.set(xlabel="step", ylabel="lower bound so far, nats", xlim=(0, num_steps))
    low, high = min(0.0, axes.get_ylim()[0]), axes.get_ylim()[1]
    axes.set_ylim(low, high + 0.1 * (high - low))
    return figure


def plot_bracket(
    value: float, interval: tuple[float, float], others: Mapping[str, float | None]
) -> Figure:
    """An estimate with its interval, and beside it what else was found, but for what is unknown or
    infinite; in nats."""
    rows = {name: at for name, at in others.items() if at is not None and math.isfinite(at)}
    figure = _figure()
    axes = figure.subplots()
    axes.axvspan(*interval, color="C1", alpha=0.2, lw=0)
    half = interval[1] - value
    axes.errorbar([value], [0], xerr=[half], fmt="o", color="C1", capsize=4)
    axes.plot(list(rows.values()), range(1, len(rows) + 1), "o", color="C0")
    axes.set_yticks(range(len(rows) + 1), ["estimate, 95 percent", *rows])
    axes.set(xlabel="nats")
    axes.invert_yaxis()
    return figure


def plot_log_ratios(of0: np.ndarray, of1: np.ndarray) -> Figure:
    """Histograms of the log ratio, in nats, over the rows of both samples, (N0,) and (N1,)."""
    figure = _figure()
    axes = figure.subplots()
    edges = np.histogram_bin_edges(np.concatenate([of0, of1]), 40)
    for values, name in ((of0, "rows of p_0"), (of1, "rows of p_1")):
        axes.hist(values, edges, density=True, histtype="stepfilled", alpha=0.5, label=name)
    axes.axvline(0, color="black", lw=0.8)
    axes.set(xlabel="log p_1 / p_0, nats", ylabel="share a nat")
    axes.legend(fontsize="small")
    return figure


def _figure() -> Figure:
    return Figure(figsize=(4.2, 3.0), dpi=130, layout="constrained")

"""Plots of likelihoods and of a self-test."""

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from ebm_app.evaluation.selftest import Balance

SIZE, DPI = (5.2, 3.8), 130
#: of a map of where an image is odd, in standard deviations
MAX_EXCESS = 6


def plot_place(log_prob: Tensor, value: float) -> Figure:
    """A histogram of log-likelihoods (N,) in nats, with that of one image as a labelled line.

    An image far outside of the others is not drawn to scale: an arrow points to where it lies.
    """
    figure = Figure(figsize=SIZE, dpi=DPI, layout="constrained")
    axes = figure.subplots()
    axes.hist(log_prob.numpy(), bins="auto", color="tab:blue", alpha=0.6, label="held-out images")
    low, high = log_prob.min().item(), log_prob.max().item()
    margin = max(0.5 * (high - low), 1.0)
    if low - margin <= value <= high + margin:
        axes.axvline(value, color="black", label=f"this image, {value:.1f}")
    else:
        axes.annotate(
            f"this image, {value:.1f}",
            xy=(float(value > high), 0.75),
            xytext=(0.5, 0.75),
            xycoords="axes fraction",
            ha="center",
            va="center",
            arrowprops={"arrowstyle": "->", "lw": 2},
        )
    axes.set(xlabel="log-likelihood (nats)", ylabel="images")
    axes.legend(loc="upper left")
    axes.set_ylim(top=1.45 * axes.get_ylim()[1])  # room for what is written above the bars
    return figure


def plot_over(image: Tensor, excess: np.ndarray) -> Figure:
    """A map (H, W) of where an image (C, H, W) in [0, 1] is odd, laid over it; nothing of it where
    the excess is below one standard deviation."""
    figure = Figure(figsize=SIZE, dpi=DPI, layout="constrained")
    axes = figure.subplots()
    axes.imshow(image.mean(0).numpy(), cmap="gray", vmin=0, vmax=1)
    opacity = ((excess - 1) / 3).clip(0, 0.7)
    shown = axes.imshow(excess, cmap="autumn_r", vmin=0, vmax=MAX_EXCESS, alpha=opacity)
    figure.colorbar(shown, ax=axes, label="standard deviations above ordinary images")
    axes.set(xticks=[], yticks=[])
    return figure


def balance_figure(found: Balance) -> Figure:
    """The mean time score over the clock."""
    figure = Figure(figsize=(7, 3.5), layout="constrained")
    axes = figure.subplots()
    axes.errorbar(found.shares, found.mean, yerr=found.stderr, marker="o", capsize=3)
    axes.axhline(0, color="grey", lw=1)
    axes.set(xlabel="share of the clock", ylabel="E[s] per dim and unit of the clock (nats)")
    return figure

"""Plots of likelihoods and of a self-test."""

import numpy as np
from matplotlib.colors import CenteredNorm
from matplotlib.figure import Figure
from torch import Tensor

from ebm_app.evaluation.selftest import Balance

SIZE, DPI = (5.2, 3.8), 130
MAX_NUMBERS = 100


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


def plot_shares(components: Tensor) -> Figure:
    """A map of what each pixel adds to a log-likelihood, around the mean of the pixels.

    Args:
        components: (C, H, W) in nats; channels are summed. Small maps carry their numbers.
    """
    shares = components.sum(0).numpy()
    figure = Figure(figsize=SIZE, dpi=DPI, layout="constrained")
    axes = figure.subplots()
    norm = CenteredNorm(vcenter=shares.mean())
    image = axes.imshow(shares, cmap="RdBu", norm=norm)
    figure.colorbar(image, ax=axes, label="nats added by a pixel; white is their mean")
    axes.set(xticks=[], yticks=[], xlabel=f"sum: {shares.sum():.1f} nats")
    if shares.size <= MAX_NUMBERS:
        for (row, column), share in np.ndenumerate(shares):
            dark = abs(norm(share) - 0.5) > 0.3
            axes.text(
                *(column, row, f"{share:z.1f}"),
                **{"ha": "center", "va": "center", "fontsize": 7.5},
                color="white" if dark else "black",
            )
    return figure


def balance_figure(found: Balance) -> Figure:
    """The mean time score over the clock."""
    figure = Figure(figsize=(7, 3.5), layout="constrained")
    axes = figure.subplots()
    axes.errorbar(found.shares, found.mean, yerr=found.stderr, marker="o", capsize=3)
    axes.axhline(0, color="grey", lw=1)
    axes.set(xlabel="share of the clock", ylabel="E[s] per dim and unit of the clock (nats)")
    return figure

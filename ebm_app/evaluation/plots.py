"""Plots of where an image is odd, and of a self-test."""

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from ebm_app.evaluation.selftest import Balance

SIZE, DPI = (5.2, 3.8), 130
#: of a map of where an image is odd, in standard deviations
MAX_EXCESS = 6


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

"""Figures of annealed chains."""

from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from ebm_app.evaluation.log_z.methods import ChainTable


def plot_chains(tables: dict[str, ChainTable], target: Path) -> None:
    """Log-weights and acceptance by distribution.

    Args:
        tables: runs by name. target: a PNG file.
    """
    figure = Figure(figsize=(11, 4), layout="constrained")
    weights, acceptance = figure.subplots(1, 2)
    for name, table in tables.items():
        num = len(table.log_weight) - 1
        color = draw_weights(weights, table.log_weight, num, name)
        draw_acceptance(acceptance, table.acceptance, num, color)
    weights.set_yscale("symlog", linthresh=10)  # plain AIS may be off by hundreds of nats
    weights.legend(fontsize="small")
    figure.savefig(target, dpi=110)


def temperatures_figure(log_weight: Tensor, acceptance: Tensor, num_distributions: int) -> Figure:
    """One run of chains that have passed some of their distributions.

    Args:
        log_weight: (k + 1, B), after 0, ..., k distributions, in nats. acceptance: (k,).
        num_distributions: of the whole run.
    """
    figure = Figure(figsize=(9, 3.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    color = draw_weights(left, log_weight, num_distributions, "mean and s.d.")
    draw_acceptance(right, acceptance, num_distributions, color)
    left.set_xlim(0, 1)
    right.set_xlim(0, 1)
    return figure


def draw_weights(axes: Axes, log_weight: Tensor, num_distributions: int, label: str) -> str:
    """Mean and standard deviation of log-weights (k + 1, B); the colour of the line."""
    share = torch.arange(len(log_weight)) / num_distributions
    mean, deviation = log_weight.mean(1), log_weight.std(1)
    (line,) = axes.plot(share, mean, label=label)
    axes.fill_between(share, mean - deviation, mean + deviation, alpha=0.2, lw=0)
    axes.set(xlabel="share of the temperatures passed", ylabel="log w, mean and s.d. (nats)")
    return line.get_color()


def draw_acceptance(axes: Axes, acceptance: Tensor, num_distributions: int, color: str) -> None:
    """Acceptance (k,); nothing for chains without transitions."""
    if not acceptance.isnan().all():
        share = torch.arange(1, len(acceptance) + 1) / num_distributions
        axes.plot(share, acceptance, color=color)
    axes.set(xlabel="share of the temperatures passed", ylabel="acceptance", ylim=(0, 1))

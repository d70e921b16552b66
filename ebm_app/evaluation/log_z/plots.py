"""A figure of annealed chains."""

from collections.abc import Mapping

import torch
from matplotlib.figure import Figure

from ebm_app.evaluation.log_z.chains import ChainState


def chains_figure(runs: Mapping[str, ChainState], num_distributions: int) -> Figure:
    """Log-weights and acceptance by distribution, of chains that have passed some or all of them.

    Args:
        runs: by name. num_distributions: of a whole run.
    """
    figure = Figure(figsize=(11, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, run in runs.items():
        share = torch.arange(len(run.log_weight)) / num_distributions
        log_weight = run.log_weight.cpu()
        mean, deviation = log_weight.mean(1), log_weight.std(1)
        (line,) = left.plot(share, mean, label=name)
        left.fill_between(share, mean - deviation, mean + deviation, alpha=0.2, lw=0)
        right.plot(share[1:], run.acceptance.cpu(), color=line.get_color())
    label = "share of the temperatures passed"
    left.set(xlabel=label, ylabel="log w, mean and s.d. (nats)", xlim=(0, 1))
    left.set_yscale("symlog", linthresh=10)  # plain AIS may be off by hundreds of nats
    left.legend(fontsize="small")
    right.set(xlabel=label, ylabel="acceptance", xlim=(0, 1), ylim=(0, 1))
    return figure

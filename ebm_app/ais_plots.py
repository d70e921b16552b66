"""Pictures of annealed paths."""

from pathlib import Path

import torch
from matplotlib.figure import Figure

from ebm_app.path_runs import PathTable


def plot_paths(
    tables: dict[str, PathTable], log_z: dict[str, tuple[float, float]], target: Path
) -> None:
    """Log-weights by level, acceptance by level, the final log-weights, and the estimates.

    Args:
        tables: runs by name. log_z: estimate and standard error by method. target: a PNG file.
    """
    figure = Figure(figsize=(11, 7), layout="constrained")
    (weights, acceptance), (finals, estimates) = figure.subplots(2, 2)
    for name, table in tables.items():
        levels = torch.linspace(0, 1, len(table.log_weight))
        mean, deviation = table.log_weight.mean(1), table.log_weight.std(1)
        (line,) = weights.plot(levels, mean, label=name)
        weights.fill_between(levels, mean - deviation, mean + deviation, alpha=0.2, lw=0)
        if not table.acceptance.isnan().all():
            acceptance.plot(levels[1:], table.acceptance, color=line.get_color(), label=name)
        last = table.log_weight[-1].sort().values
        finals.plot(last, torch.linspace(0, 1, len(last)), color=line.get_color())
    weights.set(xlabel="share of the levels passed", ylabel="log w, mean and s.d. (nats)")
    weights.set_yscale("symlog", linthresh=10)  # plain AIS may be off by hundreds of nats
    weights.legend(fontsize="small")
    acceptance.set(xlabel="share of the levels passed", ylabel="acceptance", ylim=(0, 1))
    finals.set_xscale("symlog", linthresh=10)
    finals.set(xlabel="log w at the end (nats)", ylabel="share of the paths below")
    for place, (value, stderr) in enumerate(log_z.values()):
        estimates.errorbar([value], [place], xerr=[stderr], marker="o", capsize=3)
    estimates.set_yticks(range(len(log_z)), log_z)
    estimates.invert_yaxis()
    estimates.set_xscale("symlog", linthresh=1)
    estimates.set(xlabel="log Z (nats)")
    figure.savefig(target, dpi=110)

"""The energy -log p_t(x) along t, of held-out images and of noise.

python evaluate/studies/energy.py digits-energy --limit 20
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from ebm_app.evaluation.held_out import HeldOutFlags, held_out, open_model
from ebm_app.io.command_line import parse
from ebm_app.io.fields import configuration, setting
from ebm_app.io.output import Output
from ebm_app.io.start import run_script
from ebm_app.io.writing import save_figure
from ebm_app.likelihood.dequantisation import dequantisation_noise
from ebm_app.numerics.tensors import seeded
from ebm_app.paths.schedules import ARC_LENGTH

NUM_TIMES = 60


@configuration(kw_only=True)
class Arguments(HeldOutFlags):
    """The command line."""

    output_dir: Path = setting("where record and plot go", Path("runs/energy"))


@torch.no_grad()
def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Draw energy.png; the mean energies in nats per dimension, by the share of the clock."""
    args = parse(Arguments, __doc__, argv)
    _, ebm = open_model(args)
    levels, _ = held_out(args, ebm)
    output = Output(args.output_dir / "energy.json", args)
    energy = ebm.energy
    images = ebm.dequantise(levels, dequantisation_noise(1, levels, args.seed)[0]).y
    noise = torch.randn(images.shape, generator=seeded("cpu", args.seed)).to(images.device)
    times = ARC_LENGTH.times(energy.path, energy.start, energy.end, NUM_TIMES)
    metrics = {"shares": torch.linspace(0, 1, NUM_TIMES + 1).tolist()}
    for name, x in {"images": images, "noise": noise}.items():
        found = [-energy.log_density(x, t).mean().item() for t in times.tolist()]
        metrics[name] = [value / images[0].numel() for value in found]
    output.save(metrics)
    save_figure(figure_of(metrics), output.folder / "energy.png")
    return metrics


def figure_of(metrics: dict[str, list[float]]) -> Figure:
    """The energies over the clock."""
    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.subplots()
    for name in ("images", "noise"):
        axes.plot(metrics["shares"], metrics[name], label=name)
    axes.set(xlabel="share of the clock", ylabel="energy per dim (nats)")
    axes.legend()
    return figure


if __name__ == "__main__":
    sys.exit(run_script(main))

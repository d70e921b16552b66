"""Figures of a run, as PNG."""

from pathlib import Path

from matplotlib.figure import Figure

from ebm_app.metrics import read_metrics


def plot_training(metrics: Path, target: Path) -> None:
    """Training and validation loss, and validation bits per dim, against the step."""
    lines = read_metrics(metrics)
    figure = Figure(figsize=(9, 3.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    for key, label in (("loss", "training"), ("validation_loss", "validation")):
        points = [(line["step"], line[key]) for line in lines if key in line]
        left.plot(*zip(*points, strict=True), label=label)
    left.set(xlabel="step", ylabel="loss")
    left.legend()
    points = [
        (line["step"], line["validation_bits_per_dim"], line["validation_stderr"])
        for line in lines
        if "validation_bits_per_dim" in line
    ]
    right.errorbar(*zip(*points, strict=True), capsize=3, marker="o")
    right.set(xlabel="step", ylabel="validation bits per dim")
    figure.savefig(target, dpi=120)

"""The table and the figure of an ablation."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

Table = Sequence[dict[str, Any]]
#: key of a row -> heading; those of BITS come with a standard error
NAMES = {"space": "space", "variant": "variant", "step": "step"}
BITS = {
    "elbo": "`elbo`",
    "elbo_gain": "lower than the base",
    "ratio": "`ratio`",
    "ratio_gain": "lower than the base",
    "pf_ode": "`pf_ode`",
    "pf_ode_gain": "lower than the base",
}
COSTS = {
    "quadrature_error": "error of the quadrature",
    "images_per_second": "images/s",
    "core_seconds": "core seconds",
}


def to_markdown(table: Table) -> str:
    """The table as Markdown, in bits per dim; what a row lacks is an empty cell."""
    heads = [*NAMES.values(), *BITS.values(), *COSTS.values()]
    lines = [heads, ["---"] * len(heads)]
    for row in table:
        names = ["" if row[key] is None else str(row[key]) for key in NAMES]
        bits = [
            f"{row[key]:.3f} ± {row[f'{key}_stderr']:.3f}" if key in row else "" for key in BITS
        ]
        costs = [f"{row[key]:.3g}" if key in row else "" for key in COSTS]
        lines.append([*names, *bits, *costs])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def plot_curves(table: Table, target: Path) -> None:
    """How much lower than the base the bits per dim are against the step, a panel an estimator."""
    # a second to import, only for this
    import pandas as pd
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    titles = {"ratio": "integral of the time score", "pf_ode": "probability-flow ODE"}
    compared = pd.DataFrame(row for row in table if "ratio_gain" in row and row["step"])
    for axes, (name, title) in zip(panels, titles.items(), strict=True):
        columns = ["step", f"{name}_gain", f"{name}_gain_stderr"]
        for label, rows in compared.groupby(["space", "variant"], sort=False):
            points = (rows[column] for column in columns)
            axes.errorbar(*points, capsize=3, marker="o", label=", ".join(label))
        axes.axhline(0, color="black", lw=1, ls="--")
        axes.set(title=title, xlabel="step")
    panels[0].set_ylabel("bits per dim below the base")
    panels[0].legend()
    figure.savefig(target, dpi=120)

"""log Z against the number of temperatures, from records of evaluate/ais.py.

python evaluate/studies/log_z.py runs/ais-100 runs/ais-400 --output_dir runs/log-z
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ebm_app.cli.command_line import Positional, argument, parse, run_script
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import configuration, setting
from ebm_app.utils.files import read_json, save_figure
from ebm_app.utils.output import Output

#: what is drawn: its name before that of a figure, its marker, and its place beside the others
KINDS = {"": ("o", 1.0), "forward_": ("^", 0.96), "reverse_": ("v", 1.04)}


@configuration(kw_only=True)
class Arguments:
    """The command line."""

    runs: Positional[tuple[Path, ...]] = argument("folders of runs, of one model and method")
    output_dir: Path = setting("where the plot goes", Path("runs/log-z"))


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Draw log_z.png; the figures of every run by its number of temperatures."""
    args = parse(Arguments, __doc__, argv)
    output = Output(args.output_dir / "log_z.json", args)
    rows = {}
    for folder in args.runs:
        record = read_json(folder / "ais.json")
        k, figures = record["settings"]["num_temperatures"], record["figures"] or {}
        if k in rows or "forward_log_z" not in figures:
            raise UserError(
                f"{folder}: give ended runs from both sides, one of each number of temperatures"
            )
        rows[k] = figures
    output.save(rows)
    save_figure(figure_of(rows), output.folder / "log_z.png")
    return rows


def figure_of(rows: dict[int, dict[str, Any]]) -> Figure:
    """log Z with its error by the number of temperatures: joined, forward and in reverse."""
    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.subplots()
    for kind, (marker, place) in KINDS.items():
        values = [row[f"{kind}log_z"] for row in rows.values()]
        errors = [row[f"{kind}stderr"] for row in rows.values()]
        at = [place * k for k in rows]
        label = kind.rstrip("_") or "joined"
        axes.errorbar(at, values, yerr=errors, fmt=marker, capsize=3, label=label)
    axes.axhline(0, color="grey", lw=1)
    axes.set(xscale="log", xlabel="temperatures", ylabel="log Z (nats)")
    axes.set_xticks(list(rows), labels=[str(k) for k in rows])
    axes.minorticks_off()
    axes.legend()
    return figure


if __name__ == "__main__":
    sys.exit(run_script(main))

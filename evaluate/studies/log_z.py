"""Tabulate and plot log Z against the number of temperatures, from records of evaluate/ais.py.

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
from ebm_app.utils.output import Output, to_markdown

#: Label -> prefix of its figures, marker, and horizontal offset as a factor
SERIES = {
    "both": ("", "o", 1.0),
    "forward": ("forward_", "^", 0.96),
    "reverse": ("reverse_", "v", 1.04),
}


@configuration(kw_only=True)
class Arguments:
    """Command-line arguments."""

    runs: Positional[tuple[Path, ...]] = argument("folders of runs of one model and one method")
    output_dir: Path = setting("folder for the plot", Path("runs/log-z"))


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Plot log_z.png; return the figures of every run by its number of temperatures."""
    args = parse(Arguments, __doc__, argv)
    output = Output(args.output_dir / "log_z.json", args)
    rows = {}
    for folder in args.runs:
        record = read_json(folder / "ais.json")
        num_temperatures, figures = record["settings"]["num_temperatures"], record["figures"] or {}
        if num_temperatures in rows or "forward_log_z" not in figures:
            raise UserError(
                f"{folder} is an interrupted run, a run without forward and reverse chains, or "
                "repeats a number of temperatures. Remove it from the command."
            )
        rows[num_temperatures] = figures
    names = [prefix + name for prefix, *_ in SERIES.values() for name in ("log_z", "stderr")]
    table = [{"temperatures": k, **{n: row[n] for n in names}} for k, row in rows.items()]
    print(to_markdown(table))
    output.save(rows)
    save_figure(plot(rows), output.folder / "log_z.png")
    return rows


def plot(rows: dict[int, dict[str, Any]]) -> Figure:
    """Plot log Z with its standard error against the number of temperatures."""
    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.subplots()
    for label, (prefix, marker, offset) in SERIES.items():
        values = [row[f"{prefix}log_z"] for row in rows.values()]
        errors = [row[f"{prefix}stderr"] for row in rows.values()]
        places = [offset * num_temperatures for num_temperatures in rows]
        axes.errorbar(places, values, yerr=errors, fmt=marker, capsize=3, label=label)
    axes.axhline(0, color="grey", lw=1)
    axes.set(xscale="log", xlabel="temperatures", ylabel="log Z (nats)")
    axes.set_xticks(list(rows), labels=[str(num_temperatures) for num_temperatures in rows])
    axes.minorticks_off()
    axes.legend()
    return figure


if __name__ == "__main__":
    sys.exit(run_script(main))

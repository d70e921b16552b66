"""Draw the bound of trainings against the core seconds that they took: docs/mnist-curves.png.

    python tools/learning_curves.py --curve "Muon" 0.8 runs/mnist/metrics.jsonl

A curve is a label, the core seconds of a step, and the metrics of a run and of those that went on
from it. One number of core seconds a step, of trainings timed in turns, makes curves of different
days and machines comparable.
"""

from ebm_app.io.start import run_script  # isort: skip  before what takes seconds

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ebm_app.io.cli import Parser, flag
from ebm_app.io.errors import UserError
from ebm_app.io.fields import Positive
from ebm_app.training.metrics import read_metrics

#: the bound in a validation's line: its name, and that in runs of before it led
BOUND = ("validation_elbo_bits_per_dim", "validation_bits_per_dim")


class Curve(NamedTuple):
    """Core seconds and the bound in bits per dim of every validation of a training."""

    label: str
    core_seconds: list[float]
    bound: list[float]


def read_curve(words: Sequence[str]) -> Curve:
    """The curve of a label, core seconds of a step and files of metrics, in their order.

    Raises:
        UserError: for other words, or files without a validation.
    """
    try:
        label, seconds, *files = words[0], float(words[1]), *words[2:]
    except (IndexError, ValueError) as error:
        raise UserError(
            "a --curve lacks words: give a label, the core seconds of a step and files"
        ) from error
    curve, before = Curve(label, [], []), 0
    for file in files:
        rows = read_metrics(Path(file))
        for row in rows:
            found = [row[name] for name in BOUND if name in row]
            if found:
                curve.core_seconds.append(seconds * (before + row["step"]))
                curve.bound.append(found[0])
        before += rows[-1]["step"] if rows else 0
    if not curve.bound:
        raise UserError(f"the curve '{label}' has no validation: give files metrics.jsonl of runs")
    return curve


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Draw the curves; the last bound of each."""
    parser = Parser(__doc__)
    add = parser.add_argument
    words = "label, core seconds of a step, files metrics.jsonl; again for another curve"
    add("--curve", nargs="+", action="append", default=[], metavar="WORD", help=words)
    add("--level", type=flag(Positive), default=0.95, metavar="BITS", help="where a line is drawn")
    add("--output", default="docs/mnist-curves.png", help="the picture to write")
    args = parser.parse_args(argv)
    curves = [read_curve(words) for words in args.curve]
    from matplotlib.figure import Figure  # a second to import: --help does without

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for curve in curves:
        axes.plot(curve.core_seconds, curve.bound, marker="o", ms=3, label=curve.label)
    axes.axhline(args.level, color="black", lw=0.8, ls="--")
    axes.set(xlabel="core seconds", ylabel="bound on validation images, bits per dim")
    axes.set_xscale("log")
    axes.legend()
    figure.savefig(args.output, dpi=110)
    return {curve.label: curve.bound[-1] for curve in curves}


if __name__ == "__main__":
    sys.exit(run_script(main))

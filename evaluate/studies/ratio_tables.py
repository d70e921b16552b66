"""Tables of log-ratio estimators: problems by methods, each cell by the paper's protocol.

Of a cell every learning rate is tried with the first seed; the rate with the best validation error
is repeated with the other seeds. The result is the mean and standard deviation over the seeds of
the error on fresh test points (arXiv:2502.02300, appendix F).
"""

import csv
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import torch

from ebm_app.io.command_line import CommonFlags
from ebm_app.io.errors import NumericalError, UserError
from ebm_app.io.fields import Draws, Positive, PositiveInt, configuration, setting
from ebm_app.io.output import Output
from ebm_app.io.processes import make_accelerator, resolve_device, shut_down
from ebm_app.io.records import to_dict
from ebm_app.io.registry import choose
from ebm_app.numerics.tensors import seeded
from ebm_app.ratios.points import EvaluationPoints, as_numbers, matrix_metrics
from ebm_app.ratios.problems import PROBLEMS, Problem
from ebm_app.ratios.training import TEST, VALIDATION, RatioTrainer
from studies.grid import Figures, fill

with Path(__file__).with_name("reported.csv").open(encoding="utf-8", newline="") as _file:
    _, *_PAPER = csv.reader(_file)
#: (problem, method) -> what the paper reports (arXiv:2502.02300, appendices E and F): mean and
#: standard deviation over three runs of the mean squared error of the log ratio, in nats^2
REPORTED: dict[tuple[str, str], tuple[float, float]] = {
    (problem, method): (float(error), float(deviation))
    for problem, method, error, deviation, *_ in _PAPER
}
METRICS = {
    "error": "mean squared error of the log ratio, in nats²; in brackets the paper's",
    "divergence": "mean log ratio over p₁, which estimates the mutual information, in nats",
    "matrix": "mutual information of the learned matrix, -1/2 log det Σ, in nats",
}
#: (problem, method) of every cell of a table
TableCells = list[tuple[str, str]]
Row = dict[str, Any]


@dataclass(frozen=True)
class StudyBudget:
    """How much work a table is.

    Args:
        num_seeds: runs of the best learning rate, the first of them among those that try rates.
        num_points: points of validation and of test.
        iterations, learning_rates: in place of each problem's own, if given.
        first_seed: of the seeds, which follow each other.
    """

    num_seeds: int = 3
    num_points: int = 10_000
    iterations: int | None = None
    learning_rates: tuple[float, ...] = ()
    first_seed: int = 0

    def of(self, problem: str) -> Problem:
        """The problem with this budget."""
        found = PROBLEMS[problem]
        training = found.training
        if self.iterations is not None:
            every = min(training.eval_every, self.iterations)
            training = replace(training, iterations=self.iterations, eval_every=every)
        rates = self.learning_rates or found.learning_rates
        return replace(found, learning_rates=rates, training=training)


class TableRun(NamedTuple):
    """One training."""

    problem: str
    method: str
    learning_rate: float
    seed: int

    @property
    def name(self) -> str:
        """Of its cell in the grid."""
        return f"{self.problem}/{self.method}/lr={self.learning_rate:g},seed={self.seed}"

    def settings(self, budget: StudyBudget) -> dict[str, Any]:
        """What its figures depend on."""
        problem = budget.of(self.problem)
        method = problem.methods[self.method]
        return {
            **self._asdict(),
            "settings": {"kind": type(method).__name__, **asdict(method)},
            "training": asdict(problem.training),
            "num_points": budget.num_points,
        }

    def train(self, budget: StudyBudget, device: str) -> Figures:
        """Its errors: in validation by the step, and of the best weights on test points."""
        problem, num = budget.of(self.problem), budget.num_points
        validation, test = (
            EvaluationPoints(problem.pair, num, seeded(device, 0, stream))
            for stream in (VALIDATION, TEST)
        )
        trainer = RatioTrainer(
            problem.methods[self.method],
            problem.pair,
            self.seed,
            self.learning_rate,
            problem.training,
            validation.criterion,
            device,
        )
        curve = []
        with suppress(NumericalError):  # diverged: the best weights before that are judged
            for at in trainer.run():
                curve.append({"step": at.step, **as_numbers(at.metrics)})
        ratio = trainer.best_ratio()
        value, nfe = ratio.accurate_log_ratio(test.x)
        return {
            "validation_error": trainer.best_error,
            "best_step": trainer.best_step,
            "test": as_numbers(test.metrics(value) | matrix_metrics(ratio)),
            "nfe": nfe,
            "seconds": trainer.seconds,
            "curve": curve,
        }


def train_cells(
    folder: Path, cells: TableCells, budget: StudyBudget, device: str = "cpu"
) -> list[Row]:
    """Train what is missing, shared among processes; the result of every cell."""
    accelerator = make_accelerator(device=device)

    def trained(runs: Sequence[TableRun]) -> list[Figures]:
        by_name = {run.name: run for run in runs}
        settings = {name: run.settings(budget) for name, run in by_name.items()}
        found = fill(
            folder, settings, lambda name, _: by_name[name].train(budget, device), accelerator
        )
        return list(found.values())

    first = [
        TableRun(*cell, rate, budget.first_seed)
        for cell in cells
        for rate in budget.of(cell[0]).learning_rates
    ]
    tried = list(zip(first, trained(first), strict=True))
    best = []
    for cell in cells:
        own = [(run, figures) for run, figures in tried if (run.problem, run.method) == cell]
        best.append(min(own, key=lambda pair: pair[1]["validation_error"])[0])
    num = budget.num_seeds
    seeds = range(budget.first_seed, budget.first_seed + num)
    found = trained([run._replace(seed=seed) for run, seed in product(best, seeds)])
    return [result_of(run, found[num * k : num * (k + 1)], budget) for k, run in enumerate(best)]


def result_of(best: TableRun, records: Sequence[Figures], budget: StudyBudget) -> Row:
    """Means over the runs of a cell, beside the paper's."""
    problem = budget.of(best.problem)
    row: Row = {"problem": best.problem, "method": best.method}
    for name in records[0]["test"]:
        values = [record["test"][name] for record in records]
        is_finite = None not in values
        row[name] = fmean(values) if is_finite else None
        several = is_finite and len(values) > 1
        row[f"{name}_deviation"] = stdev(values) if several else None
    paper = REPORTED.get((best.problem, best.method), (None, None))
    return {
        **row,
        "divergence_truth": problem.kl_divergence,
        "learning_rate": best.learning_rate,
        "iterations": problem.training.iterations,
        "nfe": max(record["nfe"] for record in records),
        "curves": [record["curve"] for record in records],
        **dict(zip(("paper_error", "paper_error_deviation"), paper, strict=True)),
    }


@configuration(kw_only=True)
class StudyFlags(CommonFlags):
    """The flags of a table."""

    problems: tuple[str, ...] = setting("columns; all if not given", ())
    methods: tuple[str, ...] = setting("rows; all if not given", ())
    iterations: PositiveInt | None = setting("steps of a run, if not the problem's own", None)
    learning_rates: tuple[Positive, ...] = setting("in place of the paper's grid", ())
    num_seeds: Draws | None = setting(
        f"runs of the best learning rate, if not {StudyBudget.num_seeds}, or 2 where quick", None
    )
    quick: bool = setting("a few cells on a small budget: about two minutes", False)
    output_dir: Path = setting("where runs, table and plots go; it is resumed", Path("runs"))


def budget_of(args: StudyFlags, quick: StudyBudget) -> StudyBudget:
    """The budget that the flags ask for; a quick one keeps the flags that were given."""
    base = quick if args.quick else StudyBudget()
    return replace(
        base,
        iterations=base.iterations if args.iterations is None else args.iterations,
        learning_rates=args.learning_rates or base.learning_rates,
        num_seeds=args.num_seeds or base.num_seeds,
        first_seed=args.seed,
    )


def chosen_cells(
    problems: Sequence[str], methods: Sequence[str], all_problems: Sequence[str]
) -> TableCells:
    """The cells of these problems and methods that make sense; all, where none are named.

    Raises:
        UserError: for an unknown name, or where nothing is left.
    """
    known = {method for problem in all_problems for method in PROBLEMS[problem].methods}
    problems = [choose("problem", name, all_problems) for name in problems] or all_problems
    methods = [choose("method", name, known) for name in methods]
    cells = [
        (problem, method)
        for problem in dict.fromkeys(problems)
        for method in dict.fromkeys(methods or PROBLEMS[problem].methods)
        if method in PROBLEMS[problem].methods
    ]
    if not cells:
        raise UserError("these methods do not belong to these problems: name others, or none")
    return cells


def run_study(
    args: StudyFlags, cells: TableCells, budget: StudyBudget, name: str, shown: Sequence[str]
) -> dict[str, Any] | None:
    """Run every cell, and write ``name``.json and .png.

    Args:
        shown: metrics of which a table is printed; the first is drawn against the step.

    Returns:
        The table, on the main process.
    """
    folder, device = args.output_dir, resolve_device(args.device)
    accelerator = make_accelerator(device=device)
    output = Output(folder / f"{name}.json", to_dict(args), accelerator.is_main_process)
    if device == "cpu":  # the matrices are small: several threads would wait for each other
        torch.set_num_threads(1)
    rows = train_cells(folder / "runs", cells, budget, device)
    if not accelerator.is_main_process:
        return shut_down(accelerator)
    from studies.ratio_plots import plot_curves  # a second to import

    curves = [row.pop("curves") for row in rows]
    answer = {"table": rows}
    with output.saving(answer):
        plot_curves(rows, curves, shown[0], folder / f"{name}.png")
    for metric in shown:
        print(f"{METRICS[metric]}:\n\n{table(rows, metric)}")
    shut_down(accelerator)
    return answer


def table(rows: Sequence[Row], metric: str = "error") -> str:
    """Methods down, problems across; a cell is our mean +- deviation (the paper's mean)."""
    problems = list(dict.fromkeys(row["problem"] for row in rows))
    cells = {(row["problem"], row["method"]): _cell(row, metric) for row in rows}
    lines = [["method", *problems], ["---", *["---:"] * len(problems)]]
    for method in dict.fromkeys(row["method"] for row in rows):
        lines.append([method, *(cells.get((problem, method), "") for problem in problems)])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(row: Row, metric: str) -> str:
    if row.get(metric) is None:
        return "diverged"
    text, deviation = f"{row[metric]:.4g}", row.get(f"{metric}_deviation")
    paper = row.get(f"paper_{metric}")
    text += "" if deviation is None else f" ± {deviation:.2g}"
    return text if paper is None else f"{text} ({paper:.4g})"

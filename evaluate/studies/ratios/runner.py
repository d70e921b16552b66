"""What the scripts that make tables share: flags, the run of all cells, and what is written."""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm

from ebm_app.io.cli import Parser, flag, resolve_device
from ebm_app.io.errors import UserError
from ebm_app.io.fields import Draws, Positive, PositiveInt
from ebm_app.io.output import Output
from ebm_app.io.processes import make_accelerator, shut_down
from ebm_app.io.registry import choose
from ebm_app.ratios.problems import PROBLEMS
from studies.ratios.step_times import step_times
from studies.ratios.study import Study, StudyBudget
from studies.ratios.tables import METRICS, rows_of, to_csv, to_markdown

#: (problem, method) of every cell of a table
TableCells = list[tuple[str, str]]


def add_study_flags(parser: Parser, output_dir: str) -> None:
    """The flags of a table."""
    add = parser.add_argument_group("data").add_argument
    add("--problems", nargs="+", default=[], help="columns; all if not given")
    add = parser.add_argument_group("model").add_argument
    add("--methods", nargs="+", default=[], help="rows; all if not given")
    add = parser.add_argument_group("training").add_argument
    add("--iterations", type=flag(PositiveInt), help="steps of a run, if not the problem's own")
    rates = "in place of the paper's grid"
    add("--learning_rates", type=flag(Positive), nargs="+", default=[], help=rates)
    seeds = f"runs of the best learning rate, if not {StudyBudget.num_seeds}, or 2 where quick"
    add("--num_seeds", type=flag(Draws), help=seeds)
    add = parser.add_argument_group("run").add_argument
    add("--quick", action="store_true", help="a few cells on a small budget: about two minutes")
    add("--output_dir", default=output_dir, help="where runs, table and plots go; it is resumed")
    parser.add_common()


def budget_of(args: Namespace, quick: StudyBudget) -> StudyBudget:
    """The budget that the flags ask for; a quick one keeps the flags that were given."""
    base = quick if args.quick else StudyBudget()
    return replace(
        base,
        iterations=base.iterations if args.iterations is None else args.iterations,
        learning_rates=tuple(args.learning_rates) or base.learning_rates,
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
    for problem in problems:
        choose("problem", problem, all_problems)
    for method in methods:
        choose("method", method, known)
    cells = [
        (problem, method)
        for problem in problems or all_problems
        for method in methods or PROBLEMS[problem].methods
        if method in PROBLEMS[problem].methods
    ]
    if not cells:
        raise UserError("these methods do not belong to these problems: name others, or none")
    return cells


def run_study(
    args: Namespace, cells: TableCells, budget: StudyBudget, name: str, shown: Sequence[str]
) -> dict[str, Any] | None:
    """Run every cell, shared among processes, and write ``name``.json, .csv, .md and the plots.

    Args:
        shown: metrics of which a table is printed; the first is drawn against the step.

    Returns:
        The table and the times of steps, on the main process.
    """
    folder, device = Path(args.output_dir), resolve_device(args.device)
    accelerator = make_accelerator(device=device)
    output = Output(folder / f"{name}.json", vars(args), accelerator.is_main_process)
    if device == "cpu":  # the matrices are small: several threads would wait for each other
        torch.set_num_threads(1)
    study = Study(folder, budget, device)
    share = cells[accelerator.process_index :: accelerator.num_processes]
    _run_cells(study, share, is_shown=accelerator.is_main_process)
    accelerator.wait_for_everyone()
    answer = _report(study, cells, output, name, shown) if accelerator.is_main_process else None
    shut_down(accelerator)
    return answer


def _run_cells(study: Study, cells: TableCells, is_shown: bool) -> None:
    total = sum(study.num_evaluations(problem) for problem, _ in cells)
    with tqdm(total=total, unit="evaluation", disable=not is_shown) as bar:
        for problem, method in cells:
            bar.set_description(f"{problem} {method}")
            for done in study.cell(problem, method):
                bar.update(done)


def _report(
    study: Study, cells: TableCells, output: Output, name: str, shown: Sequence[str]
) -> dict[str, Any]:
    # a second to import, only for this

    # a second to import, only for this
    from studies.ratios.plots import plot_curves, plot_table

    results = [study.metrics(problem, method) for problem, method in cells]
    times = {
        problem: step_times(
            study.budget.of(problem), [m for p, m in cells if p == problem], study.device
        )
        for problem in dict.fromkeys(problem for problem, _ in cells)
    }
    rows = rows_of(results, times)
    table = "\n".join(f"{METRICS[metric]}:\n\n{to_markdown(rows, metric)}" for metric in shown)
    print(table)
    for problem, by_method in times.items():
        line = ", ".join(f"{method} {ms:.2f}" for method, ms in by_method.items())
        print(f"ms a step, {problem}: {line}")
    answer = {"table": rows, "ms": times}
    folder = study.folder
    with output.saving(answer):
        (folder / f"{name}.csv").write_text(to_csv(rows), encoding="utf-8")
        (folder / f"{name}.md").write_text(table, encoding="utf-8")
        plot_table(rows, folder / f"{name}.png")
        plot_curves(results, shown[0], folder / f"{name}_curves.png")
    return answer

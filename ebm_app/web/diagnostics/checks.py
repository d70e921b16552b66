"""The self-test of a model, live or from the record of an earlier one."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import torch
from annotated_types import Ge, Le
from matplotlib.figure import Figure

from ebm_app.evaluation.held_out import held_out_levels
from ebm_app.evaluation.plots import balance_figure
from ebm_app.evaluation.selftest import (
    Balance,
    Check,
    SelfTestBudget,
    SelfTestReport,
    iterate_checks,
)
from ebm_app.io.errors import UserError
from ebm_app.io.records import as_written, read_json
from ebm_app.likelihood import PFODEDensity

from ..models import Models, without_path
from ..shared import progress

RECORD_FILE = "selftest.json"
SIZES, DEFAULT_IMAGES = (8, 297), 32
NUM_TIMES, NUM_REFERENCE, PF_ODE_STEPS = 16, 100, 20
#: the mean time score, and a text
ShownTest = tuple[Figure | None, str]


def self_test(
    model: str,
    num_images: Annotated[int, Ge(SIZES[0]), Le(SIZES[1])],
    *,
    models: Models,
    seed: int,
) -> Iterator[ShownTest]:
    """Test a model on at most so many held-out images of its data."""
    ebm = models.load(model)
    with without_path(Path(models.data_root), "data"):
        levels = held_out_levels(ebm, ebm.config.dataset, data_root=models.data_root)[:num_images]
    pf_ode = PFODEDensity(num_steps=PF_ODE_STEPS, seed=seed)
    budget = SelfTestBudget(NUM_TIMES, NUM_REFERENCE, pf_ode, seed)
    label = f"{model} · {len(levels)} held-out images · seed {seed}"
    total = budget.num_reports(len(levels))
    yield None, f"{progress(0, total)} · {label}"
    for step, report in enumerate(iterate_checks(ebm, levels, budget), 1):
        figure = balance_figure(report.balance)
        yield figure, f"{progress(step, total)}, {report.stage} · {label}"
    yield figure, in_words(report.checks, label)


def recorded(folder: Path, name: str) -> tuple[str, ShownTest]:
    """What ``evaluate/selftest.py --output_dir`` left in the folder of a model, or nothing; before
    it a line to warn of a test that has failed, or of a record that cannot be read."""
    path = folder / RECORD_FILE
    if not path.is_file():
        return "", (None, "")
    try:
        with without_path(folder, name), as_written(path):
            record = read_json(path)
            report = report_of(record["figures"])
            shown = balance_figure(report.balance)
            text = in_words(report.checks, f"recorded {record['started']}")
    except UserError as error:
        return f"⚠️ {error}", (None, str(error))
    failed = sum(check.passed is False for check in report.checks)
    warning = (
        f"⚠️ {name} failed {failed} of the checks of its self-test, so that its log-likelihoods "
        "may be wrong: see Diagnostics."
    )
    return warning if failed else "", (shown, text)


def report_of(metrics: dict[str, Any]) -> SelfTestReport:
    """The end of a self-test, from the metrics of its record."""
    values = {key: torch.tensor(metrics["mean_time_score"][key]) for key in Balance._fields[:3]}
    return SelfTestReport("", Balance(**values), tuple(map(Check.from_record, metrics["checks"])))


def in_words(checks: tuple[Check, ...], label: str) -> str:
    """How many checks passed, of those that were made, and each of them."""
    made = [check for check in checks if check.passed is not None]
    failed = [check.name for check in made if not check.passed]
    text = f"{len(made) - len(failed)} of {len(made)} checks passed"
    text += f", failed: {', '.join(failed)}" if failed else ""
    return "\n".join([f"{text} · {label}", *map(Check.describe, checks)])

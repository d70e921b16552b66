"""The self-test of a model, live or from the record of an earlier one."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from ebm_app.evaluation.checks import Check, from_record
from ebm_app.evaluation.held_out import held_out_levels
from ebm_app.evaluation.plots import balance_figure
from ebm_app.evaluation.selftest import Balance, SelfTestBudget, SelfTestReport, iterate_checks
from ebm_app.image_models.ebm import EBM
from ebm_app.io.errors import UserError
from ebm_app.io.records import as_written, read_json
from ebm_app.likelihood import PFODEDensity

from ..buttons import RUNNING
from ..models import without_path
from ..shared import Load

RECORD_FILE = "selftest.json"
MIN_IMAGES, MAX_IMAGES, DEFAULT_IMAGES = 8, 297, 32
NUM_TIMES, NUM_REFERENCE, PF_ODE_STEPS = 16, 100, 20
#: the mean time score, a text, and the checks as a Markdown table
ShownTest = tuple[Figure | None, str, str]


def self_test(
    load: Load, model: str, num_images: int, seed: int, data_root: str = "data"
) -> Iterator[ShownTest]:
    """Test a model on held-out images of its data: (mean time score, a text, the checks).

    Args:
        load: the model of a name. num_images: at most; there may be fewer. seed: of all noise.
        data_root: folder of the data sets.

    Raises:
        UserError: where the data are not there, or a number is out of range.
    """
    if not MIN_IMAGES <= num_images <= MAX_IMAGES:
        raise UserError(f"{num_images} images are not possible: give {MIN_IMAGES} to {MAX_IMAGES}")
    ebm = load(model)
    levels = held_out(ebm, data_root)[:num_images]
    pf_ode = PFODEDensity(num_steps=PF_ODE_STEPS, seed=seed)
    budget = SelfTestBudget(NUM_TIMES, NUM_REFERENCE, pf_ode, seed)
    label = f"{model} · {len(levels)} held-out images · seed {seed}"
    total = budget.num_reports(len(levels))
    yield None, f"{RUNNING} 0 of {total} · {label}", ""
    for step, report in enumerate(iterate_checks(ebm, levels, budget), 1):
        yield shown(report, f"{RUNNING} {step} of {total}, {report.stage}", label)
    yield shown(report, verdict(report.checks), label)


def held_out(ebm: EBM, data_root: str) -> Tensor:
    """Held-out images of a model's data as levels (N, C, H, W).

    Raises:
        UserError: where they are not there, without the folders of the server.
    """
    try:
        return held_out_levels(ebm, ebm.config.dataset, data_root=data_root)
    except UserError as error:
        logging.getLogger(__name__).warning("no held-out images: %s", error)
        raise UserError(
            "the held-out images of this model's data cannot be read on the server, whose log "
            "says why: choose another model, or start the page with their folder as --data_root"
        ) from None


def recorded(folder: Path, name: str) -> tuple[str, ShownTest]:
    """What ``evaluate/selftest.py --output_dir`` left in the folder of a model, or nothing; before
    it a line to warn of a test that has failed, or of a record that cannot be read."""
    path = folder / RECORD_FILE
    if not path.is_file():
        return "", (None, "", "")
    try:
        with without_path(folder, name), as_written(path):
            record = read_json(path)
            report, label = report_of(record["figures"]), f"recorded {record['started']}"
            return warning(report.checks, name), shown(report, verdict(report.checks), label)
    except UserError as error:
        line = f"⚠️ The record of the self-test of {name} cannot be read: see Diagnostics."
        return line, (None, str(error), "")


def warning(checks: tuple[Check, ...], name: str) -> str:
    """A line on a self-test that has failed; nothing on another."""
    failed = sum(check.passed is False for check in checks)
    if not failed:
        return ""
    return (
        f"⚠️ {name} failed {failed} of the checks of its self-test, so that its log-likelihoods "
        "may be wrong: see Diagnostics."
    )


def shown(report: SelfTestReport, head: str, label: str) -> ShownTest:
    """A report as it stands on the page."""
    return balance_figure(report.balance), f"{head} · {label}", rows(report.checks)


def report_of(metrics: dict[str, Any]) -> SelfTestReport:
    """The end of a self-test, from the metrics of its record."""
    values = {key: torch.tensor(metrics["mean_time_score"][key]) for key in Balance._fields[:3]}
    return SelfTestReport("", Balance(**values), tuple(map(from_record, metrics["checks"])))


def verdict(checks: tuple[Check, ...]) -> str:
    """How many checks passed, of those that were made."""
    made = [check for check in checks if check.passed is not None]
    failed = [check.name for check in made if not check.passed]
    text = f"{len(made) - len(failed)} of {len(made)} checks passed"
    return f"{text}, failed: {', '.join(failed)}" if failed else text


def rows(checks: tuple[Check, ...]) -> str:
    """The checks as a Markdown table, with a note under each; nothing before there are any."""
    if not checks:
        return ""
    lines = [
        f"| {check.name} | {outcome(check)} | {check.note} |".replace("[p_1/p_0]", "[p₁/p₀]")
        for check in checks
    ]
    return "\n".join(["| check | outcome | note |", "| --- | --- | --- |", *lines])


def outcome(check: Check) -> str:
    """Whether a check passed, and by what numbers."""
    if check.passed is None:
        return check.outcome
    return (
        f"**{check.outcome}**: {check.value:+.4f} ± {check.stderr:.4f} "
        f"{check.unit}, allowed {check.allowance:g} and 3 errors"
    )

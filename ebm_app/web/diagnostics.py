"""Diagnostics tab: facts and training curves of a model, and its self-test."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import gradio as gr
from annotated_types import Ge, Le
from matplotlib.figure import Figure

from ebm_app.evaluation.held_out import images_for
from ebm_app.evaluation.plots import balance_figure
from ebm_app.evaluation.selftest import Check, iterate_checks, num_reports
from ebm_app.likelihood import ProbabilityFlowDensity
from ebm_app.training.checkpoint import PREFIX
from ebm_app.training.metrics import read_metrics, training_figure
from ebm_app.utils import METRICS_FILE, RUN_FILE, SELF_TEST_FILE
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import to_dict
from ebm_app.utils.files import read_json, report_damage

from .models import Models, dataset_name, hide_path
from .runs import AT_ONCE, clear_on, handler, start_and_stop, start_by
from .shared import plot_box, progress, slider, text_box

SELF_TEST = """### Self-test
Checks identities that hold for every exact model, on held-out images of the model's data."""
#: Range and default of the number of held-out images
SIZES, DEFAULT_IMAGES = (8, 297), 32
NUM_TIMES, PF_ODE_STEPS = 16, 20


def model_card(models: Models, name: str) -> tuple[str, Figure | None, dict[str, Any]]:
    """Return a Markdown table of facts about a model, its training curves if they were recorded,
    and its config."""
    folder, ebm = models.folder(name), models.load(name)
    # the records of a checkpoint's training are in the folder above
    run = folder.parent if folder.name.startswith(PREFIX) else folder
    (channels, height, width), levels = ebm.config.image_shape, ebm.config.num_levels
    colours = {1: "grey", 3: "RGB"}.get(channels, f"{channels} channels")
    config = {"kind": ebm.kind, **to_dict(ebm.config), "dataset": dataset_name(ebm.config)}
    facts = {
        "model": name,
        "---": "---",
        "data": config["dataset"],
        "images": f"{height} × {width} pixels, {colours}, {levels} levels",
        "weights": f"{sum(tensor.numel() for tensor in ebm.state_dict().values()):,}",
    }
    with hide_path(folder, name):
        metrics = read_metrics(run / METRICS_FILE)
        facts |= run_facts(run) | self_test_facts(folder)
    table = "\n".join(f"| {key} | {value} |" for key, value in facts.items())
    return table, training_figure(metrics) if metrics else None, config


def run_facts(folder: Path) -> dict[str, str]:
    """Return facts from the record of a training run, if there is one."""
    path = folder / RUN_FILE
    if not path.is_file():
        return {}
    with report_damage(path):
        run = read_json(path)
        facts = {"trained": run["started"]}
        if (figures := run["figures"]) is None:
            return {**facts, "steps": "training is not finished"}
        steps = f"{figures['steps']:,}"
        if seconds := figures.get("core_seconds"):
            steps += f" in {seconds:,.0f} core seconds"
        validation = f"{figures['bits_per_dim']:.4f} bits per dim"
        return {**facts, "steps": steps, "validation": validation}


def self_test_facts(folder: Path) -> dict[str, str]:
    """Return the result of the recorded self-test, if there is one."""
    path = folder / SELF_TEST_FILE
    if not path.is_file():
        return {}
    with report_damage(path):
        figures = read_json(path)["figures"]
        checks = [Check(**check) for check in figures["checks"]]
        return {"self-test": f"{summary(checks)}, on {figures['num_images']} held-out images"}


def self_test(
    model: str,
    num_images: Annotated[int, Ge(SIZES[0]), Le(SIZES[1])],
    *,
    models: Models,
    seed: int,
) -> Iterator[tuple[Figure | None, str]]:
    """Run the self-test of a model on held-out images of its data."""
    ebm = models.load(model)
    with hide_path(Path(models.data_root), "data"):
        levels = images_for(ebm.config, ebm.config.dataset, models.data_root).test[:num_images]
    pf_ode = ProbabilityFlowDensity(num_steps=PF_ODE_STEPS, seed=seed)
    label = f"{model} · {len(levels)} held-out images · seed {seed}"
    total = num_reports(NUM_TIMES, len(levels))
    yield None, f"{progress(0, total)} · {label}"
    reports = iterate_checks(ebm, levels, NUM_TIMES, pf_ode, seed)
    for step, (balance, checks) in enumerate(reports, 1):  # noqa: B007 - the last checks are used
        yield balance_figure(balance), f"{progress(step, total)} · {label}"
    lines = [f"{summary(checks)} · {label}", *map(Check.describe, checks)]
    yield balance_figure(balance), "\n".join(lines)


def summary(checks: list[Check]) -> str:
    """Return how many checks passed, and which failed."""
    failed = [check.name for check in checks if not check.passed]
    text = f"{len(checks) - len(failed)} of {len(checks)} checks passed"
    return f"{text}, failed: {', '.join(failed)}" if failed else text


def build(models: Models, model: gr.Dropdown, tab: gr.Tab, seed: int) -> None:
    """Add the tab to the page."""
    with gr.Row():
        with gr.Column(scale=2, min_width=300):
            facts = gr.Markdown(label="Model")
        with gr.Column(scale=3, min_width=300):
            curves = plot_box("Training curves")
    with gr.Accordion("Configuration", open=False):
        config = gr.JSON(label="Configuration")
    gr.Markdown(SELF_TEST)
    num_images = slider(*SIZES, DEFAULT_IMAGES, "Held-out images")
    buttons = start_and_stop("Run the self-test")
    text = text_box("Result of the self-test", 6)
    outputs = [plot_box("Mean time score (0 for an exact model)"), text]
    fixed = {"models": models, "seed": seed}
    event = start_by(buttons, self_test, [model, num_images], outputs, fixed, is_public=False)

    def show_card(name: str) -> tuple[Any, ...]:
        try:
            return model_card(models, name)
        except UserError as error:
            return str(error), None, None

    triggers, card = [tab.select, model.change], [facts, curves, config]
    gr.on(triggers, handler(show_card), model, card, **AT_ONCE)
    clear_on([model.change], [event], outputs)

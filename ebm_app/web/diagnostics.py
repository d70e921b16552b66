"""The tab that shows the card of a model, from the files in its folder, and tests it."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import gradio as gr
from annotated_types import Ge, Le
from matplotlib.figure import Figure

from ebm_app.evaluation.held_out import images_for
from ebm_app.evaluation.plots import balance_figure
from ebm_app.evaluation.selftest import Check, iterate_checks, num_reports
from ebm_app.likelihood import PFODEDensity
from ebm_app.training.checkpoint import PREFIX
from ebm_app.training.metrics import read_metrics, training_figure
from ebm_app.utils import METRICS_FILE, RUN_FILE, SELF_TEST_FILE
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import to_dict
from ebm_app.utils.files import read_json, report_damage

from .models import Models, data_of, without_path
from .runs import AT_ONCE, empty_by, explained, start_and_stop, start_by
from .shared import plot_box, progress, slider, text_box

NO_README = "This model comes without a description of its own."
FRONT_MATTER = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)  # settings of a hub of models
# the page serves no file of a folder
PICTURE = re.compile(r"!\[[^\]]*\](\([^)]*\)|\[[^\]]*\])\n*")
SELF_TEST = """### Self-test
Identities that every exact model satisfies, on held-out images of the model's data."""
SIZES, DEFAULT_IMAGES = (8, 297), 32
NUM_TIMES, PF_ODE_STEPS = 16, 20


def card(models: Models, name: str) -> tuple[str, Figure | None, str, dict[str, Any]]:
    """What the page shows of a model: a table, the curves of its training, its README, and its
    configuration."""
    folder, ebm = models.folder(name), models.load(name)
    # the records of a model's training are beside it, or above a checkpoint
    run = folder.parent if folder.name.startswith(PREFIX) else folder
    (channels, height, width), levels = ebm.config.image_shape, ebm.config.num_levels
    colours = {1: "grey", 3: "RGB"}.get(channels, f"{channels} channels")
    config = {"kind": ebm.kind, **to_dict(ebm.config), "dataset": data_of(ebm.config)}
    facts = {
        "model": name,
        "---": "---",
        "data": config["dataset"],
        "images": f"{height} × {width} pixels, {colours}, {levels} levels",
        "weights": f"{sum(part.numel() for part in ebm.state_dict().values()):,}",
    }
    readme = folder / "README.md"
    with without_path(folder, name):
        lines = read_metrics(run / METRICS_FILE)
        text = shown_readme(readme.read_text("utf-8")) if readme.is_file() else NO_README
        facts |= run_facts(run) | test_facts(folder)
    table = "\n".join(f"| {key} | {value} |" for key, value in facts.items())
    return table, training_figure(lines) if lines else None, text, config


def run_facts(folder: Path) -> dict[str, str]:
    """What the record of a run says; nothing where there is none, less while the run continues."""
    if not (folder / RUN_FILE).is_file():
        return {}
    with report_damage(folder / RUN_FILE):
        run = read_json(folder / RUN_FILE)
        found = {"trained": run["started"]}
        if (figures := run["figures"]) is None:
            return {**found, "steps": "the run continues, or was stopped"}
        steps = f"{figures['steps']:,}"
        if spent := figures.get("core_seconds"):
            steps += f" in {spent:,.0f} core seconds"
        before = run["settings"].get("init_from") or {}
        if "steps" in before:  # an older record
            seconds = before["training_seconds"]
            steps += f", after {before['steps']:,} of another run in {seconds:,.0f} seconds"
        validation = f"{figures['bits_per_dim']:.4f} bits per dim"
        return {**found, "steps": steps, "validation": validation}


def test_facts(folder: Path) -> dict[str, str]:
    """What the self-test said whose record lies beside a model; nothing where there is none."""
    path = folder / SELF_TEST_FILE
    if not path.is_file():
        return {}
    with report_damage(path):
        figures = read_json(path)["figures"]
        checks = [Check(**check) for check in figures["checks"]]
        return {"self-test": f"{outcome(checks)}, on {figures['num_images']} held-out images"}


def shown_readme(text: str) -> str:
    """A README that a page may show: without pictures, its HTML as it is written."""
    text = FRONT_MATTER.sub("", text.replace("\r\n", "\n"))
    return PICTURE.sub("", text).replace("<", "&lt;")


def self_test(
    model: str,
    num_images: Annotated[int, Ge(SIZES[0]), Le(SIZES[1])],
    *,
    models: Models,
    seed: int,
) -> Iterator[tuple[Figure | None, str]]:
    """Test a model on at most so many held-out images of its data."""
    ebm = models.load(model)
    with without_path(Path(models.data_root), "data"):
        levels = images_for(ebm, ebm.config.dataset, models.data_root).test[:num_images]
    pf_ode = PFODEDensity(num_steps=PF_ODE_STEPS, seed=seed)
    label = f"{model} · {len(levels)} held-out images · seed {seed}"
    total = num_reports(NUM_TIMES, len(levels))
    yield None, f"{progress(0, total)} · {label}"
    reports = iterate_checks(ebm, levels, NUM_TIMES, pf_ode, seed)
    for step, found in enumerate(reports, 1):
        yield balance_figure(found[0]), f"{progress(step, total)} · {label}"
    text = [f"{outcome(found[1])} · {label}", *map(Check.describe, found[1])]
    yield balance_figure(found[0]), "\n".join(text)


def outcome(checks: list[Check]) -> str:
    """How many checks passed."""
    failed = [check.name for check in checks if not check.passed]
    text = f"{len(checks) - len(failed)} of {len(checks)} checks passed"
    return f"{text}, failed: {', '.join(failed)}" if failed else text


def build(models: Models, model: gr.Dropdown, tab: gr.Tab, seed: int) -> None:
    """Put the tab on the page."""
    with gr.Row():
        with gr.Column(scale=2, min_width=300):
            facts = gr.Markdown(label="Card")
        with gr.Column(scale=3, min_width=300):
            curves = plot_box("Training curves")
    with gr.Accordion("Description and configuration", open=False):
        readme = gr.Markdown(label="Description", container=True)
        config = gr.JSON(label="Configuration")
    gr.Markdown(SELF_TEST)
    num_images = slider(*SIZES, DEFAULT_IMAGES, "Held-out images")
    buttons = start_and_stop("Run the self-test")
    text = text_box("Result of the self-test", 6)
    test = [plot_box("Mean time score: 0 in an exact model"), text]
    given = {"models": models, "seed": seed}
    inputs = [model, num_images]
    testing = start_by(buttons, self_test, inputs, test, given, is_public=False)

    def fill(name: str) -> tuple[Any, ...]:
        try:
            return card(models, name)
        except UserError as error:
            return str(error), None, "", None

    # a run goes on while its card is looked at
    outputs = [facts, curves, readme, config]
    gr.on([tab.select, model.change], explained(fill), model, outputs, **AT_ONCE)
    empty_by([model.change], [testing], test)

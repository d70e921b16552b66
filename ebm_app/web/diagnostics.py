"""The tab that shows the card of a model, from the files in its folder, and tests it."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import gradio as gr
import torch
from annotated_types import Ge, Le
from matplotlib.figure import Figure

from ebm_app.evaluation.held_out import images_for
from ebm_app.evaluation.plots import balance_figure
from ebm_app.evaluation.selftest import Balance, Check, iterate_checks, num_reports
from ebm_app.io import METRICS_FILE, RUN_FILE
from ebm_app.io.errors import UserError
from ebm_app.io.records import as_written, read_json, to_dict
from ebm_app.likelihood import PFODEDensity
from ebm_app.training.checkpoint import PREFIX
from ebm_app.training.metrics import read_metrics
from ebm_app.training.plots import training_figure

from .models import Models, data_of, without_path
from .runs import AT_ONCE, explained, start_and_stop, start_by
from .shared import plot_box, progress, slider, text_box

NO_README = "This model comes without a description of its own."
FRONT_MATTER = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)  # settings of a hub of models
# the page serves no file of a folder
PICTURE = re.compile(r"!\[[^\]]*\](\([^)]*\)|\[[^\]]*\])\n*")
SELF_TEST = """### Self-test
Identities that every exact model satisfies, on held-out images of the model's data."""
EXPERTS = """From a shell: the self-test with a larger budget by
`python evaluate/selftest.py MODEL`, whose record in the folder of the model is shown here, and
log Z by `python evaluate/ais.py MODEL`."""
RECORD_FILE = "selftest.json"
SIZES, DEFAULT_IMAGES = (8, 297), 32
NUM_TIMES, PF_ODE_STEPS = 16, 20
#: the mean time score, and a text
ShownTest = tuple[Figure | None, str]


class Card(NamedTuple):
    """What the page shows of a model: a table, the curves of its training, its README, and its
    configuration."""

    facts: str
    curves: Figure | None
    readme: str
    config: dict[str, Any]


def card(models: Models, name: str) -> Card:
    """The card of a model.

    Raises:
        UserError: for an unknown name, or a folder that does not hold a model.
    """
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
        facts |= run_facts(run)
    table = "\n".join(f"| {key} | {value} |" for key, value in facts.items())
    return Card(table, training_figure(lines) if lines else None, text, config)


def run_facts(folder: Path) -> dict[str, str]:
    """What the record of a run says; nothing where there is none, less while the run continues."""
    if not (folder / RUN_FILE).is_file():
        return {}
    with as_written(folder / RUN_FILE):
        run = read_json(folder / RUN_FILE)
        found = {"trained": run["started"]}
        if (figures := run["figures"]) is None:
            return {**found, "steps": "the run continues, or was stopped"}
        steps = f"{figures['steps']:,}"
        if spent := figures.get("core_seconds"):
            steps += f" in {spent:,.0f} core seconds"
        if before := run["settings"].get("init_from"):
            steps += f", after {before['steps']:,} of another run"
        if spent := (before or {}).get("training_seconds"):
            steps += f" in {spent:,.0f} seconds"
        validation = f"{figures['bits_per_dim']:.4f} bits per dim"
        return {**found, "steps": steps, "validation": validation}


def shown_readme(text: str) -> str:
    """A README that a page may show: without pictures, its HTML as it is written.

    >>> shown_readme("# Digits\\n![a](b.png)<b>bold</b>")
    '# Digits\\n&lt;b>bold&lt;/b>'
    """
    text = FRONT_MATTER.sub("", text.replace("\r\n", "\n"))
    return PICTURE.sub("", text).replace("<", "&lt;")


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
        levels = images_for(ebm, ebm.config.dataset, models.data_root).test[:num_images]
    pf_ode = PFODEDensity(num_steps=PF_ODE_STEPS, seed=seed)
    label = f"{model} · {len(levels)} held-out images · seed {seed}"
    total = num_reports(NUM_TIMES, len(levels))
    yield None, f"{progress(0, total)} · {label}"
    for step, report in enumerate(iterate_checks(ebm, levels, NUM_TIMES, pf_ode, seed), 1):
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
            curve = record["figures"]["mean_time_score"]
            balance = Balance(*(torch.tensor(curve[key]) for key in Balance._fields[:3]))
            checks = tuple(map(Check.from_record, record["figures"]["checks"]))
            shown = balance_figure(balance), in_words(checks, f"recorded {record['started']}")
    except UserError as error:
        return f"⚠️ {error}", (None, str(error))
    failed = sum(check.passed is False for check in checks)
    warning = (
        f"⚠️ {name} failed {failed} of the checks of its self-test, so that its log-likelihoods "
        "may be wrong: see Diagnostics."
    )
    return warning if failed else "", shown


def in_words(checks: tuple[Check, ...], label: str) -> str:
    """How many checks passed, of those that were made, and each of them."""
    made = [check for check in checks if check.passed is not None]
    failed = [check.name for check in made if not check.passed]
    text = f"{len(made) - len(failed)} of {len(made)} checks passed"
    text += f", failed: {', '.join(failed)}" if failed else ""
    return "\n".join([f"{text} · {label}", *map(Check.describe, checks)])


def build(models: Models, model: gr.Dropdown, line: gr.Markdown, tab: gr.Tab, seed: int) -> None:
    """Put the tab on the page, with its warning ``line`` beside the choice of a model."""
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
    with gr.Accordion("For experts", open=False):
        gr.Markdown(EXPERTS)
    given = {"models": models, "seed": seed}
    inputs = [model, num_images]
    testing = start_by(buttons, self_test, inputs, test, given, is_public=False)

    def fill(name: str) -> tuple[Any, ...]:
        try:
            return tuple(card(models, name))
        except UserError as error:
            return str(error), None, "", None

    def begin(name: str) -> tuple[Any, ...]:
        warning, shown = recorded(models.folder(name), name)
        return gr.update(value=warning, visible=bool(warning)), *shown

    # a run goes on while its card is looked at
    outputs = [facts, curves, readme, config]
    gr.on([tab.select, model.change], explained(fill), model, outputs, **AT_ONCE)
    # a result never stands beside another model than its own, and stays when the tab is left
    model.change(None, cancels=[testing], **AT_ONCE)
    gr.on(None, explained(begin), model, [line, *test], **AT_ONCE)

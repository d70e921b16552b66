"""Model tab: properties and training curves of a model."""

from collections.abc import Sequence
from html import escape
from typing import Any

import gradio as gr
from matplotlib.figure import Figure

from ebm_app.folders import PREFIX
from ebm_app.training.metrics import read_metrics, training_figure
from ebm_app.utils import METRICS_FILE, RUN_FILE
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import to_dict
from ebm_app.utils.files import read_json, report_damage

from .models import Models, dataset_name
from .shared import AT_ONCE, hide_folders, plot_box


def model_card(models: Models, name: str) -> tuple[str, Figure | None, dict[str, Any]]:
    """Return an HTML table of a model's properties, its training curves if recorded, and its
    config."""
    folder, ebm = models.folder(name), models.load(name)
    # a checkpoint's training records are in the parent folder
    run = folder.parent if folder.name.startswith(PREFIX) else folder
    (channels, height, width), levels = ebm.config.image_shape, ebm.config.num_levels
    colours = {1: "grey", 3: "RGB"}.get(channels, f"{channels} channels")
    config = {"kind": ebm.kind, **to_dict(ebm.config), "dataset": dataset_name(ebm.config)}
    facts = {
        "model": name,
        "data": config["dataset"],
        "images": f"{height} × {width} pixels, {colours}, {levels} levels",
        "weights": f"{sum(tensor.numel() for tensor in ebm.state_dict().values()):,}",
    }
    record = run / RUN_FILE
    if record.is_file():
        with report_damage(record):
            facts |= run_facts(read_json(record))
    cells = (f"<td>{name}</td><td>{escape(str(value))}</td>" for name, value in facts.items())
    table = f"<table><tr>{'</tr><tr>'.join(cells)}</tr></table>"
    metrics = read_metrics(run / METRICS_FILE)
    return table, training_figure(metrics) if metrics else None, config


def run_facts(record: dict[str, Any]) -> dict[str, str]:
    """Return properties of a model from the record of its training run."""
    facts, figures = {"trained": record["started"]}, record["figures"]
    settings = record["settings"].get("train", {})
    if "objective" in settings:  # energy networks are distilled
        facts["objective"] = settings["objective"].upper().replace("_V", "-v")
        if settings["objective"] == "ctsm_v":
            facts["objective"] += f", {settings['divergence']} divergence"
    if figures is None:
        return {**facts, "steps": "training is not finished"}
    steps = f"{figures['steps']:,}"
    if seconds := figures.get("core_seconds"):
        steps += f" in {seconds:,.0f} core seconds"
    return {**facts, "steps": steps, "validation": f"{figures['bits_per_dim']:.4f} bits per dim"}


def build(models: Models, model: gr.Dropdown, tabs: Sequence[gr.Tab]) -> None:
    """Add the tab to the page; it is filled when one of ``tabs`` is opened."""
    with gr.Row():
        with gr.Column(scale=2, min_width=300):
            facts = gr.HTML()
        with gr.Column(scale=3, min_width=300):
            curves = plot_box(label="Training curves")
    with gr.Accordion("Configuration", open=False):
        config = gr.JSON(label="Configuration")

    def show_card(name: str) -> tuple[Any, ...]:
        try:
            return model_card(models, name)
        except UserError as error:
            return escape(hide_folders(str(error))), None, None

    triggers = [model.change, *(tab.select for tab in tabs)]
    gr.on(triggers, show_card, model, [facts, curves, config], **AT_ONCE)

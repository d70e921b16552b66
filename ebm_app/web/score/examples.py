"""Held-out images to try, of the data of the model that is chosen."""

from functools import partial
from pathlib import Path
from shutil import copy
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import gradio as gr

from ebm_app.data.images import DATASETS
from ebm_app.data.palette import form_of
from ebm_app.io.errors import UserError
from ebm_app.models.config import EBMConfig
from ebm_app.models.folders import BUNDLED, read_config

from ..models import Models
from .held_out import HeldOutImages
from .shipped import example_files, write_examples


class DataOnMachine(NamedTuple):
    """Held-out images of a data set in the form (C, H, W) and with the levels that models take."""

    dataset: str
    image_shape: tuple[int, ...]
    num_levels: int


#: the folder of a model that has examples, or data to take them from
Source = Path | DataOnMachine


def add_examples(
    upload: gr.Image, model: gr.Dropdown, models: Models, held_out: HeldOutImages
) -> list[gr.Dataset]:
    """Rows of held-out images, for every data set of the models that has some; that of the model
    that is chosen is shown."""
    rows: list[gr.Dataset] = []
    names: dict[Source, set[str]] = {}
    for name, folder in models.folders.items():
        if (source := source_of(folder, held_out)) is not None:
            names.setdefault(source, set()).add(name)
    for source, its_models in names.items():
        with gr.Column(visible=model.value in its_models) as column:
            rows.append(_add_row(upload, source, held_out))
        shown = partial(_shown_to, its_models)
        model.change(shown, model, column, api_visibility="private")
    return rows


def _shown_to(its_models: set[str], name: str) -> dict[str, Any]:
    return gr.update(visible=name in its_models)


def source_of(folder: Path, held_out: HeldOutImages) -> Source | None:
    """Where the examples of a model come from: its own folder, or that of a bundled model of the
    same data, or held-out images that are on this machine. None where there are none."""
    if example_files(folder):
        return folder
    try:
        config = read_config(EBMConfig, folder)
    except UserError:  # such a model is explained when it is chosen
        return None
    bundled = BUNDLED / config.dataset
    if config.dataset in DATASETS and example_files(bundled):
        if form_of(read_config(EBMConfig, bundled)) == form_of(config):
            return bundled
    if held_out.images(config) is None:
        return None
    return DataOnMachine(config.dataset, config.image_shape, config.num_levels)


def _add_row(upload: gr.Image, source: Source, held_out: HeldOutImages) -> gr.Dataset:
    with TemporaryDirectory() as folder:  # the row keeps copies in gradio's cache
        files = _files_of(source, Path(folder), held_out)
        row = gr.Dataset(  # gr.Examples takes no class, which keeps the pixels sharp
            components=[upload],
            samples=[[str(file)] for file in files],
            label="Held-out images of the model's data: click on one to take it",
            type="index",
            elem_classes="pixels",
        )
    copies = [sample["path"] for (sample,) in row.samples]
    row.click(lambda index: copies[index], row, upload, api_visibility="private")
    return row


def _files_of(source: Source, folder: Path, held_out: HeldOutImages) -> list[Path]:
    if isinstance(source, Path):
        return [Path(copy(file, folder)) for file in example_files(source)]
    config = EBMConfig(*source)
    return write_examples(folder, config, held_out.images(config))

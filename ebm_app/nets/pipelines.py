"""Read diffusers pipelines, and check that they are supported."""

import os
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import diffusers
import torch
from torch import nn

from ebm_app.config import EBMConfig, PathConfig
from ebm_app.folders import PIPELINE_FILE, find_folder, first_line
from ebm_app.nets.pipeline_model import PipelineModel
from ebm_app.utils.errors import UserError, shorten
from ebm_app.utils.files import read_json

PIPELINES = ("DDPMPipeline", "DDIMPipeline")
SCHEDULERS = ("DDPMScheduler", "DDIMScheduler", "EulerDiscreteScheduler")
UNET, SCHEDULER = "unet", "scheduler"


def read_pipeline(source: Any, num_levels: int = 256) -> tuple[PipelineModel, EBMConfig]:
    """Return the model of a pipeline and its configuration.

    Args:
        source: a pipeline, its folder or hub id, or a pair of a ``UNet2DModel`` and a scheduler. A
            predicted variance (2 C output channels) is ignored with a warning.
        num_levels: grey levels of the images.

    Raises:
        UserError: for another kind of pipeline, network or scheduler, settings without a
            likelihood, and files that cannot be read.
    """
    if isinstance(source, str | os.PathLike):
        net, scheduler = _from_folder(find_folder(source))
    elif isinstance(source, tuple) and len(source) == 2:
        net, scheduler = source
    elif isinstance(source, diffusers.DiffusionPipeline):
        _check_parts(type(source).__name__, source.components)
        net, scheduler = source.unet, source.scheduler
    else:
        raise UserError(
            f"Expected a DDPMPipeline, its folder or hub id, or a pair of a UNet2DModel and a "
            f"scheduler, got a {type(source).__name__}."
        )
    model, image_shape = _model(net, scheduler)
    settings = {"space": "display", "dequantisation": "decoder", "path": PathConfig("scheduler")}
    return model, EBMConfig("diffusers", image_shape, num_levels, **settings)


def _check_parts(kind: str, parts: Iterable[str]) -> None:
    others = sorted(shorten(part) for part in set(parts) - {UNET, SCHEDULER})
    if kind not in PIPELINES or others:
        more = f" with {', '.join(others)}" if others else ""
        raise UserError(
            f"A {shorten(kind)}{more} is not supported. Use a pipeline in pixel space, "
            f"{' or '.join(PIPELINES)}."
        )


def _from_folder(folder: Path) -> tuple[nn.Module, Any]:
    index = read_json(folder / PIPELINE_FILE)
    _check_parts(index.get("_class_name"), (key for key in index if not key.startswith("_")))
    record = read_json(folder / SCHEDULER / "scheduler_config.json")
    kind = record.get("_class_name")
    _check_scheduler(kind)
    try:
        scheduler = getattr(diffusers, kind).from_config(record)
        net, found = diffusers.UNet2DModel.from_pretrained(
            folder / UNET, use_safetensors=True, local_files_only=True, output_loading_info=True
        )
        size = net.config.sample_size or 64  # a missing size is reported below
        height, width = (size, size) if isinstance(size, int) else size
        with torch.device("meta"):  # checks the settings without memory
            image = torch.zeros(1, net.config.in_channels, height, width)
            diffusers.UNet2DModel.from_config(net.config)(image, torch.zeros(1))
    except Exception as error:  # damaged files raise many kinds
        raise UserError(f"Cannot read {folder}: {first_line(error)}") from None
    if wrong := [key for keys in found.values() for key in keys]:
        raise UserError(
            f"The weights in {folder / UNET} do not match its config.json, for example "
            f"{shorten(wrong[0])}. Save the pipeline again."
        )
    return net, scheduler


def _check_scheduler(kind: str) -> None:
    if kind not in SCHEDULERS:
        raise UserError(f"A {shorten(kind)} is not supported. Use one of {', '.join(SCHEDULERS)}.")


def _model(net: Any, scheduler: Any) -> tuple[PipelineModel, tuple[int, int, int]]:
    _check_scheduler(type(scheduler).__name__)
    if not isinstance(net, diffusers.UNet2DModel):
        raise UserError(f"Expected a UNet2DModel, got a {type(net).__name__}.")
    config, channels = net.config, net.config.in_channels
    if scheduler.config.get("timestep_type", "discrete") != "discrete":
        raise UserError("The scheduler has continuous timesteps. Use timestep_type discrete.")
    if config.time_embedding_type != "positional":
        raise UserError(
            f"The time embedding of the network is {config.time_embedding_type}, which does not "
            "support real-valued steps. Use a network with positional embeddings."
        )
    if config.class_embed_type or config.num_class_embeds:
        raise UserError("The network is class-conditional. Use one without class labels.")
    if config.sample_size is None:
        raise UserError("The network has no sample_size. Set it to the side of its images.")
    if config.out_channels not in (channels, 2 * channels):
        raise UserError(
            f"The network has {channels} input and {config.out_channels} output channels. Use one "
            "with equal numbers, or twice as many outputs with a variance."
        )
    if config.out_channels == 2 * channels:
        warnings.warn(
            "The variance predicted by the network is ignored; likelihoods use the variances of "
            "the scheduler.",
            stacklevel=4,
        )
    size = config.sample_size
    height, width = (size, size) if isinstance(size, int) else size
    prediction = scheduler.config.prediction_type
    is_large = str(scheduler.config.get("variance_type", "")).startswith("fixed_large")
    variance = "large" if is_large else "small"
    model = PipelineModel(net, scheduler.alphas_cumprod, prediction, channels, variance)
    return model, (channels, height, width)

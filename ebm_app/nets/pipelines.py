"""What a pipeline of diffusers holds: read from its folder, and checked."""

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
    """The model of a pipeline, its folder or hub id, or a pair of a ``UNet2DModel`` and a
    scheduler, and what it is on images of so many levels.

    A network that predicts a variance too (2 C channels) keeps what it says of the noise; that it
    says more is ignored, with a warning.

    Raises:
        UserError: for another kind of pipeline, network or scheduler, settings that have no
            likelihood here, and files that cannot be read.
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
            f"a {type(source).__name__} is no diffusion model: give a DDPMPipeline, its folder or "
            "hub id, or a pair of a UNet2DModel and a scheduler"
        )
    model, image_shape = _model(net, scheduler)
    given = {"space": "display", "dequantisation": "decoder", "path": PathConfig("scheduler")}
    return model, EBMConfig("diffusers", image_shape, num_levels, **given)


def _check_parts(kind: str, parts: Iterable[str]) -> None:
    others = sorted(shorten(part) for part in set(parts) - {UNET, SCHEDULER})
    if kind not in PIPELINES or others:
        more = f" with {', '.join(others)}" if others else ""
        raise UserError(
            f"a {shorten(kind)}{more} has no likelihood of images here: give a pipeline of "
            f"pixels alone, {' or '.join(PIPELINES)}"
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
        size = net.config.sample_size or 64  # where it names none, that is said below
        height, width = (size, size) if isinstance(size, int) else size
        with torch.device("meta"):  # whether its settings go together, at no cost
            image = torch.zeros(1, net.config.in_channels, height, width)
            diffusers.UNet2DModel.from_config(net.config)(image, torch.zeros(1))
    except Exception as error:  # of a dozen kinds, for a damaged file
        raise UserError(f"{folder} cannot be read: {first_line(error)}") from None
    if wrong := [key for keys in found.values() for key in keys]:
        raise UserError(
            f"the weights in {folder / UNET} do not fit its config.json, such as "
            f"{shorten(wrong[0])}: save the pipeline anew"
        )
    return net, scheduler


def _check_scheduler(kind: str) -> None:
    if kind not in SCHEDULERS:
        raise UserError(
            f"a {shorten(kind)} is not known here: give one of {', '.join(SCHEDULERS)}"
        )


def _model(net: Any, scheduler: Any) -> tuple[PipelineModel, tuple[int, int, int]]:
    _check_scheduler(type(scheduler).__name__)
    if not isinstance(net, diffusers.UNet2DModel):
        raise UserError(f"a {type(net).__name__} is not known here: give a UNet2DModel")
    config, channels = net.config, net.config.in_channels
    if getattr(scheduler.config, "timestep_type", "discrete") != "discrete":
        raise UserError("the scheduler's timestep_type is continuous: give one of discrete steps")
    if config.time_embedding_type != "positional":
        raise UserError(
            f"the network's time embedding is {config.time_embedding_type}, which is not asked "
            "between steps: give one with positional"
        )
    if config.class_embed_type or config.num_class_embeds:
        raise UserError("the network is told classes: give one without class labels")
    if config.sample_size is None:
        raise UserError("the network has no sample_size: set it to the side of its images")
    if config.out_channels not in (channels, 2 * channels):
        raise UserError(
            f"the network makes {config.out_channels} channels of {channels}: give one that makes "
            "as many, or twice as many with a variance"
        )
    if config.out_channels == 2 * channels:
        warnings.warn(
            "the variance that the network predicts is ignored: the likelihoods are those of the "
            "scheduler's own variances",
            stacklevel=4,
        )
    size = config.sample_size
    height, width = (size, size) if isinstance(size, int) else size
    prediction = scheduler.config.prediction_type
    is_large = str(getattr(scheduler.config, "variance_type", "")).startswith("fixed_large")
    variance = "large" if is_large else "small"
    model = PipelineModel(net, scheduler.alphas_cumprod, prediction, channels, variance)
    return model, (channels, height, width)

"""Diffusion models of diffusers, as denoisers with the schedule of their scheduler."""

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import diffusers
from torch import Tensor, nn

from ebm_app.folders import PIPELINE_FILE, find_folder, first_line
from ebm_app.nets.denoisers import AlphasCumprod, DenoiserModel
from ebm_app.utils.errors import UserError, shorten
from ebm_app.utils.files import read_json
from ebm_app.utils.random import initial_weights
from ebm_app.utils.registry import choose

PIPELINES = ("DDPMPipeline", "DDIMPipeline")
SCHEDULERS = ("DDPMScheduler", "DDIMScheduler", "EulerDiscreteScheduler")
WEIGHTS = "diffusion_pytorch_model"
#: Prediction type of a scheduler -> key of ``NOISE_OF``
PREDICTION_TYPES = {"epsilon": "noise", "v_prediction": "v", "sample": "x0"}


class UNetSample(nn.Module):
    """Network of a pipeline as a ``Denoiser``: the first C channels of its ``sample``.

    Args:
        unet: (x (B, C, H, W), step (B,)) -> object whose ``sample`` has the prediction in the
            first C channels.
        channels: C.
    """

    def __init__(self, unet: nn.Module, channels: int) -> None:
        super().__init__()
        self.unet, self.channels = unet, channels

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        return self.unet(x, step).sample[:, : self.channels]


def read_pipeline(source: Any) -> tuple[DenoiserModel, tuple[int, int, int]]:
    """Return the model of a pipeline and the shape (C, H, W) of its images.

    Args:
        source: a pipeline, its folder or hub id, or a pair of a ``UNet2DModel`` and a scheduler.
            A predicted variance (2 C output channels) is ignored with a warning.

    Raises:
        UserError: for an unsupported pipeline, network, scheduler or setting, and files that
            cannot be read.
    """
    if isinstance(source, str | os.PathLike):
        net, scheduler = _from_folder(find_folder(source))
    elif isinstance(source, tuple) and len(source) == 2:
        net, scheduler = source
    elif isinstance(source, diffusers.DiffusionPipeline):
        _check_kind(type(source).__name__, PIPELINES)
        net, scheduler = source.unet, source.scheduler
    else:
        raise UserError(
            f"Expected a DDPMPipeline, its folder or hub id, or a pair of a UNet2DModel and a "
            f"scheduler, got a {type(source).__name__}."
        )
    return _model(net, scheduler)


def _check_kind(kind: str, supported: Sequence[str]) -> None:
    if kind not in supported:
        raise UserError(f"A {shorten(kind)} is not supported. Use one of {', '.join(supported)}.")


def _from_folder(folder: Path) -> tuple[nn.Module, Any]:
    if (folder / PIPELINE_FILE).is_file():
        _check_kind(read_json(folder / PIPELINE_FILE).get("_class_name"), PIPELINES)
    record = read_json(_scheduler_file(folder))
    kind = record.get("_class_name")
    _check_kind(kind, SCHEDULERS)
    # the files of older pipelines are all in one folder
    unet = folder / "unet" if (folder / "unet").is_dir() else folder
    options = {"use_safetensors": True, "local_files_only": True, "output_loading_info": True}
    options["variant"] = _variant(unet)
    try:
        scheduler = getattr(diffusers, kind).from_config(record)
        with initial_weights(0):  # keeps the global random state
            net, mismatches = diffusers.UNet2DModel.from_pretrained(unet, **options)
    except Exception as error:  # damaged files raise many exception types
        raise UserError(f"Cannot read {folder}: {first_line(error)}") from None
    if wrong := [key for keys in mismatches.values() for key in keys]:
        raise UserError(
            f"The weights in {unet} do not match its config.json, for example "
            f"{shorten(wrong[0])}. Save the pipeline again."
        )
    return net, scheduler


def _variant(unet: Path) -> str | None:
    """Return the variant of the weights in a folder, such as "fp16", or None."""
    files = sorted(file.name for file in unet.glob(f"{WEIGHTS}*.safetensors"))
    if not files:
        raise UserError(
            f"{unet} has no {WEIGHTS}.safetensors, and pickled weights are not supported. Load "
            "them in diffusers and call save_pretrained, which writes safetensors."
        )
    names = [name.removeprefix(WEIGHTS).split(".")[1] for name in files]
    return None if "safetensors" in names else names[0]


def _scheduler_file(folder: Path) -> Path:
    """Return the configuration file of the scheduler."""
    for name in ("scheduler/scheduler_config.json", "scheduler_config.json"):
        if (folder / name).is_file():
            return folder / name
    raise UserError(
        f"{folder} has no scheduler_config.json. Pass the pair (network, scheduler) to "
        "EBM.from_diffusers."
    )


def _model(net: Any, scheduler: Any) -> tuple[DenoiserModel, tuple[int, int, int]]:
    _check_kind(type(scheduler).__name__, SCHEDULERS)
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
        raise UserError("The network is class-conditional. Use an unconditional network.")
    if config.sample_size is None:
        raise UserError("The network has no sample_size. Set it to the side of the images.")
    if config.out_channels not in (channels, 2 * channels):
        raise UserError(
            f"The network has {channels} input and {config.out_channels} output channels. Use "
            f"one with {channels} or {2 * channels} output channels."
        )
    if config.out_channels == 2 * channels:
        warnings.warn(
            "The predicted variance of the network is ignored. Likelihoods use the variances of "
            "the scheduler.",
            stacklevel=4,
        )
    size = config.sample_size
    height, width = (size, size) if isinstance(size, int) else size
    kind = choose("prediction_type", scheduler.config.prediction_type, PREDICTION_TYPES)
    schedule = AlphasCumprod(scheduler.alphas_cumprod)
    model = DenoiserModel(UNetSample(net, channels), PREDICTION_TYPES[kind], schedule)
    return model, (channels, height, width)

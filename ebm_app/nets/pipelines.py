"""Diffusion models of diffusers, on the path of the scheduler."""

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import diffusers
import torch
from torch import Tensor, nn

from ebm_app.config import EBMConfig, PathConfig
from ebm_app.folders import PIPELINE_FILE, find_folder, first_line
from ebm_app.nets.path_model import PathModel, expand_time
from ebm_app.nets.protocols import Time
from ebm_app.paths import LogSNRPath
from ebm_app.utils.errors import UserError, shorten
from ebm_app.utils.files import read_json
from ebm_app.utils.random import initial_weights
from ebm_app.utils.registry import choose
from ebm_app.utils.tensors import expand_like

PIPELINES = ("DDPMPipeline", "DDIMPipeline")
SCHEDULERS = ("DDPMScheduler", "DDIMScheduler", "EulerDiscreteScheduler")
WEIGHTS = "diffusion_pytorch_model"
#: Value with which ``EulerDiscreteScheduler`` replaces abar = 0 at zero terminal SNR
NO_SIGNAL = 2.0**-24
#: Prediction type -> function (x, network output, a, s) -> noise e in x = a x1 + s e
NOISE_OF: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {
    "epsilon": lambda x, out, a, s: out,
    "v_prediction": lambda x, out, a, s: a * out + s * x,
    "sample": lambda x, out, a, s: (x - a * out) / s,
}


class PipelineModel(PathModel):
    r"""Noise prediction network of a diffusers pipeline, with a Stein score but no time score.

    Step i of the scheduler has alpha_i^2 = abar_i and v_i = 1 - abar_i. The path interpolates
    these noise levels linearly in l = log(abar / (1 - abar)), from t = 0 at the last step to t = 1
    at the first step. Between steps, the network gets a real-valued step, linear in l. Final steps
    without signal (abar up to ``NO_SIGNAL``) are left out.

    >>> from diffusers import DDPMScheduler, UNet2DModel
    >>> blocks = {"down_block_types": ("DownBlock2D",), "up_block_types": ("UpBlock2D",)}
    >>> net = UNet2DModel(8, 1, 1, block_out_channels=(32,), **blocks)
    >>> model = PipelineModel(net, DDPMScheduler().alphas_cumprod, "epsilon", 1)
    >>> round(model.step(torch.tensor([0.0, 1.0], dtype=torch.float64))[0].item(), 6)
    999.0

    Args:
        net: (x (B, C, H, W), step (B,)) -> object whose ``sample`` has the prediction in the first
            C channels. It is not copied, and evaluated in evaluation mode.
        abar: (N,), ``alphas_cumprod`` of the scheduler.
        prediction: a key of ``NOISE_OF``.
        channels: C.

    Raises:
        UserError: for an unknown prediction, or noise levels that are not increasing.
    """

    def __init__(self, net: nn.Module, abar: Tensor, prediction: str, channels: int) -> None:
        noise_of = NOISE_OF[choose("prediction_type", prediction, NOISE_OF)]
        abar = abar.detach().cpu().double()
        abar = abar[: max(1, int((abar > NO_SIGNAL).sum()))]
        ratios = (abar.log() - torch.log1p(-abar)).flip(0)
        if len(ratios) < 3 or not (ratios.isfinite().all() and (ratios.diff() > 0).all()):
            raise UserError(
                "The scheduler's noise does not increase with every step. Use a scheduler with "
                "betas between 0 and 1."
            )
        super().__init__(LogSNRPath(ratios[0].item(), ratios[-1].item()), (0.0, 1.0))
        self.net, self.channels, self.noise_of, self.eps = net, channels, noise_of, 0.0
        self.times = (ratios - ratios[0]) / (ratios[-1] - ratios[0])

    def step(self, t: Tensor) -> Tensor:
        """Return the real-valued step (B,) of the scheduler at t (B,) float64."""
        times = self.times.to(t.device)
        right = torch.searchsorted(times, t.contiguous()).clamp(1, len(times) - 1)
        low, high = times[right - 1], times[right]
        return len(times) - right - ((t - low) / (high - low)).clamp(0, 1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """Return the predicted noise in x (B, C, H, W) at t (B,) float64: (B, C, H, W)."""
        step = self.step(t).to(x.dtype)
        with evaluating(self.net):
            out = self.net(x, step).sample[:, : self.channels].to(x.dtype)
        alpha, sigma = self.path.alpha(t), self.path.variance(t).sqrt()
        return self.noise_of(x, out, expand_like(alpha, x), expand_like(sigma, x))

    def score(self, x: Tensor, t: Time) -> Tensor:
        """Return grad_x log p_t(x) = -noise / sqrt(v_t): (B, *)."""
        times = expand_time(t, x)
        return -self(x, times) / expand_like(self.path.variance(times).sqrt(), x)

    def score_cost(self, t: float) -> int:
        """Return the number of network passes per call of ``score``."""
        return 1

    def train(self, mode: bool = True) -> Self:
        """Set the mode of this module, but not of the network."""
        self.training = mode
        return self


@contextmanager
def evaluating(net: nn.Module) -> Iterator[None]:
    """Set a network to evaluation mode, and restore the mode of each module afterwards."""
    training = [module for module in net.modules() if module.training]
    try:
        net.eval()
        yield
    finally:
        for module in training:
            module.training = True


def read_pipeline(source: Any, num_levels: int) -> tuple[PipelineModel, EBMConfig]:
    """Return the model and configuration of a pipeline.

    Args:
        source: a pipeline, its folder or hub id, or a pair of a ``UNet2DModel`` and a scheduler. A
            predicted variance (2 C output channels) is ignored with a warning.
        num_levels: number of grey levels of the images.

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
    model, image_shape = _model(net, scheduler)
    settings = {"space": "display", "dequantisation": "decoder", "path": PathConfig("scheduler")}
    return model, EBMConfig("diffusers", image_shape, num_levels, **settings)


def _check_kind(kind: str, supported: Sequence[str]) -> None:
    if kind not in supported:
        raise UserError(f"A {shorten(kind)} is not supported. Use one of {', '.join(supported)}.")


def _from_folder(folder: Path) -> tuple[nn.Module, Any]:
    if (folder / PIPELINE_FILE).is_file():
        _check_kind(read_json(folder / PIPELINE_FILE).get("_class_name"), PIPELINES)
    record = read_json(_scheduler_file(folder))
    kind = record.get("_class_name")
    _check_kind(kind, SCHEDULERS)
    # the files of early models are all in one folder
    unet = folder / "unet" if (folder / "unet").is_dir() else folder
    options = {"use_safetensors": True, "local_files_only": True, "output_loading_info": True}
    options["variant"] = _variant(unet)
    try:
        scheduler = getattr(diffusers, kind).from_config(record)
        with initial_weights(0):  # leaves the global random state unchanged
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


def _model(net: Any, scheduler: Any) -> tuple[PipelineModel, tuple[int, int, int]]:
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
    prediction = scheduler.config.prediction_type
    model = PipelineModel(net, scheduler.alphas_cumprod, prediction, channels)
    return model, (channels, height, width)

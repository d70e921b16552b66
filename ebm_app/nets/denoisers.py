r"""Denoising networks of any library, with their own noise schedule.

A denoiser is trained on x_u = alpha_u x1 + sigma_u e with an image x1, noise e ~ N(0, I) and its
own time u, such as a step or sigma. With E[. | x] the mean given x_u = x, it predicts one of

    noise       E[e | x]
    x0          E[x1 | x]; most papers call the image x0
    v           alpha E[e | x] - sigma E[x1 | x]
    velocity    sigma' E[e | x] + alpha' E[x1 | x], where ' is the derivative by u
    score       grad_x log p_u(x) = -E[e | x] / sigma

Each is p E[e | x] + q E[x1 | x]. Since x = sigma E[e | x] + alpha E[x1 | x], a prediction f gives

    E[e | x] = (alpha f - q x) / (alpha p - sigma q).

The likelihood depends on the schedule only through the log signal-to-noise ratio l = log(alpha^2 /
sigma^2), because x_u / sqrt(alpha^2 + sigma^2) is a variance-preserving diffusion.

Sources: Ho et al. 2020, arXiv:2006.11239 (noise); Salimans and Ho 2022, arXiv:2202.00512 (x0, v);
Lipman et al. 2023, arXiv:2210.02747 (velocity); Song et al. 2021, arXiv:2011.13456 (score); Karras
et al. 2022, arXiv:2206.00364, for the rescaling.
"""

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ebm_app.nets.model import ScoreModel, Time, expand_time
from ebm_app.paths import LogSNRPath
from ebm_app.pretrained import PIPELINE_FILE, find_folder
from ebm_app.utils.errors import UserError, shorten
from ebm_app.utils.files import read_json
from ebm_app.utils.registry import choose
from ebm_app.utils.tensors import as_tensor, derivative, expand_like

if TYPE_CHECKING:
    from diffusers import UNet2DModel

#: (x (B, C, H, W), time (B,)) -> prediction (B, C, H, W)
Denoiser = Callable[[Tensor, Tensor], Tensor]
#: Elementwise function of times (B,)
TimeFunction = Callable[[Tensor], Tensor]
#: alphas_cumprod up to this value is no signal: ``EulerDiscreteScheduler`` of diffusers replaces 0
#: by it
NO_SIGNAL = 2.0**-24
#: Times at which a schedule is checked
NUM_CHECKED = 33
#: Supported classes of diffusers
PIPELINES = ("DDPMPipeline", "DDIMPipeline")
SCHEDULERS = ("DDPMScheduler", "DDIMScheduler", "EulerDiscreteScheduler")
#: Prediction type of a scheduler of diffusers -> key of ``FACTORS``
PREDICTION_TYPES = {"epsilon": "noise", "v_prediction": "v", "sample": "x0"}


@dataclass(frozen=True)
class AlphaSigma:
    """Schedule in continuous time. The network gets times between ``t_noise`` and ``t_data``.

    >>> flow_matching = AlphaSigma(lambda u: u, lambda u: 1 - u, t_noise=1e-3, t_data=0.996)
    >>> edm = AlphaSigma(torch.ones_like, lambda sigma: sigma, t_noise=80.0, t_data=0.004)
    >>> edm.sigma(torch.tensor([0.5]))
    tensor([0.5000])

    Args:
        alpha, sigma: elementwise torch functions of times (B,), which are differentiated.
        t_noise: time with most noise. There, alpha / sigma should be 0.01 or less, because p at
            this time is replaced by noise.
        t_data: time with least noise, at which grey levels are decoded. There, sigma / alpha
            should be half a grey level, 0.004 for 256 levels. A quarter of a level costs 0.11
            bits per dim and an eighth 0.92, because q(x | level) is narrower than the cell of a
            level for a network that is smooth over one level. More noise blurs sharp images: for
            independent normal pixels of standard deviation 2.5 levels, 0.004 costs 0.03 bits and
            0.01 costs 0.17; for 25 levels, 0.02 costs 0.01.
    """

    alpha: TimeFunction
    sigma: TimeFunction
    t_noise: float
    t_data: float

    def time(self, t: Tensor) -> Tensor:
        """Return the time u at t (B,) from 0 (``t_noise``) to 1 (``t_data``): (B,)."""
        return self.t_noise + (self.t_data - self.t_noise) * t

    def log_snr(self, t: Tensor) -> Tensor:
        """Return log(alpha^2 / sigma^2) at t (B,) from 0 to 1: (B,)."""
        time = self.time(t)
        return 2 * (self.alpha(time).log() - self.sigma(time).log())


class AlphasCumprod(AlphaSigma):
    """Schedule in N discrete steps: alpha_k^2 = abar_k, sigma_k^2 = 1 - abar_k, k = 0 ... N - 1.

    Between steps, l is interpolated linearly, and the network gets a real-valued step. For a
    network that needs integers, pass ``lambda x, step: net(x, step.round().long())``; "elbo"
    remains a lower bound. Final steps without signal (abar up to ``NO_SIGNAL``) are left out.

    >>> schedule = AlphasCumprod(torch.linspace(0.999, 0.001, 100))
    >>> schedule.t_noise, schedule.t_data
    (99.0, 0.0)

    Args:
        abar: (N,), ``alphas_cumprod`` of the sampler, decreasing.

    Raises:
        UserError: for less than 3 steps with signal, or values that do not decrease from below 1.
    """

    def __init__(self, abar: Any) -> None:
        abar = as_tensor(abar, "alphas_cumprod").cpu().double().flatten()
        abar = abar[: int((abar > NO_SIGNAL).sum())]
        ratios = abar.log() - torch.log1p(-abar)
        if len(abar) < 3 or not (ratios.isfinite().all() and (ratios.diff() < 0).all()):
            raise UserError(
                f"Expected at least 3 values of alphas_cumprod that decrease from below 1, got "
                f"{len(abar)}: {shorten(abar.tolist())}. Use a schedule whose noise increases "
                "with every step, with betas between 0 and 1."
            )

        def ratio(step: Tensor) -> Tensor:
            """Interpolate l at real-valued steps (B,): (B,) float64."""
            step, values = step.double(), ratios.to(step.device, non_blocking=True)
            low = step.detach().long().clamp(0, len(values) - 2)
            return values[low] + (step - low) * (values[low + 1] - values[low])

        super().__init__(
            alpha=lambda step: torch.sigmoid(ratio(step)).sqrt(),
            sigma=lambda step: torch.sigmoid(-ratio(step)).sqrt(),
            t_noise=len(abar) - 1.0,
            t_data=0.0,
        )


Factor = float | Tensor
#: Prediction -> (schedule, times (B,)) -> factors p and q of p E[e | x] + q E[x1 | x]
FACTORS: dict[str, Callable[[AlphaSigma, Tensor], tuple[Factor, Factor]]] = {
    "noise": lambda schedule, u: (1.0, 0.0),
    "x0": lambda schedule, u: (0.0, 1.0),
    "v": lambda schedule, u: (schedule.alpha(u), -schedule.sigma(u)),
    "velocity": lambda schedule, u: (derivative(schedule.sigma, u), derivative(schedule.alpha, u)),
    "score": lambda schedule, u: (-1 / schedule.sigma(u), 0.0),
}


def check_schedule(schedule: AlphaSigma) -> None:
    """Raise a UserError if l is not finite or does not increase from noise to data."""
    if not isinstance(schedule, AlphaSigma):
        raise UserError(f"Expected an AlphaSigma schedule, got a {type(schedule).__name__}.")
    t = torch.linspace(0, 1, NUM_CHECKED, dtype=torch.float64)
    try:
        ratios, rates = schedule.log_snr(t), derivative(schedule.log_snr, t)
    except Exception as error:  # functions of the user raise any exception
        raise UserError(
            f"Cannot evaluate and differentiate alpha and sigma at a tensor of times: "
            f"{shorten(error)}. Use elementwise torch functions."
        ) from None
    if not (ratios.isfinite().all() and (ratios.diff() > 0).all() and (rates > 0).all()):
        raise UserError(
            f"Expected log(alpha^2 / sigma^2) to be finite and to increase from t_noise = "
            f"{schedule.t_noise} to t_data = {schedule.t_data}, got {ratios[0].item():.4g} and "
            f"{ratios[-1].item():.4g}. Use times with both signal and noise, swap them, or use "
            "differentiable alpha and sigma."
        )


class DenoiserModel(ScoreModel):
    r"""Denoiser on a ``LogSNRPath``, with a Stein score but no time score.

    Time t of the path is linear in the time u of the schedule, from t = 0 at ``t_noise`` to t = 1
    at ``t_data``. A point x of the path is x_u = r x with r = sqrt(alpha^2 + sigma^2), and
    grad_x log p_t(x) = -r E[e | x_u] / sigma.

    >>> schedule = AlphaSigma(lambda u: u, lambda u: 1 - u, t_noise=0.001, t_data=0.996)
    >>> model = DenoiserModel(lambda x, u: torch.zeros_like(x), "velocity", schedule)
    >>> model.score(torch.zeros(2, 1, 8, 8), 0.5).shape
    torch.Size([2, 1, 8, 8])

    Args:
        net: a function or module, (x (B, C, H, W), time (B,)) -> (B, C, H, W).
        prediction: a key of ``FACTORS``.
        schedule: noise schedule.

    Raises:
        UserError: for an unknown prediction, or an invalid schedule.
    """

    def __init__(self, net: Denoiser, prediction: str, schedule: AlphaSigma) -> None:
        if not callable(net):
            raise UserError(f"Expected a function or module, got a {type(net).__name__}.")
        check_schedule(schedule)
        super().__init__(LogSNRPath(schedule.log_snr), (0.0, 1.0))
        self.factors = FACTORS[choose("prediction", prediction, FACTORS)]
        self.net, self.schedule, self.t_margin = net, schedule, 0.0
        # device and dtype of the model if the network is a function
        self.register_buffer("placement", torch.zeros(()), persistent=False)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """Return E[e | x] at points x (B, C, H, W) of the path and t (B,) float64: (B, C, H, W).

        Raises:
            UserError: for a prediction that is not a tensor of the shape of x.
        """
        time = self.schedule.time(t)
        alpha, sigma = self.schedule.alpha(time), self.schedule.sigma(time)
        p, q = self.factors(self.schedule, time)
        scale = alpha * p - sigma * q
        x = expand_like(torch.hypot(alpha, sigma), x) * x
        # copies, because some networks change their input in place
        out = self.net(x.clone(), time.to(x.dtype, copy=True))
        if not isinstance(out, Tensor) or out.shape != x.shape:
            got = tuple(out.shape) if isinstance(out, Tensor) else f"a {type(out).__name__}"
            raise UserError(
                f"Expected the network to return shape {tuple(x.shape)}, got {got}. Pass a "
                "function of (x, time) that returns the predicted tensor."
            )
        return expand_like(alpha / scale, x) * out.to(x.dtype) - expand_like(q / scale, x) * x

    def score(self, x: Tensor, t: Time) -> Tensor:
        """Return grad_x log p_t(x) = -E[e | x] / sqrt(v_t): (B, *)."""
        times = expand_time(t, x)
        return -self(x, times) / expand_like(self.path.variance(times).sqrt(), x)

    def score_cost(self, t: float) -> int:
        """Return the number of network evaluations per call of ``score``."""
        return 1


class UNetSample(nn.Module):
    """Network of a pipeline as a ``Denoiser``: the first C channels of its ``sample``."""

    def __init__(self, unet: "UNet2DModel") -> None:
        super().__init__()
        self.unet = unet

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        return self.unet(x, step).sample[:, : x.shape[1]]


def read_pipeline(source: Any) -> tuple[DenoiserModel, tuple[int, int, int]]:
    """Return the model of a diffusers pipeline and the shape (C, H, W) of its images.

    Args:
        source: see ``EBM.from_diffusers``.

    Raises:
        UserError: for an unsupported network, scheduler or setting, and unreadable files.
    """
    import diffusers  # takes seconds

    if isinstance(source, str | os.PathLike):
        source = _load_pipeline(find_folder(source))
    elif isinstance(source, diffusers.DDPMPipeline | diffusers.DDIMPipeline):
        source = source.unet, source.scheduler
    is_pair = isinstance(source, tuple) and len(source) == 2
    if not (is_pair and isinstance(source[0], diffusers.UNet2DModel)):
        raise UserError(
            f"Expected a {' or '.join(PIPELINES)}, its folder or hub id, or a pair of a "
            f"UNet2DModel and a scheduler, got a {type(source).__name__}."
        )
    net, scheduler = source
    choose("scheduler", type(scheduler).__name__, SCHEDULERS)
    config, channels, size = net.config, net.config.in_channels, net.config.sample_size
    for what, is_found in {
        "class labels": config.class_embed_type or config.num_class_embeds,
        "continuous timesteps": scheduler.config.get("timestep_type", "discrete") != "discrete",
        "a time embedding of integers": config.time_embedding_type != "positional",
        "no sample_size": size is None,
        f"{config.out_channels} outputs": config.out_channels not in (channels, 2 * channels),
    }.items():
        if is_found:
            raise UserError(
                f"The diffusion model has {what}. Use an unconditional UNet2DModel "
                "with positional embeddings of discrete timesteps."
            )
    if config.out_channels == 2 * channels:
        warnings.warn("The predicted variance of the network is ignored.", stacklevel=3)
    kind = choose("prediction_type", scheduler.config.prediction_type, PREDICTION_TYPES)
    schedule = AlphasCumprod(scheduler.alphas_cumprod)
    model = DenoiserModel(UNetSample(net), PREDICTION_TYPES[kind], schedule)
    return model, (channels, *((size, size) if isinstance(size, int) else size))


def _load_pipeline(folder: Path) -> "tuple[UNet2DModel, Any]":
    """Return the network and the scheduler of a pipeline, from JSON and safetensors only."""
    import diffusers  # takes seconds

    choose("pipeline", read_json(folder / PIPELINE_FILE).get("_class_name"), PIPELINES)
    # the files of older pipelines are all in one folder
    unet, schedule = (
        folder / name if (folder / name).is_dir() else folder for name in ("unet", "scheduler")
    )
    settings = read_json(schedule / "scheduler_config.json")
    kind = choose("scheduler", settings.get("_class_name"), SCHEDULERS)
    options = {"use_safetensors": True, "local_files_only": True, "output_loading_info": True}
    try:
        scheduler = getattr(diffusers, kind).from_config(settings)
        net, mismatches = diffusers.UNet2DModel.from_pretrained(unet, **options)
        if wrong := [key for keys in mismatches.values() for key in keys]:
            raise ValueError(f"{wrong[0]} does not match config.json")
    except Exception as error:  # damaged files raise many exception types
        raise UserError(
            f"Cannot read {folder} ({shorten(error)}). Load it in diffusers and call "
            "save_pretrained, which writes safetensors."
        ) from None
    return net, scheduler

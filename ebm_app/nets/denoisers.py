r"""Denoising networks of any library, with their own noise schedule.

A denoiser is trained on x_u = alpha_u x1 + sigma_u e with an image x1, noise e ~ N(0, I) and its
own time u, such as a step or sigma. With E[. | x] the mean given x_u = x, it predicts one of

    noise       E[e | x]
    x0          E[x1 | x]; most papers call the image x0
    v           alpha E[e | x] - sigma E[x1 | x]
    velocity    alpha' E[x1 | x] + sigma' E[e | x], where ' is the derivative by u
    score       grad_x log p_u(x) = -E[e | x] / sigma

Each determines E[e | x]. The likelihood depends on the schedule only through the log
signal-to-noise ratio l = log(alpha^2 / sigma^2), because x_u / sqrt(alpha^2 + sigma^2) is a
variance-preserving diffusion. Variance-exploding schedules (alpha = 1) and flow matching (alpha =
u, sigma = 1 - u) are therefore rescaled to ``LogSNRPath``.

Sources: Ho et al. 2020, arXiv:2006.11239 (noise); Salimans and Ho 2022, arXiv:2202.00512 (x0, v);
Lipman et al. 2023, arXiv:2210.02747 (velocity); Song et al. 2021, arXiv:2011.13456 (score); Karras
et al. 2022, arXiv:2206.00364, for the rescaling.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from ebm_app.nets.model import ScoreModel, Time, expand_time
from ebm_app.paths import LogSNRPath
from ebm_app.utils.errors import UserError, shorten
from ebm_app.utils.fields import Number, check_argument
from ebm_app.utils.registry import choose
from ebm_app.utils.tensors import as_tensor, derivative, expand_like

#: (x (B, C, H, W), time (B,)) -> prediction (B, C, H, W)
Denoiser = Callable[[Tensor, Tensor], Tensor]
#: Elementwise function of times (B,)
TimeFunction = Callable[[Tensor], Tensor]
#: alphas_cumprod up to this value is no signal: ``EulerDiscreteScheduler`` of diffusers replaces 0
#: by it
NO_SIGNAL = 2.0**-24
#: Times at which a schedule is checked
NUM_CHECKED = 1001


@runtime_checkable
class NoiseSchedule(Protocol):
    """Noise schedule x_u = alpha(u) x1 + sigma(u) e of a denoiser at its own times u.

    Attributes:
        t_noise, t_data: times with the most and the least noise. alpha and sigma are above 0
            there.
    """

    t_noise: float
    t_data: float

    def alpha(self, time: Tensor) -> Tensor:
        """Return the factor of the image at times (B,): (B,)."""

    def sigma(self, time: Tensor) -> Tensor:
        """Return the standard deviation of the noise at times (B,): (B,)."""


@dataclass(frozen=True)
class AlphaSigma:
    """Schedule in continuous time. The network gets times between ``t_noise`` and ``t_data``.

    >>> flow_matching = AlphaSigma(lambda u: u, lambda u: 1 - u, t_noise=1e-3, t_data=0.998)
    >>> edm = AlphaSigma(torch.ones_like, lambda sigma: sigma, t_noise=80.0, t_data=0.002)
    >>> edm.sigma(torch.tensor([0.5]))
    tensor([0.5000])

    Args:
        alpha, sigma: elementwise torch functions of times (B,), which are differentiated.
        t_noise: time with most noise. There, alpha / sigma should be 0.01 or less, because p at
            this time is replaced by noise.
        t_data: time with least noise, at which grey levels are decoded. Noise costs bits: for
            independent pixels of standard deviation 2.5 of 256 levels, sigma / alpha = 0.01 costs
            0.16 bits per dim, 0.004 costs 0.03, and 0.002 at most 0.01. The network must be
            trained up to this time.
    """

    alpha: TimeFunction
    sigma: TimeFunction
    t_noise: float
    t_data: float


class AlphasCumprod:
    """Schedule in N discrete steps: alpha_k^2 = abar_k, sigma_k^2 = 1 - abar_k, k = 0 ... N - 1.

    Between steps, l is interpolated linearly, and the network gets a real-valued step in [0, N -
    1]. For a network that only accepts integers, pass a function ``lambda x, step: net(x,
    step.round().long())``; "elbo" is still a lower bound, because it holds for any predictions.
    Final steps without signal (abar up to ``NO_SIGNAL``) are left out.

    >>> schedule = AlphasCumprod(torch.linspace(0.999, 0.001, 100))
    >>> schedule.t_noise, schedule.t_data
    (99.0, 0.0)

    Args:
        abar: (N,), ``alphas_cumprod`` of the sampler, decreasing.

    Raises:
        UserError: for less than 3 steps with signal, or values that do not decrease from below 1.
    """

    def __init__(self, abar: Any) -> None:
        abar = as_tensor(abar, "alphas_cumprod").cpu().double()
        if abar.ndim != 1:
            raise UserError(f"Expected alphas_cumprod of shape (N,), got {tuple(abar.shape)}.")
        abar = abar[: max(1, int((abar > NO_SIGNAL).sum()))]
        self.log_ratios = abar.log() - torch.log1p(-abar)
        is_decreasing = self.log_ratios.isfinite().all() and (self.log_ratios.diff() < 0).all()
        if len(abar) < 3 or not is_decreasing:
            raise UserError(
                f"Expected at least 3 values of alphas_cumprod that decrease from below 1, got "
                f"{len(abar)} from {abar[0].item():.6g} to {abar[-1].item():.6g}. Use a schedule "
                "whose noise increases with every step, with betas between 0 and 1."
            )
        self.t_noise, self.t_data = len(abar) - 1.0, 0.0

    def log_snr(self, step: Tensor) -> Tensor:
        """Return the interpolated log(abar / (1 - abar)) at real-valued steps (B,): (B,)
        float64."""
        step, ratios = step.double(), self.log_ratios.to(step.device, non_blocking=True)
        low = step.detach().long().clamp(0, len(ratios) - 2)
        return ratios[low] + (step - low) * (ratios[low + 1] - ratios[low])

    def alpha(self, time: Tensor) -> Tensor:
        return torch.sigmoid(self.log_snr(time)).sqrt()

    def sigma(self, time: Tensor) -> Tensor:
        return torch.sigmoid(-self.log_snr(time)).sqrt()


class Coefficients:
    """alpha and sigma of a schedule at times (B,), (B, 1, 1, 1) each in the dtype of x."""

    def __init__(self, schedule: NoiseSchedule, time: Tensor, x: Tensor) -> None:
        self.functions, self.time, self.x = (schedule.alpha, schedule.sigma), time, x
        self.alpha, self.sigma = (expand_like(function(time), x) for function in self.functions)

    def rates(self) -> tuple[Tensor, Tensor]:
        """Return the derivatives of alpha and sigma by time."""
        alpha_dt, sigma_dt = (derivative(function, self.time) for function in self.functions)
        return expand_like(alpha_dt, self.x), expand_like(sigma_dt, self.x)


def _noise_of_v(x: Tensor, out: Tensor, at: Coefficients) -> Tensor:
    # alpha v + sigma x = (alpha^2 + sigma^2) e
    return (at.alpha * out + at.sigma * x) / (at.alpha.square() + at.sigma.square())


def _noise_of_velocity(x: Tensor, out: Tensor, at: Coefficients) -> Tensor:
    # alpha velocity - alpha' x = (alpha sigma' - alpha' sigma) e
    alpha_dt, sigma_dt = at.rates()
    return (at.alpha * out - alpha_dt * x) / (at.alpha * sigma_dt - alpha_dt * at.sigma)


#: Prediction -> function (x, network output, coefficients) -> E[e | x], see the module docstring
NOISE_OF: dict[str, Callable[[Tensor, Tensor, Coefficients], Tensor]] = {
    "noise": lambda x, out, at: out,
    "x0": lambda x, out, at: (x - at.alpha * out) / at.sigma,
    "v": _noise_of_v,
    "velocity": _noise_of_velocity,
    "score": lambda x, out, at: -at.sigma * out,
}


class DenoiserModel(ScoreModel):
    r"""Denoiser on a ``LogSNRPath``, with a Stein score but no time score.

    Time t of the path is linear in the time u of the schedule, from t = 0 at ``t_noise`` to t = 1
    at ``t_data``. A point x of the path is x_u = r x with r = sqrt(alpha^2 + sigma^2), and
    grad_x log p_t(x) = -r E[e | x_u] / sigma.

    >>> schedule = AlphaSigma(lambda u: u, lambda u: 1 - u, t_noise=0.001, t_data=0.999)
    >>> model = DenoiserModel(lambda x, u: torch.zeros_like(x), "velocity", schedule)
    >>> model.score(torch.zeros(2, 1, 8, 8), 0.5).shape
    torch.Size([2, 1, 8, 8])

    Args:
        net: a function or module, (x (B, C, H, W), time (B,)) -> (B, C, H, W).
        prediction: a key of ``NOISE_OF``.
        schedule: noise schedule.

    Raises:
        UserError: for an unknown prediction, and a schedule whose log signal-to-noise ratio is not
            finite or does not increase from ``t_noise`` to ``t_data``.
    """

    def __init__(self, net: Denoiser, prediction: str, schedule: NoiseSchedule) -> None:
        noise_of = NOISE_OF[choose("prediction", prediction, NOISE_OF)]
        schedule = checked_schedule(schedule)
        super().__init__(
            LogSNRPath(lambda t: log_snr(schedule, own_time(schedule, t))), (0.0, 1.0)
        )
        if not callable(net):
            raise UserError(f"Expected a function or module, got a {type(net).__name__}.")
        weights = []
        if isinstance(net, nn.Module):
            weights = [w for w in chain(net.parameters(), net.buffers()) if w.is_floating_point()]
        self.net, self.schedule, self.noise_of, self.t_margin = net, schedule, noise_of, 0.0
        # device and dtype of the model, also if the network is a function
        weight = weights[0] if weights else torch.zeros(())
        self.register_buffer("placement", weight.new_zeros(()), persistent=False)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """Return E[e | x] at points x (B, C, H, W) of the path and t (B,) float64: (B, C, H, W).

        Raises:
            UserError: for a prediction that is not a tensor of the shape of x.
        """
        time = own_time(self.schedule, t)
        at = Coefficients(self.schedule, time, x)
        own = torch.hypot(at.alpha, at.sigma) * x
        out = self.net(own, time.to(x.dtype))
        if not isinstance(out, Tensor) or out.shape != x.shape:
            got = tuple(out.shape) if isinstance(out, Tensor) else f"a {type(out).__name__}"
            raise UserError(
                f"Expected the network to return shape {tuple(x.shape)}, got {got}. Pass a "
                "function of (x, time) that returns the predicted tensor."
            )
        return self.noise_of(own, out.to(x.dtype), at)

    def score(self, x: Tensor, t: Time) -> Tensor:
        """Return grad_x log p_t(x) = -E[e | x] / sqrt(v_t): (B, *)."""
        times = expand_time(t, x)
        return -self(x, times) / expand_like(self.path.variance(times).sqrt(), x)

    def score_cost(self, t: float) -> int:
        """Return the number of network evaluations per call of ``score``."""
        return 1


def own_time(schedule: NoiseSchedule, t: Tensor) -> Tensor:
    """Return the time u of a schedule at time t of the path, (B,) float64."""
    return schedule.t_noise + (schedule.t_data - schedule.t_noise) * t


def log_snr(schedule: NoiseSchedule, time: Tensor) -> Tensor:
    """Return log(alpha^2 / sigma^2) at times u (B,) of a schedule."""
    return 2 * (schedule.alpha(time) / schedule.sigma(time)).log()


def checked_schedule(schedule: NoiseSchedule) -> NoiseSchedule:
    """Return a schedule whose log signal-to-noise ratio increases from noise to data.

    Raises:
        UserError: otherwise, and for functions that are not elementwise torch functions.
    """
    schedule = check_argument(NoiseSchedule, "schedule", schedule)
    ends = {name: getattr(schedule, name) for name in ("t_noise", "t_data")}
    for name, time in ends.items():
        check_argument(Number, name, time)
    t = torch.linspace(0, 1, NUM_CHECKED, dtype=torch.float64)
    try:
        ratios = log_snr(schedule, own_time(schedule, t))
        rates = derivative(lambda t: log_snr(schedule, own_time(schedule, t)), t)
    except Exception as error:  # functions of the user raise any exception
        raise UserError(
            f"Cannot evaluate and differentiate alpha and sigma at a tensor of times: "
            f"{shorten(error)}. Use elementwise torch functions."
        ) from None
    for (name, time), ratio in zip(ends.items(), (ratios[0], ratios[-1]), strict=True):
        if not ratio.isfinite():
            raise UserError(
                f"log(alpha^2 / sigma^2) is {ratio.item()} at {name} = {time}. Choose a time with "
                "both signal and noise, such as 0.001 away from the end."
            )
    if not ((ratios.diff() > 0).all() and (rates > 0).all()):
        raise UserError(
            f"log(alpha^2 / sigma^2) does not increase everywhere between t_noise = "
            f"{schedule.t_noise} ({ratios[0].item():.4g}) and t_data = {schedule.t_data} "
            f"({ratios[-1].item():.4g}). Swap the times, or use differentiable alpha and sigma."
        )
    return schedule

"""Diffusion models of diffusers on the path of their scheduler."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from ebm_app.nets.chunks import expand_time
from ebm_app.nets.density import PathDensity
from ebm_app.nets.protocols import Time
from ebm_app.paths import LogSNRPath
from ebm_app.utils.errors import UserError
from ebm_app.utils.registry import choose
from ebm_app.utils.tensors import expand_like

#: (x, output of the network, a, s) -> noise e in x = a x1 + s e, by prediction type
NOISE_OF: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {
    "epsilon": lambda x, out, a, s: out,
    "v_prediction": lambda x, out, a, s: a * out + s * x,
    "sample": lambda x, out, a, s: (x - a * out) / s,
}


class PipelineModel(nn.Module):
    r"""Noise prediction network of a diffusers pipeline.

    The scheduler's step i has alpha_i^2 = abar_i and v_i = 1 - abar_i. The path runs through these
    noise levels linearly in l = log(abar / (1 - abar)), from t = 0 at the last step to t = 1 at
    the first. Between the scheduler's steps the network gets a real-valued step, linear in l.
    Last steps without any signal (abar = 0) are left out.

    >>> from diffusers import DDPMScheduler, UNet2DModel
    >>> blocks = {"down_block_types": ("DownBlock2D",), "up_block_types": ("UpBlock2D",)}
    >>> net = UNet2DModel(8, 1, 1, block_out_channels=(32,), **blocks)
    >>> model = PipelineModel(net, DDPMScheduler().alphas_cumprod, "epsilon", 1)
    >>> round(model.step(torch.tensor([0.0, 1.0], dtype=torch.float64))[0].item(), 6)
    999.0

    Args:
        net: (x (B, C, H, W), step (B,)) -> an object with the prediction in the first C channels
            of ``sample``. It is used without a copy.
        abar: (N,), the scheduler's ``alphas_cumprod``.
        prediction: a key of ``NOISE_OF``.
        channels: C.
        reverse_variance: variance of the scheduler's reverse steps, see
            ``ebm_app.likelihood.DiscreteBound``.

    Raises:
        UserError: for an unknown prediction, or noise levels that do not increase from step to
            step.
    """

    def __init__(
        self,
        net: nn.Module,
        abar: Tensor,
        prediction: str,
        channels: int,
        reverse_variance: Literal["small", "large"] = "small",
    ) -> None:
        super().__init__()
        self.net, self.channels, self.eps = net, channels, 0.0
        self.reverse_variance = reverse_variance
        self.noise_of = NOISE_OF[choose("prediction_type", prediction, NOISE_OF)]
        abar = abar.detach().cpu().double()
        abar = abar[: max(1, int((abar > 0).sum()))]
        ratios = (abar.log() - torch.log1p(-abar)).flip(0)
        if len(ratios) < 3 or not (ratios.isfinite().all() and (ratios.diff() > 0).all()):
            raise UserError(
                "The scheduler's noise does not increase from step to step. Use one with betas "
                "between 0 and 1."
            )
        self.path = LogSNRPath(ratios[0].item(), ratios[-1].item())
        self.interval = (0.0, 1.0)
        self.times = (ratios - ratios[0]) / (ratios[-1] - ratios[0])

    def step(self, t: Tensor) -> Tensor:
        """Return the scheduler's step, a real number, at t (B,) float64."""
        times = self.times.to(t.device)
        right = torch.searchsorted(times, t.contiguous()).clamp(1, len(times) - 1)
        low, high = times[right - 1], times[right]
        return len(times) - right - ((t - low) / (high - low)).clamp(0, 1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """Return the noise predicted in x (B, C, H, W) at t (B,) float64: (B, C, H, W)."""
        out = self.net(x, self.step(t).to(x.dtype)).sample[:, : self.channels].to(x.dtype)
        alpha, sigma = self.path.alpha(t), self.path.variance(t).sqrt()
        return self.noise_of(x, out, expand_like(alpha, x), expand_like(sigma, x))


class DiffusionDensity(PathDensity):
    """Marginals of a ``PipelineModel``: a Stein score and a noise model, without a time score."""

    model: PipelineModel

    def __init__(self, model: PipelineModel) -> None:
        super().__init__(model)
        self.times, self.reverse_variance = model.times, model.reverse_variance

    def noise(self, x: Tensor, step: int) -> Tensor:
        """Return the noise predicted in ``x`` (B, *) at the level ``times[step]``: (B, *)."""
        return self.model(x, expand_time(self.times[step], x))

    def score(self, x: Tensor, t: Time) -> Tensor:
        """Return grad_x log p_t(x) = -noise / sqrt(v_t): (B, *)."""
        times = expand_time(t, x)
        return -self.model(x, times) / expand_like(self.path.variance(times).sqrt(), x)

    def score_cost(self, t: float) -> int:
        """Return 1, the number of network evaluations in one call of ``score``."""
        return 1

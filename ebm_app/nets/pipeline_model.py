"""A network of diffusers joined to the path of its scheduler."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ebm_app.nets.time_score import ModelOutput
from ebm_app.paths import LogSNRPath
from ebm_app.utils.errors import UserError
from ebm_app.utils.registry import choose
from ebm_app.utils.tensors import expand_like

#: the noise e in x = a x1 + s e, from x, the output of the network, a and s, by what is predicted
NOISE_OF: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {
    "epsilon": lambda x, out, a, s: out,
    "v_prediction": lambda x, out, a, s: a * out + s * x,
    "sample": lambda x, out, a, s: (x - a * out) / s,
}


class PipelineModel(nn.Module):
    r"""The Stein score -e(x, t) / sqrt(v_t) of a network that predicts the noise e of a diffusion.

    The scheduler's step i has alpha_i^2 = abar_i and v_i = 1 - abar_i. The path runs through these
    noise levels evenly in l = log(abar / (1 - abar)), t = 0 the last step and t = 1 the first. The
    network is asked at real-valued steps, linear in l between the scheduler's own. A last step
    without any signal (abar = 0) is left out: that before it has nearly none.

    >>> from diffusers import DDPMScheduler, UNet2DModel
    >>> blocks = {"down_block_types": ("DownBlock2D",), "up_block_types": ("UpBlock2D",)}
    >>> net = UNet2DModel(8, 1, 1, block_out_channels=(32,), **blocks)
    >>> model = PipelineModel(net, DDPMScheduler().alphas_cumprod, "epsilon", 1)
    >>> round(model.step(torch.tensor([0.0, 1.0], dtype=torch.float64))[0].item(), 6)
    999.0

    Args:
        net: (x (B, C, H, W), step (B,)) -> an object whose ``sample`` (B, >= C, H, W) begins with
            what is predicted; it is used as it is, not copied.
        abar: (N,), the scheduler's ``alphas_cumprod``. prediction: a key of ``NOISE_OF``.
        channels: C. variance: of the scheduler's reverse steps, "small" or "large"; see
            ``ebm_app.likelihood.DiscreteBound``.

    Raises:
        UserError: for an unknown prediction, and noise levels that do not rise from step to step.
    """

    has_time_score = False

    def __init__(
        self, net: nn.Module, abar: Tensor, prediction: str, channels: int, variance: str = "small"
    ) -> None:
        super().__init__()
        self.net, self.stein_channels, self.eps = net, channels, 0.0
        self.variance = variance
        self.noise_of = NOISE_OF[choose("prediction_type", prediction, NOISE_OF)]
        abar = abar.detach().cpu().double()
        abar = abar[: max(1, int((abar > 0).sum()))]
        ratios = (abar.log() - torch.log1p(-abar)).flip(0)
        if len(ratios) < 3 or not (ratios.isfinite().all() and (ratios.diff() > 0).all()):
            raise UserError(
                "the scheduler's noise does not rise from step to step: give one with betas "
                "between 0 and 1"
            )
        self.path = LogSNRPath(ratios[0].item(), ratios[-1].item())
        self.interval = (0.0, 1.0)
        self.times = (ratios - ratios[0]) / (ratios[-1] - ratios[0])

    def step(self, t: Tensor) -> Tensor:
        """The scheduler's step, a real number, at t (B,) float64."""
        times = self.times.to(t.device)
        right = torch.searchsorted(times, t.contiguous()).clamp(1, len(times) - 1)
        low, high = times[right - 1], times[right]
        return len(times) - right - ((t - low) / (high - low)).clamp(0, 1)

    def forward(self, x: Tensor, t: Tensor) -> ModelOutput:
        """x (B, C, H, W), t (B,) float64 -> its Stein score; it has no time score."""
        out = self.net(x, self.step(t).to(x.dtype)).sample[:, : self.stein_channels].to(x.dtype)
        alpha, sigma = self.path.alpha(t), self.path.variance(t).sqrt()
        noise = self.noise_of(x, out, expand_like(alpha, x), expand_like(sigma, x))
        return ModelOutput(None, -noise / expand_like(sigma, x))

"""Sampling by DPM-Solver++, one evaluation of the score a step."""

from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor

from ebm_app.nets.protocols import SteinScore
from ebm_app.paths.schedules import SCHEDULES
from ebm_app.sampling.base import FlowSampler, Frame, denoised, end_time
from ebm_app.utils.fields import NonNegative, configuration


@configuration
class DPMSampler(FlowSampler):
    r"""DPM-Solver++(2M) in steps even in the log signal-to-noise ratio 2 l.

    With D_i = E[x_1 | x_i], h = l_{i+1} - l_i, h' = l_i - l_{i-1} and sigma^2 the path's variance,

        x_{i+1} = sigma_{i+1} / sigma_i e^{-k h} x_i + alpha_{i+1} (1 - e^{-(1 + k) h}) D
                  + sigma_{i+1} sqrt(1 - e^{-2 k h}) z,     D = D_i + h / (2 h') (D_i - D_{i-1}).

    With k = 0 it solves the probability-flow ODE; with k > 0 it adds fresh noise z ~ N(0, I) and
    forgets the errors made before. The last step returns D.

    Args:
        num_steps, start, end_variance: as for ``FlowSampler``; a step takes one evaluation of the
            Stein score. noise: k; 1 follows the reversed diffusion.

    Source: Lu et al. 2022, arXiv:2211.01095, algorithm 2 and, for k = 1, appendix B.
    """

    note: ClassVar[str] = "DPM-Solver++(2M) from noise, the flow or, with noise=1, the diffusion"
    steps: ClassVar[str] = "steps of the solver"

    noise: NonNegative = 0.0

    def iterate(
        self, energy: SteinScore, x0: Tensor, generator: torch.Generator
    ) -> Iterator[Frame]:
        score, path = energy.score, energy.path
        end = end_time(energy, self.start, self.end_variance)
        times = SCHEDULES["log_snr"].times(path, self.start, end, self.num_steps)
        alpha, sigma = path.alpha(times), path.variance(times).sqrt()
        half = (alpha / sigma).log()
        x, before = x0, None
        for index, t in enumerate(times[:-1].tolist()):
            with torch.no_grad():
                found = denoised(energy, x, score(x, t), t)
            guess, h = found, half[index + 1] - half[index]
            if before is not None:
                guess = found + h / (2 * (half[index] - half[index - 1])) * (found - before)
            shrink = sigma[index + 1] / sigma[index] * torch.exp(-self.noise * h)
            pull = alpha[index + 1] * -torch.expm1(-(1 + self.noise) * h)
            x, before = shrink * x + pull * guess, found
            if self.noise:
                z = torch.randn(x.shape, dtype=x.dtype, device=x.device, generator=generator)
                x = x + sigma[index + 1] * (-torch.expm1(-2 * self.noise * h)).sqrt() * z
            if index + 1 < self.num_steps:
                yield Frame(x, index + 1, self.num_steps, index + 1)
        with torch.no_grad():
            x = denoised(energy, x, score(x, end), end)
        yield Frame(x, self.num_steps, self.num_steps, self.num_steps + 1)

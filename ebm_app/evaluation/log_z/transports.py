r"""Transports: how annealed chains come from one temperature to the next.

A transport draws y from a kernel K(y | x), and comes back from y by a kernel L(x | y). It
multiplies the weight of a chain by L(x | y) / K(y | x), whose logarithm is returned beside y; for
a bijection that is |det dy/dx|. Any pair of kernels leaves the mean of the weights as it is.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from ebm_app.likelihood.estimator import CountedScore
from ebm_app.models.energy import TimeScoreEnergy
from ebm_app.numerics.tensors import standard_normal_log_density, sum_except_batch
from ebm_app.paths import OneSidedPath
from ebm_app.paths.midpoint import ImplicitMidpoint
from ebm_app.paths.probability_flow import ClockField
from ebm_app.sampling.annealing import stay


class Transported(NamedTuple):
    """Points (B, *), and the logarithm (B,) of the ratio of kernels, in nats."""

    x: Tensor
    log_ratio: Tensor


class Transport(ABC):
    """From the first of ``times`` to the last, and back.

    Args:
        energy: the model. times: two or more, rising, alpha > 0 at the first.
        score: "head", "integral" or None, as for ``TimeScoreEnergy.stein_score``.
    """

    note: ClassVar[str]

    def __init__(
        self, energy: TimeScoreEnergy, times: Sequence[float], score: str | None = None
    ) -> None:
        self.energy, self.times, self.score = energy, tuple(times), score

    @abstractmethod
    def forward(self, x: Tensor, generator: torch.Generator) -> Transported:
        """From x (B, *) at the first time to the last."""

    @abstractmethod
    def backward(self, x: Tensor, generator: torch.Generator) -> Transported:
        """From x (B, *) at the last time to the first."""


class Stay(Transport):
    """The points stay where they are."""

    note = "none"

    def forward(self, x: Tensor, generator: torch.Generator) -> Transported:
        return Transported(*stay(x, generator))

    def backward(self, x: Tensor, generator: torch.Generator) -> Transported:
        return Transported(*stay(x, generator))


class FlowTransport(Transport):
    """Implicit midpoint steps of the probability-flow ODE, a bijection whose determinant costs D
    backward passes a step."""

    note = "exactly invertible steps of the probability-flow ODE"

    def __init__(
        self, energy: TimeScoreEnergy, times: Sequence[float], score: str | None = None
    ) -> None:
        super().__init__(energy, times, score)
        field = ClockField(energy.stein_score(score), energy.path)
        self.steps = ImplicitMidpoint(field, self.times)

    def forward(self, x: Tensor, generator: torch.Generator) -> Transported:
        return Transported(*self.steps.forward(x))

    def backward(self, x: Tensor, generator: torch.Generator) -> Transported:
        return Transported(*self.steps.backward(x))


class Gaussian(NamedTuple):
    """N(mean, variance), both (B, *) or broadcastable to it."""

    mean: Tensor
    variance: Tensor

    def sample(self, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
        """A draw (B, *)."""
        noise = torch.empty_like(self.mean, dtype=dtype).normal_(generator=generator)
        return (self.mean + self.variance.sqrt() * noise).to(dtype)

    def log_density(self, x: Tensor) -> Tensor:
        """(B, *) -> (B,), in nats."""
        variance = self.variance.expand_as(self.mean)
        standard = (x.double() - self.mean) * variance.rsqrt()
        return sum_except_batch(standard_normal_log_density(standard) - variance.log() / 2)


class DiffusionStep(NamedTuple):
    """What ``DiffusionTransport`` needs between r and s, all () float64 but the time r: a, w and b
    as there; keep = a v_s / v_r; the variance v_s w / v_r of x_s given x_r and x_1; and spread, by
    which Var[eps | x_r] adds to it."""

    r: float
    a: Tensor
    w: Tensor
    b: Tensor
    keep: Tensor
    variance: Tensor
    spread: Tensor


def diffusion_step(path: OneSidedPath, r: float, s: float) -> DiffusionStep:
    """The numbers of the step between the times r < s."""
    times = torch.tensor([r, s], dtype=torch.float64)
    (alpha_r, alpha_s), (v_r, v_s) = path.alpha(times), path.variance(times)
    a = alpha_r / alpha_s
    w = v_r - a.square() * v_s
    b = alpha_s * w / v_r
    spread = b.square() * (v_r / alpha_r.square())
    return DiffusionStep(r, a, w, b, a * v_s / v_r, v_s * w / v_r, spread)


class DiffusionTransport(Transport):
    r"""The reversed diffusion in Gaussian steps, and the diffusion for the way back.

    The diffusion leads from x_s to an earlier x_r = a x_s + sqrt(w) e, a = alpha_r / alpha_s and
    w = v_r - a^2 v_s. The step from x_r to x_s is a Gaussian with the mean and the variances that
    x_s has given x_r, by the Stein score and the variance that the model predicts,

        E[x_s | x_r] = (a v_s / v_r) x_r + b E[x_1 | x_r],    b = alpha_s w / v_r,
        Var[x_s | x_r] = v_s w / v_r + b^2 Var[x_1 | x_r].

    No determinant is needed: a step costs one evaluation of the network, whatever D is. Where the
    model is exact, the weight settles at its mean as the steps grow short. A model without a
    predicted variance takes E[x_1 | x_r] for certain.

    Sources: Doucet et al. 2022, arXiv:2208.07698, for the weights; Bao et al. 2022,
    arXiv:2201.06503, for the variances.
    """

    note = "the reversed diffusion in Gaussian steps, with the diffusion for the way back"

    def __init__(
        self, energy: TimeScoreEnergy, times: Sequence[float], score: str | None = None
    ) -> None:
        super().__init__(energy, times, score)
        self.steps = [diffusion_step(energy.path, r, s) for r, s in pairwise(self.times)]

    @torch.no_grad()
    def forward(self, x: Tensor, generator: torch.Generator) -> Transported:
        score, total = CountedScore(self.energy, self.score), 0.0
        for step in self.steps:
            there = self._denoising(score, x, step)
            y = there.sample(x.dtype, generator)
            total = total + _noising(y, step).log_density(x) - there.log_density(y)
            x = y
        return Transported(x, total)

    @torch.no_grad()
    def backward(self, x: Tensor, generator: torch.Generator) -> Transported:
        score, total = CountedScore(self.energy, self.score), 0.0
        for step in reversed(self.steps):
            back = _noising(x, step)
            y = back.sample(x.dtype, generator)
            total = total + self._denoising(score, y, step).log_density(x) - back.log_density(y)
            x = y
        return Transported(x, total)

    def _denoising(self, score: CountedScore, x: Tensor, step: DiffusionStep) -> Gaussian:
        """x_s given x_r = ``x``, by the model."""
        found, noise_variance = score.with_noise_variance(x, step.r)
        time = torch.tensor(step.r, dtype=torch.float64)
        data = self.energy.path.denoise(x.double(), found.double(), time)
        variance = step.variance.to(x.device)
        if noise_variance is not None:
            variance = variance + step.spread.to(x.device) * noise_variance.double()
        return Gaussian(step.keep * x.double() + step.b * data, variance)


def _noising(x: Tensor, step: DiffusionStep) -> Gaussian:
    """x_r given x_s = ``x``."""
    return Gaussian(step.a * x.double(), step.w.to(x.device))


TRANSPORTS: dict[str, type[Transport]] = {
    "none": Stay,
    "flow": FlowTransport,
    "diffusion": DiffusionTransport,
}

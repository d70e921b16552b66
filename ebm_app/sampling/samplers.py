"""Sampling along the probability flow: the ODE by a choice of solvers, and DPM-Solver++."""

from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor

from ebm_app.nets.model import ScoreModel
from ebm_app.paths import require_one_sided
from ebm_app.paths.base import LOG_SNR
from ebm_app.sampling.base import Counter, Frame, Sampler, denoised, end_time
from ebm_app.sampling.ode import Method, ProbabilityFlow, SolverSettings, solve_flow
from ebm_app.utils.fields import NonNegative, Positive, Steps, configuration
from ebm_app.utils.random import Noise

#: Time at which p_t is replaced by N(0, I); alpha must exceed 0 there
START = 1e-2


@configuration
class FlowSampler(Sampler):
    """Sampler that follows the flow from noise and ends with one denoising step.

    Args:
        num_steps: number of steps.
        end_variance: conditional variance at which the flow stops and the image is denoised.
    """

    counts: ClassVar[str] = "num_steps"

    num_steps: Steps = 25
    end_variance: Positive = 1e-3


@configuration
class ProbabilityFlowSampler(FlowSampler):
    """The probability-flow ODE by ``solve_flow`` in the log signal-to-noise ratio, then one
    denoising step (Tweedie's formula) with one evaluation of the score.

    Args:
        num_steps, end_variance: as for ``FlowSampler``.
        method: a key of ``SOLVERS``: "multistep" takes ``num_steps`` + 1 evaluations of the score,
            "rk4" 4 ``num_steps``. "dopri5" chooses its steps and yields the last frame only.
        rtol, atol: tolerances of "dopri5" in each step, see ``dopri5``.
    """

    method: Method = "multistep"
    rtol: Positive = 1e-4
    atol: Positive = 1e-4

    def iterate(self, model: ScoreModel, x0: Tensor, noise: Noise) -> Iterator[Frame]:
        path, end = require_one_sided(model.path), end_time(model, START, self.end_variance)
        counter = Counter()
        score = counter.count(model.score, model.score_cost)
        flow = ProbabilityFlow(score, path, LOG_SNR, x0, (START, end))
        settings = SolverSettings(self.num_steps, self.rtol, self.atol)
        for state in solve_flow(flow, self.method, settings):
            if state.s < 1:
                step = round(state.s * self.num_steps)
                yield Frame(state.x, step, self.num_steps, counter.nfe)
        with torch.no_grad():
            x = denoised(model, state.x, model.score(state.x, end), end)
        nfe = counter.nfe + model.score_cost(end)
        yield Frame(x, self.num_steps, self.num_steps, nfe)


@configuration
class DPMSampler(FlowSampler):
    r"""DPM-Solver++(2M) with equal steps in the log signal-to-noise ratio 2 l.

    With D_i = E[x_1 | x_i], h = l_{i+1} - l_i, h' = l_i - l_{i-1} and sigma^2 the path's variance,

        x_{i+1} = sigma_{i+1} / sigma_i e^{-k h} x_i + alpha_{i+1} (1 - e^{-(1 + k) h}) D
                  + sigma_{i+1} sqrt(1 - e^{-2 k h}) z,     D = D_i + h / (2 h') (D_i - D_{i-1}).

    k = 0 solves the probability-flow ODE; k > 0 adds noise z ~ N(0, I), which reduces the effect
    of earlier errors. The last step returns D. A step takes one evaluation of the score.

    Args:
        num_steps, end_variance: as for ``FlowSampler``.
        noise: k; 1 follows the reverse diffusion.

    Source: Lu et al. 2022, arXiv:2211.01095, algorithm 2 and, for k = 1, appendix B.
    """

    noise: NonNegative = 0.0

    def iterate(self, model: ScoreModel, x0: Tensor, noise: Noise) -> Iterator[Frame]:
        path, end = model.path, end_time(model, START, self.end_variance)
        times = LOG_SNR.times(path, START, end, self.num_steps)
        alpha, sigma = path.alpha(times), path.variance(times).sqrt()
        log_ratio = (alpha / sigma).log()
        counter = Counter()
        score = counter.count(model.score, model.score_cost)
        x, previous = x0, None
        for index, t in enumerate(times[:-1].tolist()):
            with torch.no_grad():
                current = denoised(model, x, score(x, t), t)
            guess, h = current, log_ratio[index + 1] - log_ratio[index]
            if previous is not None:
                factor = h / (2 * (log_ratio[index] - log_ratio[index - 1]))
                guess = current + factor * (current - previous)
            shrink = sigma[index + 1] / sigma[index] * torch.exp(-self.noise * h)
            pull = alpha[index + 1] * -torch.expm1(-(1 + self.noise) * h)
            x, previous = shrink * x + pull * guess, current
            if self.noise:
                deviation = sigma[index + 1] * (-torch.expm1(-2 * self.noise * h)).sqrt()
                x = x + deviation * noise.normal_like(x)
            if index + 1 < self.num_steps:
                yield Frame(x, index + 1, self.num_steps, counter.nfe)
        with torch.no_grad():
            x = denoised(model, x, score(x, end), end)
        yield Frame(x, self.num_steps, self.num_steps, counter.nfe)

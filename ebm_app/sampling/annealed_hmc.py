"""Annealed Hamiltonian Monte Carlo through the model's own p_t (paper, section 6)."""

import math
from collections.abc import Iterator
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ebm_app.nets.model import ScoreModel, TimeScoreModel
from ebm_app.paths.base import SCHEDULES
from ebm_app.sampling.base import Counter, Frame, Sampler, denoised, end_time
from ebm_app.sampling.hmc import IntermediateDistribution, Target, adapt, anneal, warn_if_stuck
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import Count, Positive, PositiveInt, Steps, configuration
from ebm_app.utils.random import Noise
from ebm_app.utils.registry import choose

#: Target acceptance for the leapfrog step
ACCEPTANCE_TARGET = 0.75
#: Time at which p_t is replaced by N(0, I)
START = 1e-3
#: Quadrature nodes of log densities and their gradients
NUM_NODES = 8


@configuration
class AnnealedHMC(Sampler):
    """HMC from N(0, I) through the model's p_t, then one denoising step.

    Neighbouring p_t overlap if their number grows like sqrt(D) times the arc length of the path.
    The leapfrog step is proportional to the standard deviation of the noise. It is adapted to a
    target acceptance, for each chain alone, until the last temperature, where it is frozen. A run
    warns if its chains hardly move.

    The paper's setting: ``num_temperatures=1000 schedule=linear score=integral acceptance=energy``
    (appendix F.6).

    Args:
        num_temperatures: number of p_t; None for 1.3 sqrt(D) times the arc length.
        schedule: spacing of the temperatures, a key of ``SCHEDULES``.
        steps_per_temperature, num_leapfrog_steps: transitions per temperature, and leapfrog steps
            per transition.
        final_steps: further transitions at the last temperature.
        step_size: initial and max leapfrog step, in standard deviations of the noise.
        score: field of the leapfrog: "head" for the Stein head, or "integral" for the gradient of
            the integrated log density.
        acceptance: accept by the "work" of the score along a trajectory, or by the "energy", which
            is exact and needs a log density.
        end_variance: conditional variance at the last temperature, at which the image is denoised.
    """

    counts: ClassVar[str] = "num_temperatures"

    num_temperatures: Steps | None = None
    schedule: str = "arc_length"
    steps_per_temperature: PositiveInt = 1
    num_leapfrog_steps: PositiveInt = 4
    final_steps: Count = 5
    step_size: Positive = 0.5
    score: Literal["head", "integral"] = "head"
    acceptance: Literal["work", "energy"] = "work"
    end_variance: Positive = 1e-3

    def iterate(self, model: ScoreModel, x0: Tensor, noise: Noise) -> Iterator[Frame]:
        times, counter = self._times(model, x0[0].numel()), Counter()
        deviations = model.path.variance(times).sqrt()
        distributions = self._distributions(model, times, deviations, counter)
        rates, moves = [], []
        records = anneal(
            x0,
            distributions,
            self.num_leapfrog_steps,
            noise,
            # each chain has its own step size, so that samples do not depend on other chains
            scale=torch.full((len(x0),), self.step_size, dtype=torch.float64),
        )
        for index, record in enumerate(records, 1):
            x = record.state.position
            rates.append(record.acceptance)
            moves.append(record.move() / deviations[index - 1])
            if index == len(times):
                warn_if_stuck(
                    torch.tensor(rates),
                    torch.stack(moves),
                    "a smaller step_size or more temperatures",
                    "a larger step_size or more temperatures",
                )
                x = denoised(model, x, record.state.field, times[-1].item())
            yield Frame(x, index, len(times), counter.nfe, record.acceptance)

    def _distributions(
        self, model: ScoreModel, times: Tensor, deviations: Tensor, counter: Counter
    ) -> list[IntermediateDistribution]:
        if isinstance(model, TimeScoreModel):
            model = model.with_nodes(NUM_NODES)
        elif (self.score, self.acceptance) != ("head", "work"):
            raise UserError("A denoiser has no log density. Use score=head and acceptance=work.")
        score, log_density = counter.count(model.score, model.score_cost), None
        if self.score == "integral":
            score = counter.count(model.log_density_gradient, model.gradient_cost)
        if self.acceptance == "energy":
            log_density = counter.count(model.log_density, model.log_density_cost)
        distributions = []
        for t, deviation in zip(times.tolist(), deviations, strict=True):
            target = Target(partial(score, t=t), log_density and partial(log_density, t=t))
            distributions.append(
                IntermediateDistribution(
                    target, deviation, self.steps_per_temperature, adapt=self._adapt
                )
            )
        num_steps = self.steps_per_temperature + self.final_steps
        distributions[-1] = distributions[-1]._replace(num_steps=num_steps, adapt=None)
        return distributions

    def _adapt(self, scale: Tensor, probability: Tensor) -> Tensor:
        """Return the next step size in standard deviations of the noise, at most ``step_size``."""
        return adapt(scale, probability, ACCEPTANCE_TARGET).clamp(max=self.step_size)

    def _times(self, model: ScoreModel, num_dims: int) -> Tensor:
        path, end = model.path, end_time(model, START, self.end_variance)
        num = self.num_temperatures
        if num is None:
            first, last = path.arc_length(torch.tensor([START, end], dtype=torch.float64))
            num = math.ceil(1.3 * math.sqrt(num_dims) * (last - first).item())
        schedule = SCHEDULES[choose("schedule", self.schedule, SCHEDULES)]
        return schedule.times(path, START, end, num)[1:]

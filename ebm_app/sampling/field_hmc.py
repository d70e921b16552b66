r"""Annealed HMC driven, and accepted, by the Stein score alone.

A leapfrog trajectory of step h with a field f does the work W = sum (f_k + f_{k+1}) / 2 .
(x_{k+1} - x_k), the trapezoidal rule for the change of log p along it. With W for that change, the
energy error of a trajectory telescopes to the fields at its ends,

    H_end - H_start = h^2 / 8 (|f_end|^2 - |f_start|^2),

so that the accept step needs neither a density nor a further evaluation. Where f is the gradient
of log p the transition leaves p invariant up to the error of that rule, which is of second order
in h; without the accept step it is of second order too, but unlikely points are never refused.

Source: Sjoberg et al. 2023, arXiv:2307.14012, for accept steps from a score alone.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from ebm_app.io.errors import UserError
from ebm_app.io.fields import Count, Fraction, Positive, PositiveInt, Steps
from ebm_app.io.registry import choose
from ebm_app.models.energy import TimeScoreEnergy
from ebm_app.numerics.tensors import sum_except_batch
from ebm_app.sampling import hmc
from ebm_app.sampling.base import Frame, Sampler, check_counts, denoised, end_time
from ebm_app.sampling.schedules import temperatures

#: name -> log acceptance probability (B,) from the step h and the fields (B, *) at both ends
Test = Callable[[float, Tensor, Tensor], Tensor]


def work_test(h: float, start: Tensor, end: Tensor) -> Tensor:
    """-h^2 / 8 (|f_end|^2 - |f_start|^2), at most 0; minus infinity where it is not finite."""
    first = sum_except_batch(start.double().square())
    last = sum_except_batch(end.double().square())
    change = h**2 / 8 * (first - last)
    return torch.where(change.isfinite(), change.clamp(max=0), -math.inf)


def no_test(h: float, start: Tensor, end: Tensor) -> Tensor:
    """0: every proposal is taken."""
    return torch.zeros(len(start), dtype=torch.float64, device=start.device)


ACCEPTANCES: dict[str, Test] = {"work": work_test, "none": no_test}


@torch.no_grad()
def transition(
    phase: hmc.Phase,
    field: hmc.Field,
    h: float,
    num_leapfrog_steps: int,
    test: Test,
    generator: torch.Generator,
) -> tuple[hmc.Phase, Tensor]:
    """One trajectory with a fresh momentum, and the acceptance probabilities (B,).

    Args:
        phase: chains; position and field (B, *) are read.
    """
    momentum = torch.empty_like(phase.position).normal_(generator=generator)
    start = phase._replace(momentum=momentum)
    end = hmc.leapfrog(start, field, h, num_leapfrog_steps)
    probability = test(h, start.gradient, end.gradient).exp()
    is_accepted = torch.empty_like(probability).uniform_(generator=generator) < probability
    return hmc.chosen(is_accepted, end, start), probability


@dataclass(frozen=True)
class AnnealedHMCSampler(Sampler):
    """HMC through the model's p_t by its Stein score, then one denoising step.

    Neighbouring p_t overlap where their number grows with the square root of the dimension D times
    the length of the clock. The step is a share of the noise's deviation at every temperature; it
    follows the acceptance until the last temperature, where it is frozen.

    Args:
        num_steps: temperatures; None for 1.3 sqrt(D) times the length of the clock.
        schedule: their spacing, a key of ``SCHEDULES``.
        steps_per_temperature, num_leapfrog_steps: transitions at a temperature, leapfrog steps of
            each. final_steps: further transitions at the last temperature.
        step_size: first leapfrog step, and the largest, in standard deviations of the noise.
        acceptance: "work" or "none", see the module.
        target_acceptance: the mean acceptance that the step is adapted to.
        score: "head", "integral" or None, as for ``TimeScoreEnergy.stein_score``.
        start: time of the first temperature; it starts from N(0, I).
        end_variance: conditional variance at the last temperature, from where the image is
            denoised.
    """

    note: ClassVar[str] = (
        "annealed Hamiltonian Monte Carlo from noise through the model's p_t, driven and accepted "
        "by the Stein score, then one denoising step"
    )
    steps: ClassVar[str] = "temperatures"

    num_steps: Steps | None = None
    schedule: str = "clock"
    steps_per_temperature: PositiveInt = 1
    num_leapfrog_steps: PositiveInt = 4
    final_steps: Count = 5
    step_size: Positive = 0.5
    acceptance: str = "work"
    target_acceptance: Fraction = 0.75
    score: str | None = None
    start: Fraction = 1e-3
    end_variance: Positive = 1e-3

    def iterate(
        self, energy: TimeScoreEnergy, x0: Tensor, generator: torch.Generator
    ) -> Iterator[Frame]:
        times, test = self._times(energy, x0[0].numel()), self._test()
        score, path = energy.stein_score(self.score), energy.path
        deviations = path.variance(times).sqrt().tolist()
        phase, nfe, share = hmc.Phase(x0, x0, x0), 0, self.step_size
        for index, (t, deviation) in enumerate(zip(times.tolist(), deviations, strict=True), 1):
            is_last, field = index == len(times), partial(score, t=t)
            with torch.no_grad():
                phase = phase._replace(gradient=field(phase.position))
            count = self.steps_per_temperature + (self.final_steps if is_last else 0)
            accepted = 0.0
            for _ in range(count):
                phase, probability = transition(
                    phase, field, share * deviation, self.num_leapfrog_steps, test, generator
                )
                accepted += probability.mean().item() / count
                if not is_last:
                    excess = probability.mean().item() - self.target_acceptance
                    share = min(self.step_size, share * 1.1 ** (excess / self.target_acceptance))
            nfe += 1 + count * self.num_leapfrog_steps
            x = phase.position
            if is_last:
                x = denoised(energy, x, phase.gradient, t)
            yield Frame(x, index, len(times), nfe, accepted)

    def count_steps(self, energy: TimeScoreEnergy, num_dims: int) -> int:
        return len(self._times(energy, num_dims))

    def _test(self) -> Test:
        if not (0 < self.target_acceptance < 1 and self.step_size > 0):
            raise UserError(
                f"step_size {self.step_size} and target_acceptance {self.target_acceptance} make "
                "no step: give one above 0, and one between 0 and 1"
            )
        return ACCEPTANCES[choose("acceptance", self.acceptance, ACCEPTANCES)]

    def _times(self, energy: TimeScoreEnergy, num_dims: int) -> Tensor:
        check_counts(
            1,
            steps_per_temperature=self.steps_per_temperature,
            num_leapfrog_steps=self.num_leapfrog_steps,
        )
        check_counts(0, final_steps=self.final_steps)
        start = max(self.start, energy.start)
        end = end_time(energy, start, self.end_variance)
        num = self.num_steps
        if num is None:
            first, last = energy.path.clock(torch.tensor([start, end], dtype=torch.float64))
            num = math.ceil(1.3 * math.sqrt(num_dims) * (last - first).item())
        check_counts(1, num_steps=num)
        return temperatures(self.schedule, energy.path, start, end, num)[1:]

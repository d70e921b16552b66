"""log p_t(x) as the density of the model's own probability-flow ODE."""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Le
from torch import Tensor

from ebm_app.io.errors import UserError
from ebm_app.io.fields import Fraction, NonNegative, Refinements, Seed, Steps, Tolerance, Unread
from ebm_app.likelihood.estimator import CountedScore, Estimator, LogDensity
from ebm_app.likelihood.refinement import refine
from ebm_app.models.energy import TimeScoreEnergy
from ebm_app.numerics.tensors import sum_except_batch
from ebm_app.paths.clocks import ARC_LENGTH
from ebm_app.paths.divergence import ExactDivergence, Hutchinson, rademacher_probes
from ebm_app.paths.midpoint import ImplicitMidpoint
from ebm_app.paths.probability_flow import UNREAD, ClockField, solve_pf_ode

#: probes of a divergence, of which 0 take it exactly
NumProbes = Annotated[int, Ge(0), Le(1000)]


@dataclass(frozen=True)
class PFODEDensity(Estimator):
    """The density of the model's own probability-flow ODE, by the change of variables: log N(x_0;
    0, I) - integral of div u, from x back to x_0.

    Args:
        solver, num_steps, tolerance: as for ``ebm_app.sampling.samplers.PFODESampler``, of the
            first solve. refinement_tolerance, max_refinements: it is repeated in half the step,
            or a tenth of the tolerance, until an image settles (see ``refine``).
        num_probes: Rademacher probes of the divergence, frozen for all solves; 0 takes it exactly,
            by D backward passes at every evaluation.
        score: "head", "integral" or None, as for ``TimeScoreEnergy.stein_score``.
        start: time at which N(0, I) is taken for p_t; its alpha must exceed 0.
        seed: of the probes; those of an example do not depend on its batch.

    ``error`` holds the standard error over the probes and the error of the solver; it is unknown
    (NaN) for a single probe or a single solve.
    """

    solver: str = "rk4"
    num_steps: Steps = 20
    tolerance: Tolerance = 1e-5
    refinement_tolerance: NonNegative = 2e-3
    max_refinements: Refinements = 3
    num_probes: NumProbes = 2
    score: str | None = None
    start: Fraction = 1e-4
    seed: Seed = 0

    note: ClassVar[str] = (
        "the density of the model's own probability-flow ODE, normalised; its divergence is "
        "estimated with random probes"
    )
    unread: ClassVar[Unread] = UNREAD
    normalised: ClassVar[bool] = True

    def __call__(self, energy: TimeScoreEnergy, x: Tensor, t: float) -> LogDensity:
        if self.num_probes < 0:
            raise UserError(f"num_probes must not be negative: {self.num_probes}")
        energy.path.check_reference()

        def solve(points: Tensor, level: int) -> tuple[Tensor, int]:
            divergence = ExactDivergence()
            if self.num_probes:
                divergence = Hutchinson(rademacher_probes(self.num_probes, points, self.seed))
            score = CountedScore(energy, self.score)
            *_, end = solve_pf_ode(
                ClockField(score, energy.path),
                points,
                t,
                self.start,
                self.solver,
                self.num_steps * 2**level,
                self.tolerance / 10**level,
                divergence,
            )
            reference = sum_except_batch(energy.path.reference_log_density(end.x))
            return reference + end.sums, score.nfe

        found = refine(solve, x, self.refinement_tolerance, self.max_refinements)
        error = found.error
        if self.num_probes:
            spread = torch.full_like(error, math.nan)
            if self.num_probes > 1:
                spread = found.value.std(0, unbiased=True) / math.sqrt(self.num_probes)
            error = torch.hypot(error, spread)
        return LogDensity(found.value.mean(0), error, None, found.nfe)


@dataclass(frozen=True)
class MidpointDensity(Estimator):
    """The density of the steps of ``ebm_app.paths.midpoint.ImplicitMidpoint``:
    normalised without an error of discretisation, by D backward passes a step. Arguments as for
    ``PFODEDensity``."""

    num_steps: Steps = 40
    score: str | None = None
    start: Fraction = 1e-4

    note: ClassVar[str] = (
        "the density of implicit-midpoint steps of the probability-flow ODE, exactly normalised, "
        "by a backward pass for each component and step"
    )
    normalised: ClassVar[bool] = True
    slow: ClassVar[bool] = True

    def __call__(self, energy: TimeScoreEnergy, x: Tensor, t: float) -> LogDensity:
        if self.num_steps < 1:
            raise UserError(f"pf_ode_exact needs at least 1 step, not {self.num_steps}")
        score = CountedScore(energy, self.score)
        times = ARC_LENGTH.grid(energy.path, self.start, t, self.num_steps + 1)
        energy.path.check_reference()
        value = ImplicitMidpoint(ClockField(score, energy.path), times.tolist()).log_density(x)
        return LogDensity(value, torch.zeros_like(value), None, score.nfe)

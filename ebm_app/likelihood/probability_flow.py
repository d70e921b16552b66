"""log p_t(x) as the density of the probability-flow ODE of a model."""

import torch
from torch import Tensor

from ebm_app.likelihood.estimator import Estimator, error_over_draws
from ebm_app.nets.model import LogDensityEstimate, ScoreModel
from ebm_app.paths import LogSNRPath, require_one_sided
from ebm_app.paths.base import ARC_LENGTH, LOG_SNR
from ebm_app.sampling.ode import (
    ADAPTIVE,
    Method,
    ProbabilityFlow,
    SolverSettings,
    probes_for,
    solve_flow,
)
from ebm_app.utils.fields import (
    Fraction,
    Positive,
    Probes,
    Refinements,
    Steps,
    configuration,
)
from ebm_app.utils.random import ImageNoise
from ebm_app.utils.tensors import sum_except_batch

#: Error of a solve, in nats per dimension, below which it is not refined.
TOLERANCE = 2e-3


@configuration
class ProbabilityFlowDensity(Estimator):
    """Density of the probability-flow ODE of a model, by the change of variables: log N(x_0; 0, I)
    - integral of div u, from x back to x_0.

    >>> from ebm_app import EBM
    >>> from ebm_app.utils.random import LIKELIHOODS
    >>> model, x = EBM.from_pretrained("digits").model, torch.zeros(2, 1, 8, 8)
    >>> estimator = ProbabilityFlowDensity(num_steps=4, max_refinements=0, num_probes=1)
    >>> noise = ImageNoise(0, range(2), LIKELIHOODS)
    >>> estimator(model, x, model.end, noise).nfe  # 5 evaluations, each with a backward pass
    10

    Args:
        num_steps: steps of the first solve.
        max_refinements: max number of halvings of the step until an image converges.
        num_probes: Rademacher probes of the divergence, frozen for all solves; 0 computes it
            exactly, with D backward passes per evaluation.
        start: time at which p_t is replaced by N(0, I); alpha must exceed 0 there.
        method: a key of ``SOLVERS``. "multistep" evaluates the score once a step and once more;
            "rk4" and "dopri5", of torchdiffeq, check it at more cost.
        rtol, atol: tolerances of "dopri5" in each step, see ``dopri5``. It does not use
            ``num_steps`` and ``max_refinements``.

    A point is solved with 1, 2, 4, ... times as many steps until the error of its mean over the
    probes is below ``TOLERANCE`` times D. The error of a solve is a third of the last change, an
    upper bound for methods of order 2 or more. ``error`` combines it with the standard error over
    the probes; it is NaN for a single probe or a single solve, as by "dopri5".
    """

    num_steps: Steps = 20
    max_refinements: Refinements = 3
    num_probes: Probes = 2
    start: Fraction = 1e-4
    method: Method = "multistep"
    rtol: Positive = 1e-4
    atol: Positive = 1e-4

    def __call__(
        self, model: ScoreModel, x: Tensor, t: float, noise: ImageNoise
    ) -> LogDensityEstimate:
        path, probes = require_one_sided(model.path), probes_for(self.num_probes, x, noise)
        # at t = 0 of a diffusion with discrete steps, alpha grows fast in arc length
        schedule = LOG_SNR if isinstance(path, LogSNRPath) else ARC_LENGTH

        def solve(rows: Tensor, level: int) -> tuple[Tensor, int]:
            """Solve with 2^level times as many steps. Return the log densities (K, b) and the
            network evaluations per point."""
            points, density, own = x[rows], model.at(rows), probes[:, rows]
            nfe = 0

            def score(x: Tensor, t: float) -> Tensor:
                nonlocal nfe
                nfe += density.score_cost(t) * (1 + len(own))  # a backward pass per probe
                return density.score(x, t)

            flow = ProbabilityFlow(score, path, schedule, points, (t, self.start), own)
            settings = SolverSettings(self.num_steps * 2**level, self.rtol, self.atol)
            *_, end = solve_flow(flow, self.method, settings)
            log_det = end.log_det if self.num_probes else end.log_det.sum(0, keepdim=True)
            return sum_except_batch(path.reference_log_density(end.x)) + log_det, nfe

        rows = torch.arange(len(x), device=x.device)
        values, cost = solve(rows, 0)
        total = cost * len(x)
        error = torch.full_like(values[0], torch.nan)
        refinements = 0 if self.method in ADAPTIVE else self.max_refinements
        for level in range(1, refinements + 1):
            finer, cost = solve(rows, level)
            total += cost * len(rows)
            error[rows] = (finer - values[:, rows]).mean(0).abs() / 3
            values[:, rows] = finer
            rows = rows[error[rows] > TOLERANCE * x[0].numel()]
            if not len(rows):
                break
        if self.num_probes:
            error = torch.hypot(error, error_over_draws(values))
        nfe = round(total / max(1, len(x)))
        return LogDensityEstimate(values.mean(0), error, None, nfe)

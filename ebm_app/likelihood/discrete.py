"""Variational bound of a diffusion model for the discrete steps of its scheduler."""

import math
from typing import ClassVar

import torch
from torch import Tensor

from ebm_app.likelihood.dequantisation import Cells, Decoder, Dequantiser
from ebm_app.likelihood.estimator import Estimator
from ebm_app.nets.protocols import LogDensityEstimate, NoiseModel, require
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import Seed, Steps, configuration
from ebm_app.utils.random import derive_seed, normal_draws
from ebm_app.utils.tensors import expand_like, mean_except_batch, sum_except_batch

#: Noise draws per generator.
BLOCK = 32


@configuration
class DiscreteBound(Estimator):
    r"""Lower bound on the log-likelihood of levels k by a diffusion with discrete steps,

        log P(k) >= E log P(k | z_0) - KL(q(z_T | x) || N(0, I))
                    - sum_t E KL(q(z_s | z_t, x) || p(z_s | z_t)),

    where x is the centre of the level's cell, s the step before t, and z_t = alpha_t x + sigma_t
    e. p(z_s | z_t) is normal with the mean of q(z_s | z_t, x(z_t)), where x(z_t) is the network's
    prediction of x. Its variance is that of q(z_t | z_s), 1/r = sigma_t^2 / sigma_s^2 times that
    of q(z_s | z_t, x). With the log signal-to-noise ratio l = log alpha^2 / sigma^2, the KL per
    dimension is

        KL = 1/2 (r - 1 - log r) + r/2 (exp(l_s - l_t) - 1) (e - e(z_t))^2.

    This "large" variance keeps the bound useful with few steps. The scheduler's variance_type is
    ignored.

    The bound holds for any network and any subsequence of the steps, without quadrature error.
    The decoder is that of ``ebm_app.likelihood.dequantisation.Decoder``. Only e is random, with
    one draw per term. The control variate of (e - e(z_t))^2 is the centred square of
    e - sigma_t z_t, which is exact for data N(0, I), times the mean square at the previous step,
    at most 1. That step uses an independent draw, so the control variate adds no bias.

    Args:
        num_steps: number of steps, evenly spaced over those of the scheduler; by default all,
            including that of the decoder. Fewer steps give more bits.
        seed: seed of e; the noise of an image does not depend on its batch.

    ``error`` is the standard error over e, from the differences of (e - e(z_t))^2 at neighbouring
    steps. Their means differ too, so it is an overestimate. It is NaN for a single step.

    Raises (when called):
        UserError: for a model other than a diffusers pipeline, and for more steps than it has.

    Source: Kingma et al. 2021, arXiv:2107.00630, eqs. 8 and 13.
    """

    num_steps: Steps | None = None
    seed: Seed = 0

    needs: ClassVar[type] = NoiseModel
    error_is_drawn: ClassVar[bool] = True

    @torch.no_grad()
    def log_prob_of_levels(
        self,
        model: NoiseModel,
        levels: Tensor,
        cells: Cells,
        dequantiser: Dequantiser,
        noise: Tensor,
    ) -> LogDensityEstimate:
        """Return the bound on log P(levels). The dequantiser is unused; ``noise`` only sets the
        dtype of the network's input."""
        model = require(model, NoiseModel, "estimator discrete")
        steps, path = self._steps(len(model.times) - 1), model.path
        times = model.times[steps]
        x = Decoder().training_points(levels, cells, noise)
        variance, alpha = path.variance(times).tolist(), path.alpha(times).tolist()
        rises = path.log_snr(times).diff().tolist()
        diffusion = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
        gains, squares = [], []
        share = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        for t, (rise, step) in enumerate(zip(rises, steps.tolist(), strict=False)):
            if t % BLOCK == 0:
                count = min(BLOCK, len(rises) - t)
                block = normal_draws(count, x, derive_seed(self.seed, t))
            a, v, e = alpha[t], variance[t], block[t % BLOCK]
            predicted = model.noise(a * x + math.sqrt(v) * e, step)
            square = (e - predicted).double().square()
            control = (a**2 * e - a * math.sqrt(v) * x).double().square()
            excess = control - a**4 - (a**2 * v) * x.double().square()
            ratio = variance[t + 1] / v
            gain = ratio * math.expm1(rise) / 2
            estimate = square - expand_like(share, square) * excess
            share = mean_except_batch(square).clamp(max=1)
            diffusion -= (ratio - 1 - math.log(ratio)) / 2 + gain * estimate
            gains.append(gain)
            squares.append(sum_except_batch(estimate))
        prior = variance[0] - 1 - math.log(variance[0]) + alpha[0] ** 2 * x.double().square()
        decoder = Decoder().log_prob(levels, cells, path, times[-1].item())
        components, error = diffusion - prior / 2 + decoder, _standard_error(gains, squares)
        return LogDensityEstimate(sum_except_batch(components), error, components, len(gains))

    def _steps(self, count: int) -> Tensor:
        """Return the indices (T + 1,) of the noise levels used, out of the ``count`` + 1 of a
        scheduler."""
        num_steps = self.num_steps or count
        if num_steps > count + 1:
            raise UserError(f"Expected num_steps of at most {count + 1}, got {num_steps}.")
        return torch.linspace(0, count, min(num_steps, count) + 1).round().long()


def _standard_error(gains: list[float], squares: list[Tensor]) -> Tensor:
    """Return the standard error (B,) of sum_t gain_t square_t, from differences of neighbours."""
    if len(gains) < 2:
        return torch.full_like(squares[0], math.nan)
    changes = torch.stack(squares[:1] + squares).diff(dim=0)
    spread = torch.tensor(gains).to(changes)[:, None] * changes
    return (spread.square().sum(0) / 2).sqrt()

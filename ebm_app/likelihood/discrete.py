"""The bound of a diffusion model in the steps of its own scheduler."""

import math
from collections.abc import Iterator
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ebm_app.likelihood.dequantisation import Decoder
from ebm_app.likelihood.estimator import Estimator
from ebm_app.nets.energy import LogDensity, TimeScoreEnergy
from ebm_app.paths.divergence import normal_draws
from ebm_app.spaces import Space
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import Seed, Steps, configuration
from ebm_app.utils.random import derive_seed
from ebm_app.utils.tensors import expand_like, mean_except_batch, sum_except_batch


@configuration
class DiscreteBound(Estimator):
    r"""The lower bound on the log-likelihood of levels k by a diffusion in discrete steps,

        log P(k) >= E log P(k | z_0) - KL(q(z_T | x) || N(0, I))
                    - sum_t E KL(q(z_s | z_t, x) || p(z_s | z_t)),

    x the centre of the level's cell, s the step before t, z_t = alpha_t x + sigma_t e. The parts
    are called decoder, prior and diffusion. p(z_s | z_t) is normal about the mean of
    q(z_s | z_t, x(z_t)), x(z_t) the network's guess of x, with a variance 1/r times that of q:
    r = 1 where it is "small", r = sigma_s^2 / sigma_t^2 where it is "large", that of
    q(z_t | z_s). With the log signal-to-noise ratio l = log alpha^2 / sigma^2, a component adds

        KL = 1/2 (r - 1 - log r) + r/2 (exp(l_s - l_t) - 1) (e - e(z_t))^2.

    "small" is the tighter where an image is certain given its noisy copy, "large" where the noise
    hides in the spread of grey levels; the scheduler's variance_type says what samples are drawn
    by. The bound holds for any network and any subsequence of the steps, and no quadrature errs.
    The decoder is that of ``ebm_app.likelihood.dequantisation.Decoder``; e alone is drawn, once
    for each term. From (e - e(z_t))^2 the square of e - sigma_t z_t, what is left for data
    N(0, I), is subtracted less its mean, times the mean square at the step before, at most 1: of
    another draw, so that no bias enters.

    Args:
        num_steps: terms of the sum, evenly spread over the scheduler's steps; all if not given.
            Fewer give more bits.
        variance: "small" or "large"; as the scheduler has it if not given.
        seed: of e; that of an image does not depend on its batch.

    ``error`` is the standard error over e, from the differences of (e - e(z_t))^2 at neighbouring
    steps. As these also differ in their means, it errs on the large side;
    it is unknown (NaN) for a single step.

    Raises:
        UserError: when it is used, for a model of other than a diffusers pipeline, and for more
            steps than it has.

    Source: Kingma et al. 2021, arXiv:2107.00630, eqs. 8 and 13.
    """

    num_steps: Steps | None = None
    variance: Literal["small", "large"] | None = None
    seed: Seed = 0

    note: ClassVar[str] = (
        "a lower bound by the steps of a diffusers model's scheduler, on the levels themselves"
    )
    normalised: ClassVar[bool] = True
    error_is_drawn: ClassVar[bool] = True
    parts: ClassVar[tuple[str, ...]] = ("prior", "diffusion", "decoder")

    @classmethod
    def suits(cls, energy: TimeScoreEnergy) -> bool:
        return hasattr(energy.model, "times")

    def __call__(self, energy: TimeScoreEnergy, x: Tensor, t: float) -> LogDensity:
        raise UserError("the discrete bound is one of levels: ask EBM.likelihood for it")

    @torch.no_grad()
    def of_levels(
        self, energy: TimeScoreEnergy, space: Space, levels: Tensor, num_levels: int
    ) -> tuple[LogDensity, dict[str, Tensor]]:
        """The bound on log P(k) for levels (B, *), and its parts (B, *) by name, which sum to
        it."""
        times, path, score = self._times(energy), energy.path, energy.stein_score()
        dtype = next(energy.model.parameters()).dtype
        x = Decoder().training_points(levels, num_levels, space, torch.empty(0, dtype=dtype))
        is_large = (self.variance or energy.model.variance) == "large"
        alpha, variance = path.alpha(times).tolist(), path.variance(times).tolist()
        rises = path.log_snr(times).diff().tolist()
        diffusion = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
        gains, squares = [], []
        share = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        for t, (rise, e) in enumerate(zip(rises, self._draws(len(rises), x), strict=True)):
            a, v = alpha[t], variance[t]
            found = score(a * x + math.sqrt(v) * e, times[t].item())
            square = (e + math.sqrt(v) * found).double().square()
            known = (a**2 * e - a * math.sqrt(v) * x).double().square()
            excess = known - a**4 - (a**2 * v) * x.double().square()
            ratio = variance[t + 1] / v if is_large else 1.0
            fixed = (ratio - 1 - math.log(ratio)) / 2
            gain = ratio * math.expm1(rise) / 2
            estimate = square - expand_like(share, square) * excess
            share = mean_except_batch(square).clamp(max=1)
            diffusion -= fixed + gain * estimate
            gains.append(gain)
            squares.append(sum_except_batch(estimate))
        changes = torch.stack(squares[:1] + squares).diff(dim=0)
        spread = (torch.tensor(gains).to(changes)[:, None] * changes).square().sum(0) / 2
        prior = variance[0] - 1 - math.log(variance[0]) + alpha[0] ** 2 * x.double().square()
        decoder = Decoder().log_prob(levels, num_levels, space, path, times[-1].item())
        parts = dict(zip(self.parts, (-prior / 2, diffusion, decoder), strict=True))
        components = sum(parts.values())
        error = spread.sqrt() if len(gains) > 1 else torch.full_like(spread, math.nan)
        return LogDensity(sum_except_batch(components), error, components, len(gains)), parts

    def _draws(self, num: int, x: Tensor) -> Iterator[Tensor]:
        """So many draws (B, *), some of them made together."""
        for block in range(0, num, 32):
            yield from normal_draws(min(32, num - block), x, derive_seed(self.seed, block))

    def _times(self, energy: TimeScoreEnergy) -> Tensor:
        """The times of the steps, from noise to data: (T + 1,) float64."""
        if not self.suits(energy):
            raise UserError(
                "the discrete bound needs the steps of a diffusers scheduler, which this model "
                "has not: take another estimator, such as elbo"
            )
        times = energy.model.times
        count = len(times) - 1
        num_steps = self.num_steps or count
        if num_steps > count:
            raise UserError(f"the model has {count} steps: lower num_steps {num_steps}")
        return times[torch.linspace(0, count, num_steps + 1).round().long()]

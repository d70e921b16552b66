r"""The paper's estimator of a log density ratio, from two samples.

A Schrodinger bridge connects independent rows x_0 and x_1, and a network learns the time score of
its marginals p_t by CTSM-v or CTSM. The log ratio is the integral

    log p_1(x) / p_0(x) = integral of d/dt log p_t(x) dt over [0, 1],   in nats.

The network learns the difference from the time score of a bridge between two Gaussians, which are
fitted to the samples. In coordinates in which both covariances are diagonal and average to I
(``GaussianRatio``), that time score is

    (u'/2u) (z^2 - 1) + mu' z / sqrt(u),   z = (x - mu) / sqrt(u),

summed over the axes, with mu_t = (1 - t) m_0 + t m_1 and u_t = (1 - t)^2 v_0 + t^2 v_1 +
sigma^2 t (1 - t). With sigma^2 = 2, u_t is 1 where v_0 = v_1 = 1.

Source: Yu, Klami, Hyvarinen, Korba, Chehab (ICML 2025), sections 3 and 4 (arXiv:2502.02300).
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn

from ebm_app.nets.networks import time_score_net
from ebm_app.objectives.regression import OBJECTIVES, inverse_variance
from ebm_app.objectives.time_sampling import ArcLength
from ebm_app.paths import SchrodingerBridgePath
from ebm_app.ratios.classifier import GaussianRatio
from ebm_app.ratios.cross_fit import Ratio, RatioEstimate, Samples
from ebm_app.ratios.methods import MLP, TimeScoreRatio
from ebm_app.ratios.two_samples import RatioFit
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import Steps, check_argument
from ebm_app.utils.fitting import fit, select_average
from ebm_app.utils.random import initial_weights
from ebm_app.utils.registry import choose

SIGMA = math.sqrt(2)
#: Margin of the times at both ends, where the conditional time score is singular
EPS = 1e-3
#: Width of the network, pairs of rows in a training step, and peak learning rate
WIDTH, BATCH_SIZE, LEARNING_RATE = 128, 1024, 5e-3
#: Decay of the moving average of the weights that is validated
DECAY = 0.998
#: Draws of the path at held-out rows per validation
NUM_VALIDATION = 4096
#: Steps between validations
CHECK_EVERY = 100


class CTSMRatio:
    """Log ratio of the densities of two samples, by CTSM-v or CTSM.

    Slower than ``log_density_ratio``, but usable when the samples hardly overlap.

    Args:
        objective: "ctsm_v" (a regression per dimension) or "ctsm" (a regression of the sum).
        num_folds: number of networks; each is trained without one fold of the rows.
        steps: training steps of each network.
        random_state: seed of folds, weights and batches.

    Attributes:
        estimate_: the ``RatioEstimate`` of ``fit``, with KL(p_1 || p_0), its interval, and the
            check that the mean of the ratio over p_0 is 1. None before ``fit``.

    >>> generator = torch.Generator().manual_seed(0)
    >>> x0, x1 = torch.randn(500, 1, generator=generator), torch.randn(500, 1, generator=generator)
    >>> ratio = CTSMRatio(steps=100).fit(x0, x1 + 1)  # log ratio x - 1/2
    >>> abs(ratio.log_ratio([[0.5]]).item()) < 0.3
    True
    """

    def __init__(
        self,
        objective: str = "ctsm_v",
        num_folds: int = 5,
        steps: int = 1_200,
        random_state: int = 0,
    ) -> None:
        self.objective = choose("objective", objective, ("ctsm_v", "ctsm"))
        self.steps = check_argument(Steps, "steps", steps)
        self.num_folds, self.random_state = num_folds, random_state
        self.estimate_: RatioEstimate | None = None

    def fit(self, x0: Any, x1: Any) -> Self:
        """Train on rows of p_0 (N0, D) and p_1 (N1, D). Raises as ``log_density_ratio``."""
        learn = partial(train, objective=self.objective, num_steps=self.steps)
        fit = RatioFit(x0, x1, learn, self.num_folds, self.random_state)
        self.estimate_ = fit.result()
        return self

    def log_ratio(self, x: Any) -> Tensor:
        """Return log p_1(x) / p_0(x) at rows (n, D): (n,) float64, in nats."""
        if self.estimate_ is None:
            raise UserError("This CTSMRatio is not fitted. Call fit(x0, x1) first.")
        return self.estimate_.log_ratio(x)


class BridgeTimeScore(nn.Module):
    """Time score of the bridge between two Gaussians plus a network, in the coordinates of
    ``GaussianRatio``: per dimension (B, D), or summed (B, 1)."""

    def __init__(self, base: GaussianRatio, num_outputs: int) -> None:
        super().__init__()
        means, variances = base.means.float(), base.variances.float()
        kept = torch.arange(means.shape[1]) < base.num_axes
        self.means = torch.where(kept, means, means.mean(0))
        self.variances = torch.where(kept, variances, variances.mean(0))
        self.scale, self.num_outputs = base.scale, num_outputs
        self.network = MLP(means.shape[1], num_outputs, WIDTH, nn.SiLU)
        last = self.network.layers[-1]
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def forward(self, u: Tensor, t: Tensor) -> Tensor:
        """Return the time score (B, D) or (B, 1) in nats per unit of t, at u (B, D), t (B,)."""
        (m0, m1), (v0, v1) = self.means, self.variances
        time = t[:, None]
        variance = (1 - time) ** 2 * v0 + time**2 * v1 + SIGMA**2 * time * (1 - time)
        rate = -2 * (1 - time) * v0 + 2 * time * v1 + SIGMA**2 * (1 - 2 * time)
        z = (u - m0 - time * (m1 - m0)) / variance.sqrt()
        terms = rate / (2 * variance) * (z.square() - 1) + (m1 - m0) * z / variance.sqrt()
        if self.num_outputs == 1:
            terms = terms.sum(1, keepdim=True)
        return self.scale * terms + self.network(u, t)


def train(
    samples: Samples,
    validation: Samples,
    generator: torch.Generator,
    objective: str,
    num_steps: int,
) -> tuple[Ratio, Ratio]:
    """Train the time score of a bridge from a sample of p_0 to one of p_1, each (N, D).

    Args:
        validation: samples that select the Gaussians and the training step.
        generator: source of the initial weights, pairs, times and noise.
        objective: key of ``OBJECTIVES``.
        num_steps: training steps.
    """
    base = GaussianRatio.select(samples, validation)
    u0, u1 = (base.coordinates(x).float() for x in samples)
    shift = base.means.diff(dim=0)
    path = SchrodingerBridgePath(SIGMA, c=2 + shift.square().mean().item())
    with initial_weights(int(torch.randint(2**31, (), generator=generator))):
        net = BridgeTimeScore(base, u0.shape[1] if objective == "ctsm_v" else 1)
    model = time_score_net(net, path, EPS, prediction="raw", time_input="time")
    ratio = TimeScoreRatio(model, OBJECTIVES[objective](inverse_variance, 0.0, EPS))
    sampler = ArcLength(path, EPS)

    def draws(rows: Sequence[Tensor], num: int) -> tuple[Any, ...]:
        x0, x1 = (x[torch.randint(len(x), (num,), generator=generator)] for x in rows)
        noise = torch.randn(x0.shape, generator=generator)
        return x0, x1, noise, sampler.sample(num, generator)

    held_out = draws([base.coordinates(x).float() for x in validation], NUM_VALIDATION)

    def loss_of_step(_: int) -> Tensor:
        return ratio.loss(*draws((u0, u1), BATCH_SIZE)).mean()

    def validate(ratio: TimeScoreRatio) -> float:
        return ratio.loss(*held_out).mean().item()

    steps = fit(ratio.parameters(), loss_of_step, num_steps, LEARNING_RATE)
    averages = select_average(ratio, steps, num_steps, validate, DECAY, CHECK_EVERY)
    selected, last = (
        lambda x, ratio=average: ratio.log_ratio(base.coordinates(x).float())
        for average in averages
    )
    return selected, last

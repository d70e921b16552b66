r"""The paper's estimator of a log density ratio, from two samples.

A Schrodinger bridge connects independent rows x_0 and x_1, and a network learns the time score of
its marginals p_t by CTSM-v. The log ratio is the integral

    log p_1(x) / p_0(x) = integral of d/dt log p_t(x) dt over [0, 1],   in nats.

The network learns the difference from the time score of a bridge between two Gaussians, which are
fitted to the samples. In coordinates in which both covariances are diagonal and average to I
(``GaussianRatio``), that time score is

    (u'/2u) (z^2 - 1) + mu' z / sqrt(u),   z = (x - mu) / sqrt(u),

summed over the axes, with mu_t = (1 - t) m_0 + t m_1 and u_t = (1 - t)^2 v_0 + t^2 v_1 +
sigma^2 t (1 - t).

Source: Yu, Klami, Hyvarinen, Korba, Chehab (ICML 2025), sections 3 and 4 (arXiv:2502.02300).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from ebm_app.nets.model import TimeScoreModel
from ebm_app.objectives.regression import CTSMv, inverse_variance
from ebm_app.objectives.time_sampling import ArcLength, TimeSample
from ebm_app.paths import SchrodingerBridgePath
from ebm_app.ratios.cross_fit import CrossFitRatio, LogRatio, Sample
from ebm_app.ratios.estimate import (
    HeldOut,
    RatioEstimate,
    bound_estimate,
    mean_estimate,
)
from ebm_app.ratios.gaussians import GaussianRatio, select_shrinkage
from ebm_app.ratios.methods import MLP, TimeScoreRatio
from ebm_app.ratios.rows import discrete_columns
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import Steps, check_argument
from ebm_app.utils.fitting import fit, select_average
from ebm_app.utils.quadrature import rule_on
from ebm_app.utils.random import initial_weights, make_generator

#: Noise of the bridge. A parabola with noise is learned faster with 1/2 than with 2 or 1/4
SIGMA = math.sqrt(0.5)
#: Margin of the times at both ends, where the conditional time score is singular
T_MARGIN = 1e-3
#: Width of the network, pairs of rows in a training step, and peak learning rate
WIDTH, BATCH_SIZE, LEARNING_RATE = 48, 4096, 1e-2
#: Decay of the moving average of the weights that is validated
DECAY = 0.99
#: Points of the path per validation, drawn from held-out rows
NUM_VALIDATION = 4096
#: Steps between validations
CHECK_EVERY = 100
#: Gauss-Legendre nodes of the integral of the network. On Gaussians and a parabola, 12, 24 and 48
#: nodes agree to 0.001 nats
NUM_NODES = 12


class CTSMRatio(CrossFitRatio):
    """Log ratio of the densities of two samples, by CTSM-v.

    For continuous columns whose densities hardly overlap. If they overlap, or if columns are
    discrete, ``ClassifierRatio`` is faster and learns more of what differs from Gaussians.

    Args:
        num_folds: K, at least 3; each of K networks is trained without one fold of the rows.
        steps: training steps of each network.
        random_state: seed of folds, weights and batches.

    Attributes:
        estimate_: ``RatioEstimate`` of KL(p_1 || p_0), after ``fit``. Its value is the mean log
            ratio where the densities are too far apart for a bound.

    >>> generator = torch.Generator().manual_seed(0)
    >>> x0, x1 = torch.randn(500, 1, generator=generator), torch.randn(500, 1, generator=generator)
    >>> ratio = CTSMRatio(steps=100).fit(x0, x1 + 1)  # log ratio x - 1/2
    >>> abs(ratio.log_ratio([[0.5]]).item()) < 0.3
    True
    """

    def __init__(self, num_folds: int = 5, steps: int = 400, random_state: int = 0) -> None:
        self.num_folds, self.steps, self.random_state = num_folds, steps, random_state

    def learn(self, p0: Sample, p1: Sample, seed: int) -> LogRatio:
        """Learn the time score of a bridge. The rows of the first fold select the shrinkage of
        the Gaussians and the training step."""
        num_steps = check_argument(Steps, "steps", self.steps)
        for what, p in (("p_0", p0), ("p_1", p1)):
            if columns := discrete_columns(p.rows):
                raise UserError(
                    f"Expected continuous columns for CTSMRatio, but a value is repeated in many "
                    f"rows of {what} in columns {columns}. Use ClassifierRatio for discrete "
                    "columns."
                )
        train, validation = (
            [torch.from_numpy(p.rows[(p.fold == 1) == is_held_out]) for p in (p0, p1)]
            for is_held_out in (False, True)
        )
        generator = make_generator("cpu", seed)
        return BridgeLogRatio(train_bridge(train, validation, generator, num_steps))

    def summarise(self, held_out: HeldOut) -> RatioEstimate:
        """Return the estimate by the bound, or by the mean log ratio where there is no bound."""
        estimate = bound_estimate(held_out)
        return mean_estimate(held_out) if estimate.are_far else estimate


class Bridge(nn.Module):
    """Time score of the bridge between two Gaussians, plus a network."""

    def __init__(self, base: GaussianRatio) -> None:
        super().__init__()
        self.base, self.means, self.variances = base, base.means.float(), base.variances.float()
        self.network = MLP(len(base.centre), len(base.centre), WIDTH, nn.SiLU)
        last = self.network.layers[-1]
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def forward(self, u: Tensor, t: Tensor) -> Tensor:
        """Return the terms of the time score (B, D), in nats per unit of t, at coordinates u
        (B, D) of ``base`` and times t (B,)."""
        (m0, m1), (v0, v1) = self.means, self.variances
        time = t[:, None]
        variance = (1 - time) ** 2 * v0 + time**2 * v1 + SIGMA**2 * time * (1 - time)
        rate = -2 * (1 - time) * v0 + 2 * time * v1 + SIGMA**2 * (1 - 2 * time)
        z = (u - m0 - time * (m1 - m0)) / variance.sqrt()
        terms = rate / (2 * variance) * (z.square() - 1) + (m1 - m0) * z / variance.sqrt()
        return terms + self.network(u, t)

    @torch.no_grad()
    def log_ratio(self, x: np.ndarray) -> np.ndarray:
        """Return the integral of the time score over t at rows x (n, D): (n,), in nats. The
        integral of the Gaussian part is in closed form."""
        rows = torch.from_numpy(x)
        value, u = self.base(rows), self.base.coordinates(rows).float()
        rule = rule_on(NUM_NODES, T_MARGIN, 1 - T_MARGIN)
        for t, weight in zip(rule.nodes, rule.weights, strict=True):
            value += weight * self.network(u, t.float().expand(len(u))).double().sum(1)
        return value.numpy()


@dataclass(frozen=True)
class BridgeLogRatio:
    """Log ratio of a trained bridge."""

    bridge: Bridge

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return the log ratio at rows x (n, D): (n,), in nats."""
        return self.bridge.log_ratio(x)


def train_bridge(
    train: Sequence[Tensor],
    validation: Sequence[Tensor],
    generator: torch.Generator,
    num_steps: int,
) -> Bridge:
    """Train the time score of a bridge from a sample of p_0 to one of p_1, each (N, D).

    Args:
        validation: samples that select the shrinkage of the Gaussians and the training step.
        generator: source of the initial weights, pairs, times and noise.
        num_steps: training steps.
    """
    everything = (torch.cat(rows) for rows in zip(train, validation, strict=True))
    base = GaussianRatio.fit(*everything, select_shrinkage(train, validation))
    with initial_weights(int(torch.randint(2**31, (), generator=generator))):
        bridge = Bridge(base)
    path = SchrodingerBridgePath(SIGMA, c=2 + base.means.diff(dim=0).square().mean().item())
    model = TimeScoreModel(bridge, path, T_MARGIN, prediction="raw", time_input="time")
    ratio = TimeScoreRatio(model, CTSMv(inverse_variance, 0.0, T_MARGIN))
    sampler = ArcLength(path, T_MARGIN)
    rows, held_out_rows = (
        [base.coordinates(x).float() for x in part] for part in (train, validation)
    )

    def draws(samples: Sequence[Tensor], num: int) -> tuple[Tensor, Tensor, Tensor, TimeSample]:
        x0, x1 = (x[torch.randint(len(x), (num,), generator=generator)] for x in samples)
        noise = torch.randn(x0.shape, generator=generator)
        return x0, x1, noise, sampler.sample(num, generator)

    held_out = draws(held_out_rows, NUM_VALIDATION)

    def loss_of_step(_: int) -> Tensor:
        return ratio.loss(*draws(rows, BATCH_SIZE)).mean()

    def validate(average: TimeScoreRatio) -> float:
        return average.loss(*held_out).mean().item()

    steps = fit(ratio.parameters(), loss_of_step, num_steps, LEARNING_RATE)
    best, _ = select_average(ratio, steps, num_steps, validate, DECAY, CHECK_EVERY)
    return best.model.net

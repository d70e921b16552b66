r"""Log-likelihood of quantised images and bits per dim, the only place where bits appear.

An image of levels k is dequantised to a point y of the path's space by a density q(y | k) on its
cells, and Jensen's inequality bounds its log probability by that of the continuous model,

    log P(k) >= E_{y ~ q}[log p_t(y) - log q(y | k)];

the expectation is averaged over K draws. Which q, and which t, is the dequantiser's matter; how
log p_t(y) is found is the estimator's. A uniform density gives log2(L) bits per dim.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ebm_app.likelihood import Estimator, RatioIntegral
from ebm_app.likelihood.dequantisation import Dequantised, Dequantiser, UniformDequantisation
from ebm_app.models.energy import TimeScoreEnergy
from ebm_app.numerics import sum_except_batch
from ebm_app.spaces import Space

UNIFORM, RATIO = UniformDequantisation(), RatioIntegral()


class Likelihood(NamedTuple):
    """Of B images: log probability in nats (B,), bits per dim (B,), the integration error in nats
    (B,), the parts of the log probability by component (B, C, H, W) or None, and the network
    evaluations for one image."""

    log_prob: Tensor
    bits_per_dim: Tensor
    error: Tensor
    components: Tensor | None
    nfe: int


def to_bits_per_dim(log_prob: Tensor, num_dims: int) -> Tensor:
    """-log P / (D log 2): nats (B,) -> bits per dim (B,)."""
    return -log_prob / (num_dims * math.log(2))


def log_likelihood(
    energy: TimeScoreEnergy,
    space: Space,
    levels: Tensor,
    num_levels: int,
    noise: Tensor,
    dequantiser: Dequantiser = UNIFORM,
    estimator: Estimator = RATIO,
) -> Likelihood:
    """The bound above for images.

    Args:
        levels: (B, C, H, W) integers in 0..num_levels - 1.
        noise: (K, B, C, H, W) uniform numbers, one set for every repeat.
        dequantiser: q; the one that the model was trained for is tight.
        estimator: of log p_t.
    """
    draws = [
        _one_draw(
            energy,
            dequantiser.points(levels, num_levels, space, u, energy.path, energy.end),
            estimator,
        )
        for u in noise
    ]
    log_prob = torch.stack([d.log_prob for d in draws]).mean(0)
    parts = [d.components for d in draws if d.components is not None]
    return Likelihood(
        log_prob,
        to_bits_per_dim(log_prob, levels[0].numel()),
        torch.stack([d.error for d in draws]).mean(0),
        torch.stack(parts).mean(0) if parts else None,
        sum(d.nfe for d in draws),
    )


def _one_draw(energy: TimeScoreEnergy, point: Dequantised, estimator: Estimator) -> Likelihood:
    density = estimator(energy, point.y, point.t)
    log_prob = density.value + sum_except_batch(point.negative_log_q)
    components = None
    if density.components is not None and density.components.shape == point.y.shape:
        components = density.components + point.negative_log_q
    return Likelihood(log_prob, log_prob, density.error, components, density.nfe)

r"""Log-likelihood of quantised images and bits per dim, the only place where bits appear.

An image k in {0..L-1}^D is dequantised to x = (k + u) / L, u uniform on [0, 1)^D. Jensen's
inequality bounds its log probability by that of the continuous model,

    log P(k) >= E_u[log p_X((k + u) / L)] - D log L,     log p_X(x) = log p_U(encode(x)) +
    log|det|,

and the expectation is averaged over K draws of u. Uniform p_X gives log2(L) bits per dim.
Source: Theis et al. 2016, arXiv:1511.01844, section 3.1.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ebm_app.data.levels import dequantise
from ebm_app.energy import QUADRATURE, TimeScoreEnergy
from ebm_app.numerics import sum_except_batch
from ebm_app.spaces import Space


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
    integrator: str = QUADRATURE,
) -> Likelihood:
    """The bound above for images, stopping at the energy's 1 - eps.

    Args:
        levels: (B, C, H, W) integers in 0..num_levels - 1.
        noise: (K, B, C, H, W) uniform numbers, one set for every repeat.
        integrator: as in :meth:`TimeScoreEnergy.log_ratio`.
    """
    num_dims = levels[0].numel()
    draws = [
        _one_draw(energy, space, dequantise(levels, num_levels, u), integrator) for u in noise
    ]
    log_prob = torch.stack([d.log_prob for d in draws]).mean(0) - num_dims * math.log(num_levels)
    parts = [d.components for d in draws if d.components is not None]
    components = torch.stack(parts).mean(0) - math.log(num_levels) if parts else None
    return Likelihood(
        log_prob,
        to_bits_per_dim(log_prob, num_dims),
        torch.stack([d.error for d in draws]).mean(0),
        components,
        sum(d.nfe for d in draws),
    )


def _one_draw(energy: TimeScoreEnergy, space: Space, x: Tensor, integrator: str) -> Likelihood:
    u = space.encode(x)
    ratio = energy.log_ratio(u, integrator=integrator)
    reference = energy.reference(u)
    determinant = space.log_abs_det(x)
    log_prob = ratio.value + sum_except_batch(reference) + determinant
    components = None
    if ratio.components is not None and ratio.components.shape == u.shape:
        share = (determinant / u[0].numel()).reshape(-1, *(1,) * (u.ndim - 1))
        components = ratio.components + reference + share
    return Likelihood(log_prob, log_prob, ratio.error, components, ratio.nfe)

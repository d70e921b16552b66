"""The KL divergence that Theorem 4 bounds, in closed form."""

import math

import numpy as np


def gaussian_kl(mean, std, num_steps):
    """KL of Theorem 4 for N(mean, std^2 I) and its exact score on the linear path, in numpy."""
    square, dim, t = float((mean**2).sum()), mean.size, np.arange(1, num_steps + 1) / num_steps
    u, u_dt = 1 + t**2 * (std**2 - 1), 2 * t * (std**2 - 1)
    spread = u_dt / (2 * u) * ((dim * std**2 + (1 - t) ** 2 * square) / u - dim)
    whole = (square + dim * std**2 - dim) / 2 - dim * math.log(std)
    return whole - (spread + (1 - t) * square / u).mean()

"""What the tests of tasks of known mutual information share."""

import numpy as np
from exact import generator

from ebm_app.ratios.mi_gaussians import CorrelatedNormal, DenseNormal

NUM = 20_000
PAIR = CorrelatedNormal((0.75,), 1, 1)


def draws(task, num=NUM, seed=0):
    x, y = task.sample(num, generator(seed))
    return x.numpy(), y.numpy()


def covariance_of(task):
    """The covariance or dispersion of (X, Y), written out entry by entry."""
    m, n = task.dim_x, task.dim_y
    if isinstance(task, DenseNormal):
        return (1 - task.rho) * np.eye(m + n) + task.rho
    sigma = np.eye(m + n)
    for i, rho in enumerate(task.correlations):
        sigma[i, m + i] = sigma[m + i, i] = rho
    return sigma

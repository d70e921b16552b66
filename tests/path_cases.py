"""Paths to test on, and helpers of the path tests: samples, derivatives, comparison."""

import math

import pytest
import torch
from exact import F64, SinePath, normal, uniform
from torch.distributions import Normal

from ebm_app.paths import LinearVPPath, OneSidedPath, SchrodingerBridgePath, VPPath
from ebm_app.utils.tensors import expand_like


class SineDiffusion(OneSidedPath):
    """A path from N(0, I) that is not variance preserving: its noise shrinks faster."""

    alpha = SinePath.alpha

    def variance(self, t):
        return torch.cos(math.pi * t / 2).pow(3) * (1 - t)


CASES = {
    "linear_vp": LinearVPPath(),
    "linear_vp c=0.3": LinearVPPath(c=0.3),
    "linear_vp c=5": LinearVPPath(c=5),
    "vp c=2.5": VPPath(c=2.5),
    "bridge sigma=0.5": SchrodingerBridgePath(0.5),
    "bridge c=0.3": SchrodingerBridgePath(c=0.3),
    "bridge sigma=sqrt2 c=7": SchrodingerBridgePath(math.sqrt(2), c=7),
    "user": SinePath(c=1.5),
    "user one-sided": SineDiffusion(c=0.6),
}
ONE_SIDED = {name: path for name, path in CASES.items() if isinstance(path, OneSidedPath)}
every_path = pytest.mark.parametrize("path", CASES.values(), ids=CASES)
every_one_sided_path = pytest.mark.parametrize("path", ONE_SIDED.values(), ids=ONE_SIDED)


def skewed(shape, seed):
    """Draw independent exponential values with second moment 1 and mean sqrt(1/2)."""
    return -(1 - uniform(shape, seed)).log() / math.sqrt(2)


def times(num=7):
    return torch.linspace(0.03, 0.97, num, dtype=F64)


def draw(path, shape, t, delta=skewed, seed=0):
    """Draw a sample whose delta has second moment c in every dimension."""
    x0, delta = normal(shape, seed), math.sqrt(path.c) * delta(shape, seed + 1)
    if isinstance(path, SchrodingerBridgePath):
        return path.sample(x0, x0 + delta, t, normal(shape, seed + 2))
    return path.sample(x0, delta, t, x0)


def log_normal(path, sample, t, x):
    """Return log N(x_i; mean_t(z), v_t) for every dimension."""
    spread = expand_like(path.variance(t).sqrt(), x)
    return Normal(path.mean(sample._replace(t=t)), spread).log_prob(x)


def derivative(function, t):
    """Return d function / dt at every element of ``t``, by reverse mode."""
    t = t.clone().requires_grad_()
    return torch.autograd.grad(function(t).sum(), t)[0]


def assert_close(actual, expected, tol=1e-10):
    torch.testing.assert_close(actual, expected, rtol=tol, atol=tol)

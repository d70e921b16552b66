r"""Models whose time score and Stein score are exact: references for the tests.

The marginal of every path here is a mixture of K Gaussians, isotropic and with shared weights,

    p_t(x) = sum_k w_k prod_i N(x_i; m_ki(t), u_k(t)),

whose log density is written down once and differentiated; with r_k(x, t) the posterior weight of
mode k, the components are E[d/dt log p_t(x_i | z) | x] = sum_k r_k d/dt log N(x_i; m_ki, u_k).
"""

import math

import torch
from torch import nn

from ebm_app.model import ModelOutput
from ebm_app.numerics import expand_like, sum_except_batch
from ebm_app.paths import PathSample

F64 = torch.float64


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(shape, seed=0):
    return torch.randn(shape, generator=generator(seed), dtype=F64)


class ExactModel(nn.Module):
    """Stands in for a TimeScoreModel of data sum_k w_k N(mean_k, std_k^2 I) on a one-sided path.

    Args:
        means: (K, *), or (K, 1) for the same value in every component. stds: (K,). weights: (K,).
        stein_channels: 0 leaves out the Stein score; another number says that there is a head.
    """

    def __init__(self, path, eps, means, stds, weights=(1.0,), stein_channels=0):
        super().__init__()
        self.path, self.interval, self.stein_channels = path, path.interval(eps), stein_channels
        self.means = torch.as_tensor(means, dtype=F64)
        self.stds = torch.as_tensor(stds, dtype=F64)
        self.log_weights = torch.as_tensor(weights, dtype=F64).log()

    def moments(self, mode, t):
        """Mean of p_t given the mode, (B, *) or ready to broadcast to it, and variance (B,)."""
        alpha, mean = self.path.alpha(t), self.means[mode]
        shift = alpha.reshape(-1, *(1,) * mean.ndim) * mean
        return shift, alpha.square() * self.stds[mode].square() + self.path.variance(t)

    def log_modes(self, x, t):
        """log N(x_i; m_ki, u_k): (K, B, *)."""
        logs = []
        for mode in range(len(self.log_weights)):
            mean, variance = self.moments(mode, t)
            mean = mean.reshape(mean.shape + (1,) * (x.ndim - mean.ndim))
            u = expand_like(variance, x)
            logs.append(-0.5 * ((x - mean).square() / u + torch.log(2 * math.pi * u)))
        return torch.stack(logs)

    def joint(self, modes):
        """log w_k + log p_t(x | k) from :meth:`log_modes`: (K, B)."""
        return self.log_weights[:, None] + modes.flatten(2).sum(2)

    def log_density(self, x, t):
        """log p_t(x) at a time t, a float or (B,): (B,)."""
        return torch.logsumexp(self.joint(self.log_modes(x, self.times(x, t))), 0)

    def forward(self, x, t):
        t = self.times(x, t)
        t = t.clone()  # an expanded time cannot carry a tangent
        modes, rates = torch.func.jvp(lambda s: self.log_modes(x, s), (t,), (torch.ones_like(t),))
        posterior = torch.softmax(self.joint(modes), 0)
        components = (expand_like_modes(posterior, rates) * rates).sum(0)
        return ModelOutput(components, self.exact_score(x, t) if self.stein_channels else None)

    def time_score(self, x, t):
        return sum_except_batch(self(x, t).components)

    def score(self, x, t):
        return self(x, t).score

    def exact_score(self, x, t):
        """grad_x log p_t(x) by automatic differentiation: (B, *)."""
        return torch.func.grad(lambda point: self.log_density(point, t).sum())(x)

    def data(self, shape, seed=0):
        """Draws from the data."""
        g = generator(seed)
        mode = torch.multinomial(self.log_weights.exp(), shape[0], True, generator=g)
        means = self.means.reshape(self.means.shape + (1,) * (len(shape) - self.means.ndim))
        noise = torch.randn(shape, generator=g, dtype=F64)
        return means[mode] + expand_like(self.stds[mode], noise) * noise

    def reference(self, shape, seed=1):
        """Draws from p_0, or from N(0, I) where that is taken for p_0."""
        return normal(shape, seed)

    def sample(self, t, shape, seed=0):
        """A draw from the path at times t (B,), of points of ``shape`` (B, *)."""
        return self.path.sample(self.reference(shape, seed + 1), self.data(shape, seed), t)

    @staticmethod
    def times(x, t):
        return t if isinstance(t, torch.Tensor) and t.ndim else torch.full((len(x),), t, dtype=F64)


class ExactBridge(ExactModel):
    """The same on a Schrodinger bridge from N(m0, s0^2 I) to N(m1, s1^2 I)."""

    def __init__(self, path, eps, start, end, stein_channels=0):
        (m0, s0), (m1, s1) = start, end
        super().__init__(path, eps, [[m1]], [s1], stein_channels=stein_channels)
        self.start, self.end = (m0, s0), (m1, s1)

    def moments(self, mode, t):
        (m0, s0), (m1, s1) = self.start, self.end
        between = ((1 - t) * s0).square() + (t * s1).square()
        return ((1 - t) * m0 + t * m1)[:, None], between + self.path.variance(t)

    def reference(self, shape, seed=1):
        mean, std = self.start
        return mean + std * normal(shape, seed)

    def sample(self, t, shape, seed=0) -> PathSample:
        x0, x1 = self.reference(shape, seed + 1), self.data(shape, seed)
        return self.path.sample(x0, x1, t, normal(shape, seed + 2))


def expand_like_modes(coefficient, x):
    """Reshape (K, B) to (K, B, 1, ..., 1) for x (K, B, *)."""
    return coefficient.reshape(coefficient.shape + (1,) * (x.ndim - 2))


def two_modes(path, eps, shape, stein_channels=0):
    """0.3 N(-1.2 e, 0.4^2 I) + 0.7 N(1.2 e, 0.4^2 I), e = (1, ..., 1) / sqrt(D)."""
    direction = torch.full(shape, 1.2 / math.sqrt(math.prod(shape)), dtype=F64)
    means = torch.stack([-direction, direction])
    return ExactModel(path, eps, means, (0.4, 0.4), (0.3, 0.7), stein_channels)


def z_score(values, expected=0.0):
    """(mean - expected) / standard error over the first dimension, largest of all the columns."""
    error = values.std(0, unbiased=True) / math.sqrt(len(values))
    return ((values.mean(0) - expected) / error).abs().max().item()

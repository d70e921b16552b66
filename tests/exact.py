r"""Models whose time score and Stein score are exact: references for the tests.

The marginal of every path here is a mixture of K Gaussians, isotropic and with shared weights,

    p_t(x) = sum_k w_k prod_i N(x_i; m_ki(t), u_k(t)),

and with r_k(x, t) the posterior weight of mode k, the components of the time score are
E[d/dt log p_t(x_i | z) | x] = sum_k r_k d/dt log N(x_i; m_ki, u_k), where

    d/dt log N(x; m, u) = (u'/2u) ((x - m)^2 / u - 1) + m' (x - m) / u,

and the Stein score is -sum_k r_k (x - m_k) / u_k.
"""

import math

import torch
from torch import nn

from ebm_app.nets.model import ModelOutput, TimeScoreModel
from ebm_app.paths import GaussianPath, OneSidedPath, PathSample
from ebm_app.sampling.hmc import Target
from ebm_app.utils.random import LIKELIHOODS, ImageNoise
from ebm_app.utils.tensors import expand_like, sum_except_batch

F64 = torch.float64


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(shape, seed=0):
    return torch.randn(shape, generator=generator(seed), dtype=F64)


def uniform(shape, seed=0):
    return torch.rand(shape, generator=generator(seed), dtype=F64)


class SinePath(GaussianPath):
    """A user-defined path with the four required methods only."""

    def alpha(self, t):
        return torch.sin(math.pi * t / 2)

    def variance(self, t):
        return torch.cos(math.pi * t / 2).square()

    def endpoints(self, sample):
        return torch.zeros_like(sample.x1), sample.x1

    def interval(self, t_margin):
        return 0.0, 1.0 - t_margin


class SineDiffusion(OneSidedPath):
    """A path from N(0, I) that is not variance preserving: its noise shrinks faster."""

    alpha = SinePath.alpha

    def variance(self, t):
        return torch.cos(math.pi * t / 2).pow(3) * (1 - t)


class ExactModel(nn.Module):
    """An exact ``TimeScoreModel`` of sum_k w_k N(mean_k, std_k^2 I) on a one-sided path.

    Args:
        means: (K, *), or (K, 1) for the same value in every dimension. stds: (K,). weights: (K,).
        stein_channels: 0 for a model without a Stein head.
    """

    def __init__(self, path, t_margin, means, stds, weights=(1.0,), stein_channels=0):
        super().__init__()
        self.path, self.stein_channels = path, stein_channels
        self.interval = path.interval(t_margin)
        self.means = torch.as_tensor(means, dtype=F64)
        self.stds = torch.as_tensor(stds, dtype=F64)
        self.log_weights = torch.as_tensor(weights, dtype=F64).log()

    def moments(self, t):
        """Return mean (K, B, *) and variance (K, B) of each mode of p_t, and their d/dt, for t
        (B,)."""
        alpha, alpha_dt = self.path.alpha(t), self.path.alpha_dt(t)
        squares = self.stds.square()[:, None]
        shape = (1, -1) + (1,) * (self.means.ndim - 1)
        return (
            alpha.reshape(shape) * self.means[:, None],
            alpha.square() * squares + self.path.variance(t),
            alpha_dt.reshape(shape) * self.means[:, None],
            2 * alpha * alpha_dt * squares + self.path.variance_dt(t),
        )

    @property
    def predicts_variance(self):
        return isinstance(self.path, OneSidedPath)

    def modes(self, x, t):
        """Return log p_t(x) + log r_k (K, B), and the components and Stein score of each mode."""
        times = torch.as_tensor(t, dtype=F64).reshape(-1)
        m, u, m_dt, u_dt = (like_modes(moment, x) for moment in self.moments(times))
        y = (x - m) / u
        logs = -0.5 * (y * (x - m) + torch.log(2 * math.pi * u))
        joint = self.log_weights[:, None] + logs.flatten(2).sum(2)
        return joint, u_dt / 2 * (y.square() - 1 / u) + m_dt * y, -y

    def log_density(self, x, t):
        """Return log p_t(x) at a time t, a float or (B,): (B,)."""
        return torch.logsumexp(self.modes(x, t)[0], 0)

    def forward(self, x, t):
        joint, components, score = self.modes(x, t)
        posterior = like_modes(torch.softmax(joint, 0), x)
        components, score = ((posterior * part).sum(0) for part in (components, score))
        if not self.stein_channels:
            return ModelOutput(components, None)
        variance = self.variance(x, t, score) if self.predicts_variance else None
        return ModelOutput(components, score, variance)

    def variance(self, x, t, score):
        """Return w of ``parametrisation``, from Var[eps | x] = 1 + v d^2 log p_t / dx_i^2."""
        joint, _, scores = self.modes(x, t)
        u = like_modes(self.moments(t)[1], x)
        posterior = like_modes(torch.softmax(joint, 0), x)
        curvature = (posterior * (scores.square() - 1 / u)).sum(0) - score.square()
        v, gain = self.path.variance(t), self.path.noise_variance_gain(t)
        return (1 + expand_like(v, x) * curvature) / expand_like(gain, x)

    def time_score(self, x, t):
        return sum_except_batch(self(x, t).components)

    def exact_score(self, x, t):
        """Return grad_x log p_t(x), with or without a head: (B, *)."""
        joint, _, score = self.modes(x, t)
        return (like_modes(torch.softmax(joint, 0), x) * score).sum(0)

    def data(self, shape, seed=0):
        """Draw from the data."""
        g = generator(seed)
        mode = torch.multinomial(self.log_weights.exp(), shape[0], True, generator=g)
        means = self.means.reshape(self.means.shape + (1,) * (len(shape) - self.means.ndim))
        noise = torch.randn(shape, generator=g, dtype=F64)
        return means[mode] + expand_like(self.stds[mode], noise) * noise

    def reference(self, shape, seed=1):
        """Draw from p_0, or from N(0, I) where it stands for p_0."""
        return normal(shape, seed)

    def sample(self, t, shape, seed=0):
        """Draw points of ``shape`` (B, *) from the path at times t (B,)."""
        return self.path.sample(self.reference(shape, seed + 1), self.data(shape, seed), t)


class Exact(TimeScoreModel):
    """Time score model whose output is that of an ``ExactModel``."""

    def __init__(self, model, num_nodes=32):
        super().__init__(nn.Identity(), model.path, 0.1, num_nodes=num_nodes)
        self.model, self.interval = model, model.interval
        self.start, self.end = model.interval

    has_score = property(lambda self: self.model.stein_channels > 0)
    has_variance = property(lambda self: self.has_score and self.model.predicts_variance)

    def forward(self, x, t, condition=None, labels=None):
        return self.model(x, t) if labels is None else self.model(x, t, labels=labels)


class ExactDensity(Exact):
    """The closed forms of an ``ExactModel``: its log density and its Stein score."""

    def log_density(self, x, t):
        return self.model.log_density(x, t)

    def score(self, x, t):
        return self.model.exact_score(x, t)

    def log_density_cost(self, t):
        return 1

    log_density_gradient = score
    gradient_cost = score_cost = log_density_cost


class ExactScore(Exact):
    """The same without a posterior variance."""

    has_variance = False


class ExactBridge(ExactModel):
    """The exact model of a Schrodinger bridge from N(m0, s0^2 I) to N(m1, s1^2 I)."""

    def __init__(self, path, t_margin, start, end, stein_channels=0):
        (m0, s0), (m1, s1) = start, end
        super().__init__(path, t_margin, [[m1]], [s1], stein_channels=stein_channels)
        self.start, self.end = (m0, s0), (m1, s1)

    def moments(self, t):
        (m0, s0), (m1, s1) = self.start, self.end
        moments = (
            (1 - t) * m0 + t * m1,
            ((1 - t) * s0).square() + (t * s1).square() + self.path.variance(t),
            torch.full_like(t, m1 - m0),
            2 * t * s1**2 - 2 * (1 - t) * s0**2 + self.path.variance_dt(t),
        )
        return tuple(moment[None] for moment in moments)

    def reference(self, shape, seed=1):
        mean, std = self.start
        return mean + std * normal(shape, seed)

    def sample(self, t, shape, seed=0) -> PathSample:
        x0, x1 = self.reference(shape, seed + 1), self.data(shape, seed)
        return self.path.sample(x0, x1, t, normal(shape, seed + 2))


def like_modes(moment, x):
    """Reshape (K, B, ...) to broadcast with (K, B, *) for x (B, *), in the dtype of x."""
    return moment.reshape(moment.shape + (1,) * (x.ndim + 1 - moment.ndim)).to(x.dtype)


def two_modes(path, t_margin, shape, stein_channels=0):
    """Return the model of 0.3 N(-1.2 e, 0.4^2 I) + 0.7 N(1.2 e, 0.4^2 I), e = (1, ..., 1) /
    sqrt(D)."""
    direction = torch.full(shape, 1.2 / math.sqrt(math.prod(shape)), dtype=F64)
    means = torch.stack([-direction, direction])
    return ExactModel(path, t_margin, means, (0.4, 0.4), (0.3, 0.7), stein_channels)


class PixelMixture:
    """Independent pixels x1 from an equal mixture of N(mean, std^2), seen as x = a x1 + s e."""

    def __init__(self, means, std):
        self.means, self.std = torch.tensor(means, dtype=F64), std

    def draw(self, shape, seed=0):
        modes = (normal(shape, seed + 50) > 0).long() % len(self.means)
        return self.means[modes] + self.std * normal(shape, seed)

    def log_density(self, x, a, s):
        """Return log p(x) (B,) for floats a and s."""
        variance = (a * self.std) ** 2 + s**2
        squares = torch.stack([(x - a * mean).square() for mean in self.means])
        log_p = (-squares / (2 * variance)).logsumexp(0) - math.log(len(self.means))
        return (log_p - math.log(2 * math.pi * variance) / 2).flatten(1).sum(1)

    def expectations(self, x, a, s):
        """Return E[e | x] and E[x1 | x] (B, C, H, W) for a and s (B,)."""
        a, s = (expand_like(value, x) for value in (a, s))
        means = self.means.reshape(-1, 1, 1, 1, 1)
        variance, gaps = (a * self.std) ** 2 + s**2, x - a * means
        weights = torch.softmax(-(gaps**2) / (2 * variance), 0)
        e = s * (weights * gaps / variance).sum(0)
        return e, (weights * (gaps * a * self.std**2 / variance + means)).sum(0)


def noise_of(x, seed=0):
    """Return the noise of points x (B, *) for an estimator."""
    return ImageNoise(seed, range(len(x)), LIKELIHOODS)


def points(model, shape, num=6):
    """Draw points (num, *): half from the data, half from N(0, I)."""
    return torch.cat([model.data((num // 2, *shape)), normal((num - num // 2, *shape), 1)])


def target_of(log_density):
    """Return an HMC target of a log density, with its gradient by autograd."""

    def gradient(position):
        with torch.enable_grad():
            x = position.detach().requires_grad_()
            return torch.autograd.grad(log_density(x).sum(), x)[0]

    return Target(gradient, log_density)


def z_score(values, expected=0.0):
    """Return the largest |mean - expected| of all columns, in standard errors over the first
    dimension."""
    error = values.std(0, unbiased=True) / math.sqrt(len(values))
    return ((values.mean(0) - expected) / error).abs().max().item()

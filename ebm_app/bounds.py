r"""The error bounds of the paper, term by term, on problems whose time score is known.

Let s(x, t) = d/dt log p_t(x), estimated by s_hat at t_i = i/K, i = 1, ..., K. With

    log p1_hat(x) = (1/K) sum_i s_hat(x, t_i) + log p_0(x),     KL = E_{p1}[log p1 - log p1_hat],

and |s(x, t) - s(x, t')| <= L(x) |t - t'|, Theorem 4 says

    KL^2 <= E_{p1}[(log p1 - log p1_hat)^2]
         <= E_{p1}[L^2] / (2 K^2) + 2 E_{p1, p_K(t)}[(s - s_hat)^2],     p_K uniform on the grid.

Its steps hold x by x, hence for averages over any draws of p1. The triangle inequality gives |KL|
<= E[L^2]^(1/2) / (2 K) + E[(s - s_hat)^2]^(1/2), never the weaker bound and one that is attained.
p1_hat is not normalised: this KL may be negative, and the divergence from p1_hat / Z is KL + log
Z. For that one the theorem is false: with p0 = p1 = N(0, 1) and s_hat = a (x^2 - 1) / 2 its square
should be at most a^2, but it is -a/2 - log(1 - a)/2, which grows without limit as a goes to 1.

Proposition 5 takes for s_hat the member of a family s_theta that minimises the loss of CTSM or
CTSM-v over N independent draws of (x, z, t). With s = s_theta*, the residuals w_i of the targets
(CTSM: the conditional time score; CTSM-v: each component of it) and gradients at theta*,

    G = 4 E[lambda^2 (sum_i w_i grad s_i) (sum_i w_i grad s_i)^T],
    H = 2 E[lambda sum_i grad s_i grad s_i^T],
    e = trace(H^-1 G H^-1 E_{p1, p_K}[grad s grad s^T]) = lim N E[(s_theta_hat - s)^2],
    E[KL^2] <= E[L^2] / (2 K^2) + 2 e / N + o(1/N).

In e, s is the sum of its components for CTSM-v too: their sum is what is integrated. The printed
formulas are read so: the square in CTSM-v's G is the outer product above; the second term of H,
E[lambda w_i grad^2 s_i], is zero, because w_i has mean zero given x and t; the remainder called
o(N) in the proof is o(1/N). The limit supposes that moments converge, which takes more than the
convergence in law of theta_hat: with few examples the loss may have no minimum at all.

Log densities are in nats, s in nats per unit of t. Tensors are float64.

Source: Yu, Klami, Hyvarinen, Korba, Chehab (ICML 2025), section 5 and appendix D
(arXiv:2502.02300).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import jacfwd, jvp, vmap

from ebm_app.errors import choose
from ebm_app.numerics import expand_like, standard_error
from ebm_app.paths import GaussianPath, OneSidedPath, PathSample
from ebm_app.quadrature import rule_on
from ebm_app.time_sampling import UniformTime
from ebm_app.weighting import Weighting

#: (x (B, D), t ()) -> a time score or an error of one (B,)
ScoreFunction = Callable[[Tensor, Tensor], Tensor]


def noise_variance(path: GaussianPath, t: Tensor) -> Tensor:
    """n_t, the variance of x_t given x1 for x0 ~ N(0, I): that of the path, and what its mean
    takes of x0. Like ``t``."""
    one, zero = torch.ones_like(t), torch.zeros_like(t)
    share_of_x0 = path.mean(PathSample(one, zero, t, zero, zero))
    return path.variance(t) + share_of_x0.square()


@dataclass(frozen=True)
class GaussianMixture:
    """Data p1 = sum_k w_k N(m_k, s_k^2 I) on a path from N(0, I): every marginal is known,

        p_t = sum_k w_k N(alpha_t m_k, (alpha_t^2 s_k^2 + n_t) I),

    and regular at both ends, where the path's conditional densities are not.

    Args:
        means: (K, D), float64. stds, weights: K numbers.
    """

    path: GaussianPath
    means: Tensor
    stds: Sequence[float]
    weights: Sequence[float] = (1.0,)

    def draw(self, num: int, generator: torch.Generator) -> Tensor:
        """Draws of p1: (num, D), on the device of the generator."""
        place = {"dtype": torch.float64, "device": generator.device}
        weights, stds = (torch.tensor(part, **place) for part in (self.weights, self.stds))
        mode = torch.multinomial(weights, num, replacement=True, generator=generator)
        noise = torch.randn((num, self.means.shape[1]), generator=generator, **place)
        return self.means.to(noise)[mode] + stds[mode, None] * noise

    def log_density(self, x: Tensor, t: Tensor) -> Tensor:
        """log p_t(x) at a time (): (B, D) -> (B,)."""
        alpha, noise = self.path.alpha(t), noise_variance(self.path, t)
        modes = []
        for mean, std, weight in zip(self.means.to(x), self.stds, self.weights, strict=True):
            u = (alpha * std).square() + noise
            square = (x - alpha * mean).square().sum(1)
            log_normal = -0.5 * (square / u + x.shape[1] * torch.log(2 * math.pi * u))
            modes.append(log_normal + math.log(weight))
        return torch.logsumexp(torch.stack(modes), 0)

    def time_score(self, x: Tensor, t: Tensor) -> Tensor:
        """s(x, t) = d/dt log p_t(x) at a time (): (B, D) -> (B,)."""
        return jvp(lambda time: self.log_density(x, time), (t,), (torch.ones_like(t),))[1]

    def time_score_dt(self, x: Tensor, t: Tensor) -> Tensor:
        """d/dt s(x, t): (B,)."""
        return jvp(lambda time: self.time_score(x, time), (t,), (torch.ones_like(t),))[1]

    def log_ratio(self, x: Tensor) -> Tensor:
        """log p1(x) - log p0(x), p0 being the path's own, not quite N(0, I) on VPPath: (B,)."""
        start, end = torch.tensor([0.0, 1.0]).to(x)
        return self.log_density(x, end) - self.log_density(x, start)


def at_times(function: ScoreFunction, x: Tensor, times: Tensor) -> Tensor:
    """function(x, t) (B,) at every one of ``times`` (T,): (T, B)."""
    return vmap(lambda t: function(x, t), chunk_size=max(1, 20_000 // len(x)))(times)


def lipschitz_constant(problem: GaussianMixture, x: Tensor, num_times: int = 129) -> Tensor:
    """L(x), the largest |ds/dt| over ``num_times`` times evenly spread over [0, 1]: (B,).

    From below, by a relative error that falls like the square of their distance.
    """
    times = torch.linspace(0, 1, num_times, dtype=x.dtype, device=x.device)
    return at_times(problem.time_score_dt, x, times).abs().amax(0)


def first_order(problem: GaussianMixture, x: Tensor) -> Tensor:
    """E[s(x, 0) - s(x, 1)] / 2 over draws x of p1, the limit of K KL for the exact score: ().

    E_{p1}[s(x, 1)] = 0, and where alpha_0 = n'_0 = 0 the other expectation is alpha'_0 |E x1|^2.
    """
    start, end = torch.tensor([0.0, 1.0]).to(x)
    return (problem.time_score(x, start) - problem.time_score(x, end)).mean() / 2


@dataclass(frozen=True)
class Ripple:
    """An error s_hat - s = size (1 + sin(x_1 + ... + x_D + 2 pi t)) of a time score.

    Over a grid of K > 2 steps its mean is ``size`` and its mean square 3/2 size^2, at every x.
    """

    size: float = 0.0

    def __call__(self, x: Tensor, t: Tensor) -> Tensor:
        return self.size * (1 + torch.sin(x.sum(1) + 2 * math.pi * t))


class KLBound(NamedTuple):
    """Theorem 4 at K steps, by averages over draws of p1, with standard errors.

    kl: E[log p1 - log p1_hat] (nats), of either sign. mean_square: E[(log p1 - log p1_hat)^2].
    discretisation, estimation: the two terms of the bound (nats^2).
    """

    num_steps: int
    kl: float
    mean_square: float
    discretisation: float
    estimation: float
    kl_stderr: float
    bound_stderr: float

    @property
    def bound(self) -> float:
        """The right-hand side, which bounds kl^2 (nats^2)."""
        return self.discretisation + self.estimation

    @property
    def triangle_bound(self) -> float:
        """The bound on kl^2 by the triangle inequality (nats^2)."""
        return (math.sqrt(self.discretisation / 2) + math.sqrt(self.estimation / 2)) ** 2

    @property
    def ratio(self) -> float:
        """sqrt(bound) / |kl|: how many times what it bounds the bound is, in nats."""
        return math.sqrt(self.bound) / abs(self.kl) if self.kl else math.inf


def kl_bound(
    problem: GaussianMixture,
    x: Tensor,
    lipschitz: Tensor,
    num_steps: int,
    error: ScoreFunction = Ripple(),
) -> KLBound:
    """Both sides of Theorem 4 from draws ``x`` (B, D) of p1 and their L(x) (B,).

    Args:
        error: (x, t ()) -> s_hat - s (B,), such as a :class:`Ripple`; none by default.
    """
    times = torch.arange(1, num_steps + 1).to(x) / num_steps
    difference = at_times(error, x, times)
    integral = (at_times(problem.time_score, x, times) + difference).mean(0)
    gap, square = problem.log_ratio(x) - integral, difference.square().mean(0)
    discretisation, estimation = lipschitz.square() / (2 * num_steps**2), 2 * square
    stderrs = (standard_error(part).item() for part in (gap, discretisation + estimation))
    means = (part.mean().item() for part in (gap, gap.square(), discretisation, estimation))
    return KLBound(num_steps, *means, *stderrs)


def normal_rule(mean: Tensor, std: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    """Points (Q, D) and weights (Q,) for N(mean, std^2 I): a product of Gauss-Hermite rules, exact
    for polynomials of degree 2 num_nodes - 1 in each component."""
    rule = np.polynomial.hermite_e.hermegauss(num_nodes)
    nodes, weights = (torch.from_numpy(part).to(mean) for part in rule)
    grids = (torch.cartesian_prod(*[part] * len(mean)) for part in (nodes, weights))
    points, weight = (grid.reshape(-1, len(mean)) for grid in grids)
    return mean + std * points, weight.prod(1) / weight.prod(1).sum()


@dataclass(frozen=True)
class GaussianFamily:
    """Time scores of data N(mu, s^2 I) on a path from N(0, I), theta = (mu_1, ..., mu_D, log s).

    Args:
        eps: the margin that training leaves where the path is degenerate.
    """

    path: OneSidedPath
    eps: float

    def mean_and_std(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """mu (D,) and s ()."""
        return theta[:-1], theta[-1].exp()

    def components(self, theta: Tensor, x: Tensor, t: Tensor) -> Tensor:
        """d/dt log p_t(x_i) of every component: x (B, D), t (B,) -> (B, D)."""
        path, (mean, std) = self.path, self.mean_and_std(theta)
        functions = (path.alpha, path.alpha_dt, path.variance, path.variance_dt)
        alpha, alpha_dt, v, v_dt = (expand_like(function(t), x) for function in functions)
        u, u_dt = (alpha * std).square() + v, 2 * alpha * alpha_dt * std.square() + v_dt
        y = (x - alpha * mean) / u
        return u_dt / 2 * (y.square() - 1 / u) + alpha_dt * mean * y

    def data(self, theta: Tensor) -> GaussianMixture:
        """N(mu, s^2 I) as a problem of Theorem 4."""
        mean, std = self.mean_and_std(theta)
        return GaussianMixture(self.path, mean[None], (std.item(),))

    def draw(self, theta: Tensor, num: int, generator: torch.Generator) -> PathSample:
        """Independent draws of the path, each at its own uniform time."""
        x1 = self.data(theta).draw(num, generator)
        x0 = torch.randn(x1.shape, generator=generator, dtype=x1.dtype, device=x1.device)
        return self.path.sample(x0, x1, UniformTime(self.path, self.eps).sample(num, generator).t)

    def draw_rule(self, theta: Tensor, num_times: int = 64) -> tuple[PathSample, Tensor]:
        """Nodes and weights (Q,) for the law of :meth:`draw`.

        Exact in x0 and x1 for polynomials of degree 9 (G has 8); Gauss-Legendre in t.
        """
        mean, std = self.mean_and_std(theta)
        noise, weight = normal_rule(torch.zeros_like(mean).repeat(2), torch.ones_like(std), 5)
        rule = rule_on(num_times, *self.path.interval(self.eps))
        times, shares = rule.nodes.to(theta), rule.weights.to(theta) / rule.weights.sum()
        x0, y = noise.repeat(num_times, 1).chunk(2, 1)
        sample = self.path.sample(x0, mean + std * y, times.repeat_interleave(len(noise)))
        return sample, torch.outer(shares, weight).flatten()


#: components (B, D) -> targets (B, m) of an objective
TARGETS: dict[str, Callable[[Tensor], Tensor]] = {
    "ctsm": lambda components: components.sum(1, keepdim=True),
    "ctsm_v": lambda components: components,
}


class Asymptotics(NamedTuple):
    """G and H of Proposition 5, and covariance = H^-1 G H^-1, that of sqrt(N) (theta_hat - theta*)
    as N grows: (P, P) each."""

    g: Tensor
    h: Tensor
    covariance: Tensor


class Regression:
    """The loss of CTSM or CTSM-v as a problem of least squares in theta.

    Args:
        objective: a key of TARGETS.

    Raises:
        UserError: for an unknown objective.
    """

    def __init__(self, objective: str, family: GaussianFamily, weighting: Weighting) -> None:
        self.targets = TARGETS[choose("objective", objective, TARGETS)]
        self.family, self.weighting = family, weighting

    def residuals(self, theta: Tensor, sample: PathSample) -> Tensor:
        """rho_i = sqrt(lambda) w_i for every target: (B, m).

        The loss of an example is the sum of their squares; CTSM-v's is D times that of
        :func:`ebm_app.objectives.ctsm_v`, which leaves theta_hat, and H^-1 G H^-1, as they are.
        """
        path = self.family.path
        components = self.family.components(theta, sample.xt, sample.t)
        w = self.targets(path.conditional_components(sample) - components)
        return expand_like(self.weighting(path, sample.t).sqrt(), w) * w

    def linearised(self, theta: Tensor, sample: PathSample) -> tuple[Tensor, Tensor]:
        """Residuals (B, m) and their gradients in theta (B, m, P)."""

        def residuals_twice(theta: Tensor) -> tuple[Tensor, Tensor]:
            residuals = self.residuals(theta, sample)
            return residuals, residuals

        jacobian, residuals = jacfwd(residuals_twice, has_aux=True)(theta)
        return residuals, jacobian

    def asymptotics(self, theta: Tensor, sample: PathSample, weight: Tensor) -> Asymptotics:
        """The matrices at theta* (P,) from draws or nodes of the path with weights (Q,).

        With grad rho_i = -sqrt(lambda) grad s_i, G = 4 E[(sum_i rho_i grad rho_i) (...)^T] and H =
        2 E[sum_i grad rho_i grad rho_i^T].
        """
        residuals, jacobian = self.linearised(theta, sample)
        half_gradient = torch.einsum("qm,qmp->qp", residuals, jacobian)
        g = 4 * torch.einsum("q,qp,qr->pr", weight, half_gradient, half_gradient)
        h = 2 * torch.einsum("q,qmp,qmr->pr", weight, jacobian, jacobian)
        return Asymptotics(g, h, torch.linalg.solve(h, torch.linalg.solve(h, g).T))


class Fits(NamedTuple):
    """theta_hat (R, P) of R data sets, and whether the search for it has converged (R,)."""

    theta: Tensor
    converged: Tensor


def fit(regression: Regression, theta: Tensor, samples: PathSample, max_steps: int = 100) -> Fits:
    """Minimise the loss of R data sets (R, N, *) by Gauss-Newton steps from ``theta`` (P,).

    A step is halved until it does not raise the loss. The residuals' mean is zero given x and t,
    so that the neglected part of the Hessian is small: a step divides the error by about sqrt(N).
    """

    def loss_and_step(theta: Tensor, *sample: Tensor) -> tuple[Tensor, Tensor]:
        residuals, jacobian = regression.linearised(theta, PathSample(*sample))
        residuals, jacobian = residuals.flatten(), jacobian.flatten(0, 1)
        matrix = jacobian.T @ jacobian
        # regular even where theta has run away
        matrix = matrix + 1e-12 * matrix.trace() * torch.eye(len(theta)).to(theta)
        return residuals.square().sum(), torch.linalg.solve(matrix, -jacobian.T @ residuals)

    best = theta.repeat(len(samples.t), 1)
    loss, step = vmap(loss_and_step)(best, *samples)
    share, converged = torch.ones_like(loss), step.abs().amax(1) < 1e-6
    for _ in range(max_steps):
        (todo,) = torch.nonzero(~converged, as_tuple=True)
        if len(todo) == 0:
            break
        point = best[todo] + share[todo, None] * step[todo]
        new_loss, new_step = vmap(loss_and_step)(point, *(part[todo] for part in samples))
        is_lower = new_loss <= loss[todo] * (1 + 1e-13)  # rounding, near the end
        share[todo] = torch.where(is_lower, 1.0, share[todo] / 2)
        done = todo[is_lower]
        for old, new in ((best, point), (step, new_step), (loss, new_loss)):
            old[done] = new[is_lower]
        converged = step.abs().amax(1) < 1e-6
    return Fits(best, converged)


class ScoreErrors:
    """What an error in theta* (P,) does to the time score and to KL on the grid of K times.

    Expectations over p1 and p_K are exact: x has Gauss-Hermite nodes for the squares of scores.
    """

    def __init__(self, family: GaussianFamily, theta: Tensor, num_steps: int) -> None:
        self.family, self.theta = family, theta
        x, weight = normal_rule(*family.mean_and_std(theta), num_nodes=3)
        times = torch.arange(1, num_steps + 1).to(theta) / num_steps
        self.x, self.t = x.repeat(num_steps, 1), times.repeat_interleave(len(x))
        self.weight = weight.repeat(num_steps) / num_steps
        self.truth = self._time_score(theta)
        #: KL of Theorem 4 for the exact score (nats)
        self.exact_kl = weight @ family.data(theta).log_ratio(x) - self.weight @ self.truth

    def _time_score(self, theta: Tensor) -> Tensor:
        return self.family.components(theta, self.x, self.t).sum(1)

    def expected_square(self, covariance: Tensor) -> Tensor:
        """e = trace(covariance E[grad s grad s^T]), N times the mean square error: ()."""
        gradient = jacfwd(self._time_score)(self.theta)
        return torch.einsum("q,qp,pr,qr->", self.weight, gradient, covariance, gradient)

    def measured(self, thetas: Tensor) -> tuple[Tensor, Tensor]:
        """Of every theta_hat of (R, P): E[(s_theta_hat - s)^2] and KL, (R,) each."""
        difference = vmap(self._time_score)(thetas) - self.truth
        return difference.square() @ self.weight, self.exact_kl - difference @ self.weight

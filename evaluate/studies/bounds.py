r"""The paper's error bounds of log densities, on Gaussian data whose time scores are known.

**Theorem 4.** Let s(x, t) = d/dt log p_t(x), estimated by s_hat at t_i = i/K, i = 1, ..., K. With

    log p1_hat(x) = (1/K) sum_i s_hat(x, t_i) + log p_0(x),     KL = E_{p1}[log p1 - log p1_hat],

and |s(x, t) - s(x, t')| <= L(x) |t - t'|, it says

    KL^2 <= E_{p1}[(log p1 - log p1_hat)^2]
         <= E_{p1}[L^2] / (2 K^2) + 2 E_{p1, p_K(t)}[(s - s_hat)^2],     p_K uniform on the grid.

Its steps hold x by x, hence for averages over any draws of p1. p1_hat is not normalised: this KL
may be negative.

**Proposition 5** takes for s_hat the member of a family s_theta that minimises the loss of CTSM or
CTSM-v over N independent draws of (x, z, t). With s = s_theta*, the residuals w_i of the targets
(CTSM: the conditional time score; CTSM-v: each component of it) and gradients at theta*,

    G = 4 E[lambda^2 (sum_i w_i grad s_i) (sum_i w_i grad s_i)^T],
    H = 2 E[lambda sum_i grad s_i grad s_i^T],
    e = trace(H^-1 G H^-1 E_{p1, p_K}[grad s grad s^T]) = lim N E[(s_theta_hat - s)^2],
    E[KL^2] <= E[L^2] / (2 K^2) + 2 e / N + o(1/N).

In e, s is the sum of its components for CTSM-v too: their sum is what is integrated.

Log densities are in nats, s in nats per unit of t. Tensors are float64.

Source: Yu, Klami, Hyvarinen, Korba, Chehab (ICML 2025), section 5 and appendix D
(arXiv:2502.02300).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Normal
from torch.func import jacfwd, jvp, vmap

from ebm_app.numerics.quadrature import rule_on
from ebm_app.numerics.tensors import expand_like, standard_error
from ebm_app.objectives.time_sampling import UniformTime
from ebm_app.objectives.weighting import TimeScore
from ebm_app.paths import GaussianPath, OneSidedPath, PathSample

#: (x (B, D), t ()) -> a time score or an error of one (B,)
ScoreFunction = Callable[[Tensor, Tensor], Tensor]
OBJECTIVES = ("ctsm", "ctsm_v")


@dataclass(frozen=True)
class GaussianMixture:
    """Data p1 = sum_k w_k N(m_k, s_k^2 I) on a path from N(0, I): every marginal is known,

        p_t = sum_k w_k N(alpha_t m_k, (alpha_t^2 s_k^2 + n_t) I),

    n_t being the variance of x_t given x1, and regular at both ends, where the path's conditional
    densities are not.

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
        stds, weights = (x.new_tensor(part) for part in (self.stds, self.weights))
        one, zero = torch.ones_like(t), torch.zeros_like(t)
        alpha, share_of_x0 = self.path.alpha(t), self.path.mean(PathSample(one, zero, t, zero, t))
        noise_variance = self.path.variance(t) + share_of_x0.square()
        scale = ((alpha * stds).square() + noise_variance).sqrt()[:, None]
        modes = Normal(alpha * self.means.to(x), scale, validate_args=False)
        return torch.logsumexp(modes.log_prob(x[:, None]).sum(2) + weights.log(), 1)

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
    """L(x), the largest |ds/dt| over ``num_times`` times evenly spread over [0, 1]: (B,)."""
    times = torch.linspace(0, 1, num_times, dtype=x.dtype, device=x.device)
    return at_times(problem.time_score_dt, x, times).abs().amax(0)


def ripple(size: float) -> ScoreFunction:
    """An error s_hat - s = size (1 + sin(x_1 + ... + x_D + 2 pi t)) of a time score.

    Over a grid of K > 2 steps its mean is ``size`` and its mean square 3/2 size^2, at every x.
    """
    return lambda x, t: size * (1 + torch.sin(x.sum(1) + 2 * math.pi * t))


NO_ERROR = ripple(0.0)


def kl_bound(
    problem: GaussianMixture,
    x: Tensor,
    lipschitz: Tensor,
    num_steps: int,
    error: ScoreFunction = NO_ERROR,
) -> dict[str, float]:
    """Both sides of Theorem 4 at K steps from draws ``x`` (B, D) of p1 and their L(x) (B,).

    Args:
        error: (x, t ()) -> s_hat - s (B,), such as a ``ripple``; none by default.

    Returns:
        ``kl``: E[log p1 - log p1_hat] (nats), of either sign; ``mean_square``: E[(log p1 - log
        p1_hat)^2]; ``discretisation`` and ``estimation``, the two terms of ``bound`` (nats^2);
        ``ratio``: sqrt(bound) / |kl|; standard errors.
    """
    times = torch.arange(1, num_steps + 1).to(x) / num_steps
    difference = at_times(error, x, times)
    integral = (at_times(problem.time_score, x, times) + difference).mean(0)
    gap = problem.log_ratio(x) - integral
    terms = lipschitz.square() / (2 * num_steps**2), 2 * difference.square().mean(0)
    kl, bound = gap.mean().item(), sum(terms).mean().item()
    return {
        "num_steps": num_steps,
        "kl": kl,
        "kl_stderr": standard_error(gap).item(),
        "mean_square": gap.square().mean().item(),
        "discretisation": terms[0].mean().item(),
        "estimation": terms[1].mean().item(),
        "bound": bound,
        "bound_stderr": standard_error(sum(terms)).item(),
        "ratio": math.sqrt(bound) / abs(kl) if kl else math.inf,
    }


def normal_rule(mean: Tensor, std: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    """Points (Q, D) and weights (Q,) for N(mean, std^2 I): a product of Gauss-Hermite rules, exact
    for polynomials of degree 2 num_nodes - 1 in each component."""
    rule = np.polynomial.hermite_e.hermegauss(num_nodes)
    nodes, weights = (torch.from_numpy(part).to(mean) for part in rule)
    grids = (torch.cartesian_prod(*[part] * len(mean)) for part in (nodes, weights))
    points, weight = (grid.reshape(-1, len(mean)) for grid in grids)
    return mean + std * points, weight.prod(1) / weight.prod(1).sum()


@dataclass(frozen=True)
class Regression:
    """The loss of CTSM or CTSM-v with the paper's weighting as least squares in theta = (mu_1,
    ..., mu_D, log s), for data N(mu, s^2 I) on a path from N(0, I).

    Args:
        objective: one of ``OBJECTIVES``.
        eps: the margin that training leaves where the path is degenerate.
    """

    objective: str
    path: OneSidedPath
    eps: float = 0.05

    def mean_and_std(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """mu (D,) and s ()."""
        return theta[:-1], theta[-1].exp()

    def data(self, theta: Tensor) -> GaussianMixture:
        """N(mu, s^2 I) as a problem of Theorem 4."""
        mean, std = self.mean_and_std(theta)
        return GaussianMixture(self.path, mean[None], (std.item(),))

    def components(self, theta: Tensor, x: Tensor, t: Tensor) -> Tensor:
        """d/dt log p_t(x_i) of every component: x (B, D), t (B,) -> (B, D)."""
        path, (mean, std) = self.path, self.mean_and_std(theta)
        functions = (path.alpha, path.alpha_dt, path.variance, path.variance_dt)
        alpha, alpha_dt, v, v_dt = (expand_like(function(t), x) for function in functions)
        u, u_dt = (alpha * std).square() + v, 2 * alpha * alpha_dt * std.square() + v_dt
        y = (x - alpha * mean) / u
        return u_dt / 2 * (y.square() - 1 / u) + alpha_dt * mean * y

    def residuals(self, theta: Tensor, sample: PathSample) -> Tensor:
        """rho_i = sqrt(lambda) w_i for every target: (B, m), m = 1 or D.

        The loss of an example is the sum of their squares, for CTSM-v D times that of
        ``ebm_app.objectives.regression``, which leaves theta_hat, and H^-1 G H^-1, as they are.
        """
        components = self.components(theta, sample.xt, sample.t)
        w = self.path.conditional_components(sample) - components
        if self.objective == "ctsm":
            w = w.sum(1, keepdim=True)
        return expand_like(TimeScore()(self.path, sample.t).sqrt(), w) * w

    def jacobian(self, theta: Tensor, sample: PathSample) -> Tensor:
        """Gradients of the residuals in theta (P,): (B, m, P)."""
        return jacfwd(self.residuals)(theta, sample)

    def draw(self, theta: Tensor, num: int, generator: torch.Generator) -> PathSample:
        """Independent draws of the path, each at its own uniform time."""
        x1 = self.data(theta).draw(num, generator)
        x0 = torch.randn(x1.shape, generator=generator, dtype=x1.dtype, device=x1.device)
        return self.path.sample(x0, x1, UniformTime(self.path, self.eps).sample(num, generator).t)

    def draw_rule(self, theta: Tensor, num_times: int = 64) -> tuple[PathSample, Tensor]:
        """Nodes and weights (Q,) for the distribution of ``draw``: exact in x0 and x1 for
        polynomials of degree 9 (G has 8); Gauss-Legendre in t."""
        mean, std = self.mean_and_std(theta)
        noise, weight = normal_rule(torch.zeros_like(mean).repeat(2), torch.ones_like(std), 5)
        rule = rule_on(num_times, *self.path.interval(self.eps))
        times, shares = rule.nodes.to(theta), rule.weights.to(theta) / rule.weights.sum()
        x0, y = noise.repeat(num_times, 1).chunk(2, 1)
        sample = self.path.sample(x0, mean + std * y, times.repeat_interleave(len(noise)))
        return sample, torch.outer(shares, weight).flatten()

    def matrices(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """G and H at theta*: (P, P) each."""
        sample, weight = self.draw_rule(theta)
        jacobian = self.jacobian(theta, sample)
        half = torch.einsum("qm,qmp->qp", self.residuals(theta, sample), jacobian)
        g = 4 * torch.einsum("q,qp,qr->pr", weight, half, half)
        return g, 2 * torch.einsum("q,qmp,qmr->pr", weight, jacobian, jacobian)

    def fit(self, theta: Tensor, sample: PathSample, max_steps: int = 30) -> Tensor | None:
        """theta_hat (P,) of one data set by Gauss-Newton steps from ``theta``; None where they do
        not converge, as with few examples, of which the loss may have no minimum."""
        for _ in range(max_steps):
            jacobian = self.jacobian(theta, sample).flatten(0, 1)
            residuals = self.residuals(theta, sample).flatten()
            matrix, gradient = jacobian.T @ jacobian, jacobian.T @ residuals
            step, failed = torch.linalg.solve_ex(matrix, -gradient)
            theta = theta + step
            if failed or not theta.isfinite().all():
                return None
            if step.abs().max() < 1e-8:
                return theta
        return None


class ScoreErrors:
    """What an error in theta* (P,) does to the time score and to KL on the grid of K times.

    Expectations over p1 and p_K are exact: x has Gauss-Hermite nodes for the squares of scores.
    """

    def __init__(self, regression: Regression, theta: Tensor, num_steps: int) -> None:
        self.regression, self.theta = regression, theta
        x, weight = normal_rule(*regression.mean_and_std(theta), num_nodes=3)
        times = torch.arange(1, num_steps + 1).to(theta) / num_steps
        self.x, self.t = x.repeat(num_steps, 1), times.repeat_interleave(len(x))
        self.weight = weight.repeat(num_steps) / num_steps
        self.truth = self._time_score(theta)
        #: KL of Theorem 4 for the exact score (nats)
        self.exact_kl = weight @ regression.data(theta).log_ratio(x) - self.weight @ self.truth

    def _time_score(self, theta: Tensor) -> Tensor:
        return self.regression.components(theta, self.x, self.t).sum(1)

    def limit(self) -> Tensor:
        """e (), N times the mean square error of the score as N grows."""
        g, h = self.regression.matrices(self.theta)
        covariance = torch.linalg.solve(h, torch.linalg.solve(h, g).T)
        gradient = jacfwd(self._time_score)(self.theta)
        return torch.einsum("q,qp,pr,qr->", self.weight, gradient, covariance, gradient)

    def measured(self, thetas: Tensor) -> tuple[Tensor, Tensor]:
        """Of every theta_hat of (R, P): E[(s_theta_hat - s)^2] and KL, (R,) each."""
        difference = vmap(self._time_score)(thetas) - self.truth
        return difference.square() @ self.weight, self.exact_kl - difference @ self.weight

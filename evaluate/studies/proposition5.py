r"""Proposition 5: the error of a time score that was learned from N draws, as N grows.

In the notation of ``theorem4``, it takes for s_hat the member of a family s_theta that minimises
the loss of CTSM or CTSM-v over N independent draws of (x, z, t). With s = s_theta*, the residuals
w_i of the targets (CTSM: the conditional time score; CTSM-v: each component of it) and gradients
at theta*,

    G = 4 E[lambda^2 (sum_i w_i grad s_i) (sum_i w_i grad s_i)^T],
    H = 2 E[lambda sum_i grad s_i grad s_i^T],
    e = trace(H^-1 G H^-1 E_{p1, p_K}[grad s grad s^T]) = lim N E[(s_theta_hat - s)^2],
    E[KL^2] <= E[L^2] / (2 K^2) + 2 e / N + o(1/N).

In e, s is the sum of its components for CTSM-v too: their sum is what is integrated. The printed
formulas are read so: the square in CTSM-v's G is the outer product above; the second term of H,
E[lambda w_i grad^2 s_i], is zero, because w_i has mean zero given x and t; the remainder called
o(N) in the proof is o(1/N). The limit supposes that moments converge, which takes more than the
convergence in distribution of theta_hat: with few examples the loss may have no minimum at all.

Log densities are in nats, s in nats per unit of t. Tensors are float64.

Source: Yu, Klami, Hyvarinen, Korba, Chehab (ICML 2025), section 5 and appendix D
(arXiv:2502.02300).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import jacfwd, vmap
from tqdm.auto import tqdm

from ebm_app.io.registry import choose
from ebm_app.numerics.quadrature import rule_on
from ebm_app.numerics.tensors import expand_like
from ebm_app.objectives.time_sampling import UniformTime
from ebm_app.objectives.weighting import Weighting
from ebm_app.paths import OneSidedPath, PathSample
from studies.theorem4 import GaussianMixture, normal_rule


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
        """Nodes and weights (Q,) for the distribution of ``draw``.

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
        ``ebm_app.objectives.regression.ctsm_v``, which leaves theta_hat, and H^-1 G H^-1, as
        they are.
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


def fit_replicates(
    regression: Regression, theta: Tensor, num_examples: int, num: int, generator: torch.Generator
) -> Fits:
    """theta_hat of ``num`` data sets of independent draws, a few at a time."""
    size, fits = max(1, 100_000 // num_examples), []
    for start in tqdm(range(0, num, size), desc=f"N = {num_examples}", leave=False):
        shape = (min(size, num - start), num_examples)
        sample = regression.family.draw(theta, math.prod(shape), generator)
        samples = PathSample(*(part.unflatten(0, shape) for part in sample))
        fits.append(fit(regression, theta, samples))
    return Fits(*(torch.cat(parts) for parts in zip(*fits, strict=True)))


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

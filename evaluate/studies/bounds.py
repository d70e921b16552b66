r"""The paper's error bound of log densities, on Gaussian data whose time scores are known.

**Theorem 4.** Let s(x, t) = d/dt log p_t(x), estimated by s_hat at t_i = i/K, i = 1, ..., K. With

    log p1_hat(x) = (1/K) sum_i s_hat(x, t_i) + log p_0(x),     KL = E_{p1}[log p1 - log p1_hat],

and |s(x, t) - s(x, t')| <= L(x) |t - t'|, it says

    KL^2 <= E_{p1}[(log p1 - log p1_hat)^2]
         <= E_{p1}[L^2] / (2 K^2) + 2 E_{p1, p_K(t)}[(s - s_hat)^2],     p_K uniform on the grid.

Its steps hold x by x, hence for averages over any draws of p1. p1_hat is not normalised: this KL
may be negative.

Log densities are in nats, s in nats per unit of t. Tensors are float64.

Source: Yu, Klami, Hyvarinen, Korba, Chehab (ICML 2025), section 5 and appendix D
(arXiv:2502.02300).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Normal
from torch.func import jvp, vmap

from ebm_app.numerics.tensors import standard_error
from ebm_app.paths import GaussianPath, PathSample

#: (x (B, D), t ()) -> a time score or an error of one (B,)
ScoreFunction = Callable[[Tensor, Tensor], Tensor]


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

r"""log Z of an unnormalised density from log-weights, with a standard error and warnings.

A weight w with E[w] = Z comes from importance sampling, log w = log p_hat(x) - log q(x) with
x ~ q, or from a whole annealed chain. All values are in nats. By Jensen's inequality the mean of
log w is a lower bound of log Z in expectation, and so is log-mean-exp; weights of reverse chains
that start from exact samples of p_hat / Z bound it from above.

Sources: Neal 2001, arXiv:physics/9803008; Bennett 1976, J. Comput. Phys. 22; Meng and Wong 1996,
Statistica Sinica 6; Grosse, Ghahramani, Adams 2015, arXiv:1511.02543, for the two sides.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ebm_app.utils.errors import UserError
from ebm_app.utils.tensors import effective_sample_size

#: effective weights beyond which the delta method's standard error needs little help
ENOUGH = 100.0
#: standard deviation of log w, in nats, beyond which an estimate warns
WIDEST = 8.0
#: chains below which their spread is itself unknown
FEWEST = 8


class LogZ(NamedTuple):
    """An estimate of log Z in nats.

    Attributes:
        log_z, stderr: the estimate and its standard error.
        ess: effective sample size of the weights, of ``num`` chains.
        mean_log_weight, sd_log_weight: of log w, in the sign in which the mean of w is Z.
        num: how many chains.
        warnings: reasons not to believe it, a sentence each.
    """

    log_z: float
    stderr: float
    ess: float
    mean_log_weight: float
    sd_log_weight: float
    num: int
    warnings: tuple[str, ...]


def from_forward(log_weight: Tensor) -> LogZ:
    """log Z = log mean w for weights (N,) of forward chains; N >= 2. Biased downwards by about
    half the squared standard error."""
    return _summary(log_weight, log_weight, torch.zeros_like(log_weight), 1)


def from_reverse(log_weight: Tensor, log_share: Tensor | None = None) -> LogZ:
    """log Z = -log mean 1/w for weights (N,) of reverse chains from samples of p_hat / Z; N >= 2.
    Biased upwards by about half the squared standard error.

    Args:
        log_share: (N,), log-weights of the starting points as samples of p_hat / Z; equal if not
            given.
    """
    share = torch.zeros_like(log_weight) if log_share is None else log_share
    return _summary(log_weight, share - log_weight, share, -1)


def _summary(log_weight: Tensor, terms: Tensor, share: Tensor, sign: int) -> LogZ:
    """sign * log of the mean of exp(terms - share) under the normalised exp(share)."""
    num, terms, share = len(log_weight), terms.double(), share.double()
    value = sign * (torch.logsumexp(terms, 0) - torch.logsumexp(share, 0)).item()
    if not math.isfinite(value):
        raise UserError(
            f"log Z of {num} chains is not finite: the training of the model has diverged, or the "
            "settings of the chains are out of range"
        )
    deviation = log_weight.double().std().item()
    return LogZ(
        value,
        _stderr(sign * value, terms, share),
        effective_sample_size(terms).item(),
        log_weight.mean().item(),
        deviation,
        num,
        warnings_of(num, deviation),
    )


def _stderr(value: float, terms: Tensor, share: Tensor) -> float:
    r"""The standard error of ``value`` = log sum exp(a) - log sum exp(b), a terms and b share.

    The delta method's error is made by the few largest weights, and too small where these were
    missed. Were a and b jointly normal, of variances s_a and s_b and covariance c, the value would
    be m_a + s_a / 2 - m_b - s_b / 2, estimated with a variance of

        (s_a + s_b - 2 c + (s_a^2 + s_b^2 - 2 c^2) / 2) / (N - 1).

    The larger of the two errors is joined by the distance of the two values, which counts the less
    with more than ``ENOUGH`` effective weights.
    """
    num = len(share)
    by_delta = (terms.softmax(0) - share.softmax(0)).square().sum().item() * num / (num - 1)
    drawn = share.isfinite()
    if drawn.sum() < 2:
        return math.nan  # a single point says nothing of its spread
    both = torch.stack([terms[drawn], share[drawn]])
    ((a, c), (_, b)) = both.cov().tolist()
    of_normal = (a + b - 2 * c + (a**2 + b**2 - 2 * c**2) / 2) / (both.shape[1] - 1)
    m_a, m_b = both.mean(1).tolist()
    distance = m_a + a / 2 - m_b - b / 2 - value
    ess = effective_sample_size(terms).item()
    return math.sqrt(max(by_delta, of_normal) + distance**2 * min(1.0, ENOUGH / ess))


def warnings_of(num: int, deviation: float) -> tuple[str, ...]:
    """Reasons not to believe an estimate, a sentence each."""
    found = []
    if num < FEWEST:
        found.append(f"{num} chains are too few to tell the spread of log w: take 16 or more")
    if deviation > WIDEST:
        found.append(
            f"log w has a standard deviation of {deviation:.1f} nats, too wide for any number of "
            "chains to reach the weights that matter: take more temperatures or more transitions"
        )
    return tuple(found)


def bennett(forward: Tensor, reverse: Tensor, reverse_log_share: Tensor | None = None) -> LogZ:
    r"""Bennett's acceptance ratio: both sides joined with the least variance.

    With u = log w, n_F forward and n_R reverse weights, C = log Z solves

        mean_F[e^(u - C) / (1 + r e^(u - C))] = mean_R[1 / (1 + r e^(u - C))],     r = n_R / n_F.

    Args:
        forward: log-weights (N,) of forward chains.
        reverse: log-weights (M,) of reverse chains, in the same sign.
        reverse_log_share: (M,), log-weights of the reverse starting points as samples of
            p_hat / Z; equal if not given. n_R is then their effective number.

    Returns:
        ``ess`` is that of the smaller side's weights; the standard error is the jackknife's over
        both sides.
    """
    share = torch.zeros_like(reverse) if reverse_log_share is None else reverse_log_share
    forward, reverse, share = forward.double(), reverse.double(), share.double()
    num_reverse = effective_sample_size(share)

    def solve(keep_forward: Tensor, keep_reverse: Tensor) -> Tensor:
        """C for subsets given as log-indicators, (J, N) and (J, M) -> (J,)."""
        from scipy.optimize.elementwise import find_root  # half a second to import

        log_r = num_reverse.log() - math.log(len(forward))
        weights_forward = torch.log_softmax(keep_forward, 1)
        weights_reverse = torch.log_softmax(share + keep_reverse, 1)

        def excess(c: np.ndarray, row: np.ndarray) -> np.ndarray:
            up, down = (u - torch.from_numpy(c)[:, None] for u in (forward, reverse))
            left = torch.logsumexp(weights_forward[row] + up - _softplus(log_r + up), 1)
            right = torch.logsumexp(weights_reverse[row] - _softplus(log_r + down), 1)
            return (left - right).numpy()

        both, row = torch.cat([forward, reverse]), np.arange(len(keep_forward))
        low, high = (np.full(len(row), end.item()) for end in (both.min() - 1, both.max() + 1))
        return torch.from_numpy(find_root(excess, (low, high), args=(row,)).x)

    log_z = solve(torch.zeros(1, len(forward)).double(), torch.zeros(1, len(reverse)).double())
    stderr = math.sqrt(
        _jackknife_variance(
            lambda cut: solve(cut, torch.zeros(len(cut), len(reverse)).double()), len(forward)
        )
        + _jackknife_variance(
            lambda cut: solve(torch.zeros(len(cut), len(forward)).double(), cut), len(reverse)
        )
    )
    ess = min(effective_sample_size(forward), effective_sample_size(share - reverse)).item()
    num = min(len(forward), len(reverse))
    gap = from_reverse(reverse, share).log_z - from_forward(forward).log_z
    doubtful = f"forward and reverse differ by {gap:.1f} nats: they hardly overlap"
    warnings = (doubtful,) if abs(gap) > 3 else ()
    mean, deviation = forward.mean().item(), forward.std().item()
    return LogZ(log_z.item(), stderr, ess, mean, deviation, num, warnings)


def _softplus(x: Tensor) -> Tensor:
    return torch.logaddexp(x, torch.zeros_like(x))


def _jackknife_variance(solve: Callable[[Tensor], Tensor], num: int) -> float:
    """Variance of a statistic by leaving out one of ``num`` values at a time."""
    cut = torch.zeros(num, num, dtype=torch.float64)
    cut.fill_diagonal_(-torch.inf)
    values = solve(cut)
    return ((num - 1) / num * (values - values.mean()).square().sum()).item()

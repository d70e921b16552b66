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

from ebm_app.errors import UserError
from ebm_app.numerics import effective_sample_size

#: fewer effective samples than this, in number or share, raise a warning
MIN_ESS, MIN_ESS_SHARE = 8.0, 0.05


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
    # the delta method for a ratio of sums; with equal shares sd(w) / (mean(w) sqrt(N))
    spread = (torch.softmax(terms, 0) - torch.softmax(share, 0)).square().sum().item()
    if not math.isfinite(value):
        raise UserError(
            f"log Z of {num} chains is not finite: the training of the model has diverged, or the "
            "settings of the chains are out of range"
        )
    ess = effective_sample_size(terms).item()
    deviation = log_weight.double().std().item()
    return LogZ(
        value,
        math.sqrt(spread * num / (num - 1)),
        ess,
        log_weight.mean().item(),
        deviation,
        num,
        warnings_of(ess, num, deviation),
    )


def warnings_of(ess: float, num: int, deviation: float) -> tuple[str, ...]:
    """Reasons not to believe an estimate, a sentence each."""
    found = []
    if ess < MIN_ESS or ess < MIN_ESS_SHARE * num:
        found.append(
            f"{ess:.1f} of {num} chains carry the weight, so the standard error is itself unknown "
            "and the estimate may be off by nats: take more temperatures or more transitions"
        )
    if deviation > math.sqrt(2 * math.log(max(num, 2))):
        found.append(
            f"log w has a standard deviation of {deviation:.1f} nats, too wide for {num} chains "
            "to reach the weights that matter"
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
    doubtful = (
        (f"forward and reverse differ by {gap:.1f} nats: they hardly overlap",)
        if abs(gap) > 3
        else ()
    )
    return LogZ(
        log_z.item(),
        stderr,
        ess,
        forward.mean().item(),
        forward.std().item(),
        num,
        doubtful,
    )


def _softplus(x: Tensor) -> Tensor:
    return torch.logaddexp(x, torch.zeros_like(x))


def _jackknife_variance(solve: Callable[[Tensor], Tensor], num: int) -> float:
    """Variance of a statistic by leaving out one of ``num`` values at a time."""
    cut = torch.zeros(num, num, dtype=torch.float64)
    cut.fill_diagonal_(-torch.inf)
    values = solve(cut)
    return ((num - 1) / num * (values - values.mean()).square().sum()).item()

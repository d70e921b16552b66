r"""log Z of an unnormalised density from log-weights, with a standard error and warnings.

A weight w with E[w] = Z comes from an annealed chain, or from importance sampling with
log w = log p_hat(x) - log q(x), x ~ q. All values are in nats. By Jensen's inequality the means of
log w and of log-mean-exp are lower bounds on log Z; weights of reverse chains that start from
exact samples of p_hat / Z give upper bounds.

The variance of an estimate is by the delta method, see ``_variance``. Estimates from one direction
add to it what log-normal weights would have, see ``_stderr``.

Sources: Neal 2001, arXiv:physics/9803008; Bennett 1976, J. Comput. Phys. 22; Meng and Wong 1996,
Statistica Sinica 6; Grosse, Ghahramani, Adams 2015, arXiv:1511.02543, for the two directions.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ebm_app.utils.errors import UserError
from ebm_app.utils.tensors import effective_sample_size

#: Effective sample size above which the delta method is accurate
RELIABLE_ESS = 100.0
#: Standard deviation of log w, in nats, above which an estimate has a warning
MAX_SPREAD = 8.0
#: Number of chains below which an estimate has a warning
MIN_CHAINS = 8


class LogZ(NamedTuple):
    """An estimate of log Z in nats.

    Attributes:
        log_z, stderr: the estimate and its standard error.
        ess: effective sample size of the weights of ``num`` chains.
        mean_log_weight, sd_log_weight: mean and standard deviation of log w, where E[w] = Z.
        num: number of chains.
        warnings: reasons to distrust the estimate, one sentence each.
    """

    log_z: float
    stderr: float
    ess: float
    mean_log_weight: float
    sd_log_weight: float
    num: int
    warnings: tuple[str, ...]


def from_forward(log_weight: Tensor) -> LogZ:
    """Return log Z = log mean w for weights (N,) of forward chains, N >= 2. The bias is about
    minus half the squared standard error."""
    return _summary(log_weight, log_weight, torch.zeros_like(log_weight), 1)


def from_reverse(log_weight: Tensor, start_log_weight: Tensor | None = None) -> LogZ:
    """Return log Z = -log mean 1/w for weights (N,) of reverse chains from samples of p_hat / Z, N
    >= 2. The bias is about plus half the squared standard error.

    Args:
        start_log_weight: log importance weights (N,) of the starting points as samples of
            p_hat / Z; None for equal weights.
    """
    start = torch.zeros_like(log_weight) if start_log_weight is None else start_log_weight
    return _summary(log_weight, start - log_weight, start, -1)


def _summary(log_weight: Tensor, terms: Tensor, start: Tensor, sign: int) -> LogZ:
    """Return sign * log of the mean of exp(terms - start) under the normalised exp(start)."""
    num, terms, start = len(log_weight), terms.double(), start.double()
    value = sign * (torch.logsumexp(terms, 0) - torch.logsumexp(start, 0)).item()
    if not math.isfinite(value):
        raise UserError(
            f"log Z of {num} chains is not finite. Check that the training of the model converged "
            "and that the settings of the chains are in range."
        )
    spread = log_weight.double().std().item()
    warnings = []
    if num < MIN_CHAINS:
        warnings.append(f"{num} chains are too few to estimate the spread of log w. Use 16.")
    if spread > MAX_SPREAD:
        warnings.append(
            f"log w has a standard deviation of {spread:.1f} nats, which is too wide for any "
            "number of chains. Use more temperatures or more transitions."
        )
    stderr = _stderr(sign * value, terms, start)
    ess = effective_sample_size(terms).item()
    return LogZ(value, stderr, ess, log_weight.mean().item(), spread, num, tuple(warnings))


def _variance(terms: Tensor, start: Tensor) -> float:
    """Return the variance of log sum exp(terms) - log sum exp(start), (N,) each, by the delta
    method."""
    num = len(start)
    return (terms.softmax(0) - start.softmax(0)).square().sum().item() * num / (num - 1)


def _stderr(value: float, terms: Tensor, start: Tensor) -> float:
    r"""Return the standard error of ``value`` = log sum exp(a) - log sum exp(b), where a are the
    terms and b the starting log-weights.

    The delta method depends on the few largest weights, and underestimates the error if these are
    missing from the sample: for log w with a standard deviation of 3 nats, a jackknife covers
    log Z in a third of repeats. If a and b were jointly normal, with variances s_a and s_b and
    covariance c, the value would be m_a + s_a / 2 - m_b - s_b / 2, with an estimation variance of

        (s_a + s_b - 2 c + (s_a^2 + s_b^2 - 2 c^2) / 2) / (N - 1).

    The result combines the larger of the two variances with the squared difference of the two
    values, which is down-weighted above an effective sample size of ``RELIABLE_ESS``.
    """
    is_sampled = start.isfinite()
    if is_sampled.sum() < 2:
        return math.nan
    both = torch.stack([terms[is_sampled], start[is_sampled]])
    ((a, c), (_, b)) = both.cov().tolist()
    by_normal = (a + b - 2 * c + (a**2 + b**2 - 2 * c**2) / 2) / (both.shape[1] - 1)
    m_a, m_b = both.mean(1).tolist()
    difference = m_a + a / 2 - m_b - b / 2 - value
    ess = effective_sample_size(terms).item()
    variance = max(_variance(terms, start), by_normal)
    return math.sqrt(variance + difference**2 * min(1.0, RELIABLE_ESS / ess))


def bennett(forward: Tensor, reverse: Tensor, start_log_weight: Tensor | None = None) -> LogZ:
    r"""Combine both directions with minimum variance, by Bennett's acceptance ratio.

    With u = log w, n_F forward and n_R reverse weights, C = log Z solves

        mean_F[e^(u - C) / (1 + r e^(u - C))] = mean_R[1 / (1 + r e^(u - C))],     r = n_R / n_F.

    For any fixed C, log Z is C plus the log ratio of the two means, whose variance by the delta
    method gives the standard error.

    Args:
        forward: log-weights (N,) of forward chains.
        reverse: log-weights (M,) of reverse chains, with the same sign.
        start_log_weight: log importance weights (M,) of the starting points of the reverse chains,
            as in ``from_reverse``; n_R is then their effective sample size.

    Returns:
        The estimate, whose ``ess`` is the smaller of the two directions.
    """
    from scipy.optimize import brentq  # takes half a second to import

    start = torch.zeros_like(reverse) if start_log_weight is None else start_log_weight
    forward, reverse, start = forward.double(), reverse.double(), start.double()
    equal = torch.zeros_like(forward)
    log_r = effective_sample_size(start).log() - math.log(len(forward))

    def terms(c: float) -> tuple[Tensor, Tensor]:
        """Return the log terms (N,) and (M,) of both means."""
        up, down = forward - c, reverse - c
        return up + logsigmoid(-log_r - up), start + logsigmoid(-log_r - down)

    def excess(c: float) -> float:
        left, right = (torch.logsumexp(part, 0) for part in terms(c))
        return (left - math.log(len(forward)) - right + torch.logsumexp(start, 0)).item()

    both = torch.cat([forward, reverse])
    value = brentq(excess, both.min().item() - 1, both.max().item() + 1)
    left, right = terms(value)
    ess = min(effective_sample_size(forward), effective_sample_size(start - reverse)).item()
    gap = from_reverse(reverse, start).log_z - from_forward(forward).log_z
    warning = f"Forward and reverse estimates differ by {gap:.1f} nats: they hardly overlap."
    return LogZ(
        value,
        math.sqrt(_variance(left, equal) + _variance(right, start)),
        ess,
        forward.mean().item(),
        forward.std().item(),
        min(len(forward), len(reverse)),
        (warning,) if abs(gap) > 3 else (),
    )


def two_sided(log_weight: Tensor, reverse: Tensor) -> tuple[LogZ, LogZ, LogZ]:
    """Combine forward chains with reverse chains from the weighted ends of the last M of them, by
    Bennett's acceptance ratio with the other forward chains.

    A few weighted points underestimate their own spread, so the standard error includes
    differences from the one-sided estimates that exceed their errors.

    Args:
        log_weight: log-weights (N,) of the forward chains.
        reverse: log-weights (M,) of the reverse chains, M < N, with the same sign.

    Returns:
        The combined estimate, and those from forward and from reverse chains alone.
    """
    first, start = log_weight.tensor_split([len(log_weight) - len(reverse)])
    forward, back = from_forward(log_weight), from_reverse(reverse, start)
    combined = bennett(first, reverse, start)
    excess = max((combined.log_z - side.log_z) ** 2 - side.stderr**2 for side in (forward, back))
    combined = combined._replace(
        stderr=math.sqrt(combined.stderr**2 + max(excess, 0)),
        warnings=forward.warnings + combined.warnings,
    )
    return combined, forward, back

"""Methods for log Z: which chains run, and how their weights are combined."""

import math
from collections.abc import Callable
from typing import NamedTuple

from ebm_app.annealing.chains import Chains
from ebm_app.annealing.estimates import LogZ, bennett, from_forward, from_reverse
from ebm_app.annealing.moves import Moves, denoising_moves, stay_moves


class LogZResult(NamedTuple):
    """An estimate of log Z and the mean acceptance probability of its chains; for a method with
    both directions also the estimates from forward and from reverse chains alone."""

    estimate: LogZ
    acceptance: float
    forward: LogZ | None = None
    reverse: LogZ | None = None


def raise_(chains: Chains, num_chains: int) -> LogZResult:
    """Run chains in reverse from data, for an upper bound on log Z if the data are samples of the
    model.

    log p_hat of a starting point minus its log-weight is a conservative estimate of the log
    density of the annealing process at that point (Burda et al. 2015, section 4).
    """
    ends = chains.reverse(chains.data[:num_chains])
    return LogZResult(from_reverse(ends.log_weight), ends.acceptance.mean().item())


def two_sided(chains: Chains, num_chains: int) -> LogZResult:
    """Run forward chains, then reverse chains from the weighted ends of half of them, and combine
    the reverse chains with the other half by Bennett's acceptance ratio.

    Few weighted points underestimate their own spread, so the standard error includes the
    differences to the one-sided estimates that exceed their errors.
    """
    half = num_chains // 2
    ends = chains.forward(num_chains)
    weights, start = ends.log_weight, ends.log_weight[half:]
    back = chains.reverse(ends.position[half:])
    forward, reverse = from_forward(weights), from_reverse(back.log_weight, start)
    combined = bennett(weights[:half], back.log_weight, start)
    excess = max(
        (combined.log_z - side.log_z) ** 2 - side.stderr**2 for side in (forward, reverse)
    )
    combined = combined._replace(
        stderr=math.sqrt(combined.stderr**2 + max(excess, 0)),
        warnings=forward.warnings + combined.warnings,
    )
    return LogZResult(combined, ends.acceptance.mean().item(), forward, reverse)


class Method(NamedTuple):
    """The moves of the chains, and the estimate from chains and their number."""

    moves: Moves
    estimate: Callable[[Chains, int], LogZResult]


METHODS = {
    "diffused": Method(denoising_moves, two_sided),
    "ais": Method(stay_moves, two_sided),
    "raise": Method(stay_moves, raise_),
}

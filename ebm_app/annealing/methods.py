"""log Z of a model by independent methods, each made of a few runs of annealed chains.

Chains run in blocks with a generator of their own, seeded by the run's seed and the block's
number.
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from tqdm.auto import tqdm

from ebm_app.annealing import transports
from ebm_app.annealing.chains import NUM_PILOT, Chains, ChainState
from ebm_app.annealing.estimates import LogZ, bennett, from_forward, from_reverse
from ebm_app.annealing.transports import Transport
from ebm_app.utils.random import make_generator

PILOT, FORWARD, REVERSE = 0, 1, 2
#: chains that are computed together
BLOCK_SIZE = 16


class ChainRun:
    """Forward and reverse chains of the same temperatures, whose step sizes are found first.

    Args:
        chains: the model's. data: (N, *), held-out points. seed: of all noise.
    """

    def __init__(self, chains: Chains, data: Tensor, seed: int) -> None:
        self.chains, self.data, self.seed = chains, data, seed
        tuning = chains.tune(*self._noise(NUM_PILOT, PILOT, 0))
        for _ in tqdm(tuning, "pilot chains", len(chains.targets)):
            pass

    def forward(self, num: int) -> ChainState:
        """``num`` chains from N(0, I)."""
        sizes = map(len, torch.arange(num).split(BLOCK_SIZE))
        starts = [self._noise(size, FORWARD, block) for block, size in enumerate(sizes)]
        return self._run([self.chains.forward(*start) for start in starts])

    def reverse(self, points: Tensor) -> ChainState:
        """Chains back from ``points`` (N, *), which stand for samples of the model."""
        device = self.data.device
        blocks = [
            (part.to(device), make_generator(device, self.seed, REVERSE, block))
            for block, part in enumerate(points.split(BLOCK_SIZE))
        ]
        return self._run([self.chains.reverse(*block) for block in blocks])

    def _run(self, blocks: list[Iterator[ChainState]]) -> ChainState:
        """The ends of blocks of chains, one block after the other, on the CPU."""
        ends = []
        total = len(blocks) * (1 + len(self.chains.targets))
        with tqdm(desc="chains", total=total) as bar:
            for block in blocks:
                for state in block:
                    last = state
                    bar.update()
                ends.append(last)
        return ChainState(*(torch.cat([v.cpu() for v in c]) for c in zip(*ends, strict=True)))

    def _noise(self, num: int, *purpose: int) -> tuple[Tensor, torch.Generator]:
        device = self.data.device
        generator = make_generator(device, self.seed, *purpose)
        noise = torch.randn((num, *self.data.shape[1:]), device=device, generator=generator)
        return noise, generator


class LogZResult(NamedTuple):
    """An estimate of log Z and the mean acceptance probability of its chains; and, where it is
    from both sides, the estimates from forward and from reverse chains alone."""

    estimate: LogZ
    acceptance: float
    forward: LogZ | None = None
    reverse: LogZ | None = None


def raise_(run: ChainRun, num_chains: int) -> LogZResult:
    """The same chains in reverse, from the run's data: an upper bound of log Z as far as they
    are samples of the model. log p_hat of a starting point less its log-weight estimates
    conservatively the log density that the annealing process itself gives to it (Burda et al.
    2015, section 4)."""
    table = run.reverse(run.data[:num_chains])
    return LogZResult(from_reverse(table.log_weight), table.acceptance.mean().item())


def two_sided(run: ChainRun, num_chains: int) -> LogZResult:
    """Chains from N(0, I), joined by Bennett's ratio with reverse chains from the weighted end
    points of other forward chains, which stand for samples of the model.

    Few weighted points tell little of their own spread: as far as the joined value lies from that
    of a side, beyond the error of that side, it is in the error.
    """
    half = num_chains // 2
    table = run.forward(num_chains)
    weights, share = table.log_weight, table.log_weight[half:]
    back = run.reverse(table.position[half:])
    forward, reverse = from_forward(weights), from_reverse(back.log_weight, share)
    joined = bennett(weights[:half], back.log_weight, share)
    apart = max((joined.log_z - side.log_z) ** 2 - side.stderr**2 for side in (forward, reverse))
    joined = joined._replace(
        stderr=math.sqrt(joined.stderr**2 + max(apart, 0)),
        warnings=forward.warnings + joined.warnings,
    )
    return LogZResult(joined, table.acceptance.mean().item(), forward, reverse)


class Method(NamedTuple):
    """A transport of the chains, and what is made of them."""

    transport: Transport
    estimate: Callable[[ChainRun, int], LogZResult]


METHODS = {
    "transported": Method(transports.flow, two_sided),
    "diffused": Method(transports.diffusion, two_sided),
    "ais": Method(transports.none, two_sided),
    "raise": Method(transports.none, raise_),
}

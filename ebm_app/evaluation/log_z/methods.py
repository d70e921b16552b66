"""log Z of a model by independent methods, each made of a few runs of annealed chains.

Chains run in blocks with a generator of their own, seeded by the run's seed and the block's
number.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ebm_app.evaluation.log_z.chains import NUM_PILOT, Chains, ChainState
from ebm_app.evaluation.log_z.estimates import LogZ, bennett, from_forward, from_reverse
from ebm_app.numerics.tensors import seeded

PILOT, FORWARD, REVERSE = 0, 1, 2
#: chains that are computed together
BLOCK_SIZE = 16
#: (states, their number) -> the same states, shown as they come
Progress = Callable[[Iterable[Any], int], Iterable[Any]]


class ChainRun:
    """Forward and reverse chains of the same temperatures, whose step sizes are found first.

    Args:
        chains: the model's. device: of the model. shape: of one point. seed: of all noise.
        progress: shows the states as they come.
    """

    def __init__(
        self,
        chains: Chains,
        device: torch.device | str,
        shape: tuple[int, ...],
        seed: int,
        progress: Progress,
    ) -> None:
        self.chains, self.device, self.shape = chains, device, shape
        self.seed, self.progress = seed, progress
        for _ in progress(chains.tune(*self._noise(NUM_PILOT, PILOT, 0)), len(chains.targets)):
            pass

    def forward(self, num: int) -> ChainState:
        """``num`` chains from N(0, I)."""
        sizes = map(len, torch.arange(num).split(BLOCK_SIZE))
        starts = [self._noise(size, FORWARD, block) for block, size in enumerate(sizes)]
        return self._run([self.chains.forward(*start) for start in starts])

    def reverse(self, points: Tensor) -> ChainState:
        """Chains back from ``points`` (N, *), which stand for samples of the model."""
        blocks = [
            (part.to(self.device), seeded(self.device, self.seed, REVERSE, block))
            for block, part in enumerate(points.split(BLOCK_SIZE))
        ]
        return self._run([self.chains.reverse(*block) for block in blocks])

    def _run(self, blocks: list[Iterator[ChainState]]) -> ChainState:
        """The ends of blocks of chains, one block after the other, on the CPU."""
        ends = []

        def states() -> Iterator[ChainState]:
            for block in blocks:
                for state in block:
                    yield state
                ends.append(state)

        for _ in self.progress(states(), len(blocks) * self.chains.num_distributions):
            pass
        return ChainState(*(torch.cat([v.cpu() for v in c]) for c in zip(*ends, strict=True)))

    def _noise(self, num: int, *purpose: int) -> tuple[Tensor, torch.Generator]:
        generator = seeded(self.device, self.seed, *purpose)
        noise = torch.randn((num, *self.shape), device=self.device, generator=generator)
        return noise, generator


class LogZResult(NamedTuple):
    """An estimate of log Z and the mean acceptance probability of its chains; and, where it is
    from both sides, the estimates from forward and from reverse chains alone."""

    estimate: LogZ
    acceptance: float
    forward: LogZ | None = None
    reverse: LogZ | None = None


def raise_(run: ChainRun, num_chains: int, data: Tensor) -> LogZResult:
    """The same chains in reverse, from held-out ``data`` (N, *): an upper bound of log Z as far as
    the data are samples of the model. log p_hat of a starting point less its log-weight estimates
    conservatively the log density that the annealing process itself gives to it (Burda et al.
    2015, section 4)."""
    table = run.reverse(data[:num_chains])
    return LogZResult(from_reverse(table.log_weight), table.acceptance.mean().item())


def two_sided(run: ChainRun, num_chains: int, data: Tensor) -> LogZResult:
    """Chains from N(0, I), joined by Bennett's ratio with reverse chains from the weighted end
    points of other forward chains, which stand for samples of the model."""
    half = num_chains // 2
    table = run.forward(num_chains)
    weights, share = table.log_weight, table.log_weight[half:]
    back = run.reverse(table.position[half:])
    return LogZResult(
        bennett(weights[:half], back.log_weight, share),
        table.acceptance.mean().item(),
        from_forward(weights),
        from_reverse(back.log_weight, share),
    )


Method = Callable[[ChainRun, int, Tensor], LogZResult]
METHODS: dict[str, Method] = {"ais": two_sided, "raise": raise_, "transported": two_sided}

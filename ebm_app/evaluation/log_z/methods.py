"""log Z of a model by independent methods, each made of a few runs of annealed chains.

Chains run in blocks with a generator of their own, seeded by the run's seed and the block's
number, and blocks are shared among processes: the weights do not depend on their number.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from torch import Tensor

from ebm_app.evaluation.log_z.chains import NUM_PILOT, Chains, ChainState
from ebm_app.evaluation.log_z.estimates import LogZ, bennett, from_forward, from_reverse
from ebm_app.numerics.tensors import seeded

PILOT, FORWARD, REVERSE = 0, 1, 2
#: (states, their number) -> the same states, shown as they come
Progress = Callable[[Iterable[Any], int], Iterable[Any]]


class ChainRun:
    """Forward and reverse chains of the same temperatures, whose step sizes are found first.

    Args:
        accelerator: of the run. chains: the model's.
        shape: of one point. seed: of all noise. block_size: chains that are computed together.
        progress: shows the states as they come.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        chains: Chains,
        shape: tuple[int, ...],
        seed: int,
        block_size: int,
        progress: Progress,
    ) -> None:
        self.accelerator, self.chains, self.shape = accelerator, chains, shape
        self.seed, self.block_size, self.progress = seed, block_size, progress
        x0, generator = self._noise(NUM_PILOT, PILOT, 0)
        for _ in progress(chains.tune(x0, generator), len(chains.targets)):
            pass

    def forward(self, num: int) -> ChainState:
        """``num`` chains from N(0, I)."""

        def begin(block: int, size: int) -> Iterator[ChainState]:
            return self.chains.forward(*self._noise(size, FORWARD, block))

        return self._run(num, begin)

    def reverse(self, points: Tensor) -> ChainState:
        """Chains back from ``points`` (N, *), which stand for samples of the model."""
        blocks = points.split(self.block_size)

        def begin(block: int, size: int) -> Iterator[ChainState]:
            generator = seeded(self.accelerator.device, self.seed, REVERSE, block)
            return self.chains.reverse(blocks[block].to(self.accelerator.device), generator)

        return self._run(len(points), begin)

    def _run(self, num: int, begin: Callable[[int, int], Iterator[ChainState]]) -> ChainState:
        accelerator, count = self.accelerator, self.chains.num_distributions
        rows = torch.arange(num).split(self.block_size)
        own = range(accelerator.process_index, len(rows), accelerator.num_processes)
        parts = [
            torch.zeros(num, *shape, dtype=torch.float64)
            for shape in (self.shape, (), (count + 1,), (count,))
        ]

        def states() -> Iterator[ChainState]:
            for block in own:
                for state in begin(block, len(rows[block])):
                    yield state
                found = state._replace(log_weight=state.log_weight.T)
                for part, value in zip(parts, found, strict=True):
                    part[rows[block]] = value.double().cpu()

        for _ in self.progress(states(), len(own) * count):
            pass
        position, log_density, log_weight, acceptance = (
            accelerator.reduce(part.to(accelerator.device), "sum").cpu() for part in parts
        )
        position = position.to(torch.get_default_dtype())
        return ChainState(position, log_density, log_weight.T, acceptance.mean(0))

    def _noise(self, num: int, *purpose: int) -> tuple[Tensor, torch.Generator]:
        device = self.accelerator.device
        generator = seeded(device, self.seed, *purpose)
        return torch.randn((num, *self.shape), device=device, generator=generator), generator


class LogZResult(NamedTuple):
    """An estimate and the runs behind it.

    Attributes:
        estimate: of log Z.
        acceptance: mean over the temperatures.
        tables: the runs by name.
        reverse: a second estimate from reverse chains, where ``estimate`` is from both sides.
        forward: the estimate from forward chains then.
    """

    estimate: LogZ
    acceptance: float
    tables: dict[str, ChainState]
    reverse: LogZ | None = None
    forward: LogZ | None = None


def ais(run: ChainRun, num_chains: int, data: Tensor) -> LogZResult:
    """Annealed importance sampling through the model's p_t, from N(0, I)."""
    table = run.forward(num_chains)
    return LogZResult(from_forward(table.log_weight[-1]), _acceptance(table), {"ais": table})


def raise_(run: ChainRun, num_chains: int, data: Tensor) -> LogZResult:
    """The same chains in reverse, from held-out ``data`` (N, *): an upper bound of log Z as far as
    the data are samples of the model. log p_hat of a starting point less its log-weight estimates
    conservatively the log density that the annealing process itself gives to it (Burda et al.
    2015, section 4)."""
    table = run.reverse(data[:num_chains])
    return LogZResult(from_reverse(table.log_weight[-1]), _acceptance(table), {"raise": table})


def transported(run: ChainRun, num_chains: int, data: Tensor) -> LogZResult:
    """AIS by ``TransportedChains``, joined by Bennett's ratio with reverse chains from the
    weighted end points of other forward chains, which stand for samples of the model."""
    half = num_chains // 2
    table = run.forward(num_chains)
    weights, share = table.log_weight[-1], table.log_weight[-1, half:]
    back = run.reverse(table.position[half:])
    return LogZResult(
        bennett(weights[:half], back.log_weight[-1], share),
        _acceptance(table),
        {"transported": table, "transported, reverse": back},
        from_reverse(back.log_weight[-1], share),
        from_forward(weights),
    )


Method = Callable[[ChainRun, int, Tensor], LogZResult]
METHODS: dict[str, Method] = {"ais": ais, "raise": raise_, "transported": transported}


def _acceptance(table: ChainState) -> float:
    return table.acceptance[~table.acceptance.isnan()].mean().item()

"""Annealed chains in blocks, shared among processes, that are resumed where they were stopped.

A block of chains has a generator of its own, seeded by the run's seed and the block's number, and
is always computed whole. The weights therefore depend neither on the number of processes nor on
interruptions.
"""

import json
import time
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from safetensors import safe_open
from torch import Tensor

from ebm_app.evaluation.log_z.ais import Annealing, Chains, ChainState, Progress
from ebm_app.io.errors import UserError
from ebm_app.io.tensors import read_tensors, write_tensors
from ebm_app.io.writing import explained_write
from ebm_app.models.energy import TimeScoreEnergy
from ebm_app.numerics.tensors import seeded

#: how often the state of a block is written, in seconds
SAVE_EVERY = 30.0
PILOT, FORWARD, REVERSE = 0, 1, 2


class ChainTable(NamedTuple):
    """N finished chains: ``log_weight`` (K + 1, N) after 0, ..., K distributions, in nats,
    ``position`` (N, *) at the end, mean ``acceptance`` (K,) at each distribution, and calls of the
    leapfrog's field on a block."""

    log_weight: Tensor
    position: Tensor
    acceptance: Tensor
    nfe: int


class ChainRun:
    """Forward and reverse chains of the same temperatures.

    Args:
        accelerator: of the run. energy: the model. settings: of the chains.
        shape: of one point.
        folder: where states of blocks go. seed: of all noise.
        block_size: chains that are computed together.
        resume: go on with the states in the folder; otherwise they are replaced.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        energy: TimeScoreEnergy,
        settings: Annealing,
        shape: tuple[int, ...],
        folder: Path,
        seed: int = 0,
        block_size: int = 16,
        resume: bool = False,
    ) -> None:
        self.accelerator, self.settings, self.shape = accelerator, settings, shape
        self.folder, self.seed, self.block_size, self.resume = folder, seed, block_size, resume
        self.chains = Chains(energy, settings)
        self.energy = energy
        self.device = accelerator.device
        self.model_checksum = 0
        for weight in energy.model.state_dict().values():
            data = weight.detach().cpu().contiguous().numpy().tobytes()
            self.model_checksum = zlib.crc32(data, self.model_checksum)

    def tune(self, progress: Progress, pilot_size: int = 4) -> None:
        """Adapt the step sizes: on every process alike, from the same seed; a resumed run takes
        those it began with, which another number of threads would not give to the last digit."""
        file, identity = self.folder / "pilot.safetensors", json.dumps(self._identity())
        if found := self._load(file, identity) if self.resume else None:
            self.chains.step_sizes = found["step_sizes"]
            return
        generator = self._generator(PILOT, 0)
        x0, num = self._noise(pilot_size, generator), self.settings.num_temperatures
        for _ in progress(self.chains.tune(x0, generator), num):
            pass
        if self.accelerator.is_main_process:
            self._save(file, {"step_sizes": self.chains.step_sizes}, identity)

    def forward(self, num: int, progress: Progress) -> ChainTable:
        """``num`` chains from N(0, I)."""
        starts = torch.arange(num).split(self.block_size)

        def begin(block: int) -> ChainState:
            generator = self._generator(FORWARD, block)
            return self.chains.start(self._noise(len(starts[block]), generator), generator, False)

        return self._run(num, begin, FORWARD, 0, progress)

    def reverse(self, points: Tensor, progress: Progress) -> ChainTable:
        """Chains back from ``points`` (N, *), which stand for samples of the model."""
        blocks = points.split(self.block_size)
        checksum = zlib.crc32(points.cpu().contiguous().numpy().tobytes())

        def begin(block: int) -> ChainState:
            generator = self._generator(REVERSE, block)
            return self.chains.start(blocks[block].to(self.device), generator, True)

        return self._run(len(points), begin, REVERSE, checksum, progress)

    def _run(
        self,
        num: int,
        begin: Callable[[int], ChainState],
        direction: int,
        checksum: int,
        progress: Progress,
    ) -> ChainTable:
        accelerator, count = self.accelerator, self.chains.num_distributions
        sizes = [len(part) for part in torch.arange(num).split(self.block_size)]
        own = range(accelerator.process_index, len(sizes), accelerator.num_processes)
        table = torch.zeros(num, count + 1, dtype=torch.float64)
        points = torch.zeros(num, *self.shape, dtype=torch.float64)
        acceptance, nfe = torch.zeros(len(sizes), count, dtype=torch.float64), 0

        def states() -> Iterable[ChainState]:
            nonlocal nfe
            for block in own:
                last = None
                start = f"{sizes[block]} points, checksum {checksum}"
                for last in self._block(block, begin, direction, start):
                    yield last
                rows = slice(block * self.block_size, block * self.block_size + sizes[block])
                table[rows] = last.log_weight.T.cpu()
                points[rows] = last.position.double().cpu()
                acceptance[block] = last.acceptance.double()
                nfe = int(last.nfe)

        for _ in progress(states(), len(own) * count):
            pass
        table, points, acceptance = (
            accelerator.reduce(part.to(self.device), "sum").cpu()
            for part in (table, points, acceptance)
        )
        weights = torch.tensor(sizes, dtype=torch.float64)[:, None]
        mean_acceptance = (acceptance * weights).sum(0) / num
        return ChainTable(table.T, points.to(torch.get_default_dtype()), mean_acceptance, nfe)

    def _block(
        self, block: int, begin: Callable[[int], ChainState], direction: int, start: str
    ) -> Iterable[ChainState]:
        """The states of a block after each distribution; first the one that was found saved."""
        name = "reverse" if direction == REVERSE else "forward"
        file = self.folder / f"{name}-{block:04d}.safetensors"
        steps = self.chains.step_sizes.tolist()
        identity = json.dumps({**self._identity(), "steps": steps, "start": start})
        found = self._load(file, identity) if self.resume else None
        first = state = begin(block) if found is None else self._state(found)
        if found is not None:
            yield first
        generator, saved = torch.Generator(self.device), time.monotonic()
        for state in self.chains.run(first, generator, direction == REVERSE):
            if time.monotonic() - saved > SAVE_EVERY:
                self._save(file, state._asdict(), identity)
                saved = time.monotonic()
            yield state
        self._save(file, state._asdict(), identity)

    def _identity(self) -> dict[str, Any]:
        """What a saved file must have been made with."""
        return {
            "settings": repr(self.settings),
            "end": self.energy.end,
            "seed": self.seed,
            "block_size": self.block_size,
            "model": self.model_checksum,
        }

    def _save(self, file: Path, tensors: dict[str, Tensor], identity: str) -> None:
        with explained_write(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            write_tensors(file, tensors, {"identity": identity})

    def _load(self, file: Path, identity: str) -> dict[str, Tensor] | None:
        if not file.exists():
            return None
        tensors = read_tensors(file)
        with safe_open(file, "pt") as stored:
            found = stored.metadata() or {}
        if found.get("identity") != identity:
            raise UserError(
                f"{file} holds chains of other settings, another model or another seed: give the "
                "same ones, leave out --resume to start anew, or choose another folder"
            )
        return tensors

    def _state(self, tensors: dict[str, Tensor]) -> ChainState:
        moved = ("position", "log_density", "log_weight")
        return ChainState(**tensors | {key: tensors[key].to(self.device) for key in moved})

    def _generator(self, *purpose: int) -> torch.Generator:
        return seeded(self.device, self.seed, *purpose)

    def _noise(self, num: int, generator: torch.Generator) -> Tensor:
        return torch.randn((num, *self.shape), device=self.device, generator=generator)

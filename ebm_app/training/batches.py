"""The batch of a training step as a pure function of (seed, step).

All processes draw the whole batch of an optimizer step and keep their rows. A step therefore
depends neither on how many processes or accumulation steps share its batch, nor on what was drawn
before: a run resumes exactly from its step number alone.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from ebm_app.data.augmentation import NoAugmentation
from ebm_app.data.levels import dequantise
from ebm_app.likelihood.dequantisation import Dequantiser
from ebm_app.numerics.tensors import seeded
from ebm_app.objectives.time_sampling import TimeSampler
from ebm_app.spaces import Space


class Batches(ABC):
    """Draws batches: tuples of tensors (B, *), the arguments of a loss. Examples come in
    consecutive parts of fresh permutations.

    Args:
        num: examples there are. batch_size: of an optimizer step, over all processes.
        seed: of the run.
    """

    def __init__(self, num: int, batch_size: int, seed: int) -> None:
        self.num, self.batch_size, self.seed = num, batch_size, seed
        self._order: tuple[int, Tensor] | None = None

    @abstractmethod
    def batch(self, step: int) -> tuple[Tensor, ...]:
        """The whole batch of ``step`` = 0, 1, ..., over all processes."""

    def indices(self, step: int) -> Tensor:
        """Indices (batch_size,) of the examples of ``step`` = 0, 1, ..."""
        position = torch.arange(step * self.batch_size, (step + 1) * self.batch_size)
        epochs = position // self.num
        parts = [
            self._permutation(int(epoch))[position[epochs == epoch] % self.num]
            for epoch in epochs.unique()
        ]
        return torch.cat(parts)

    def _permutation(self, epoch: int) -> Tensor:
        if self._order is None or self._order[0] != epoch:  # costly where steps are short
            generator = seeded("cpu", self.seed, 2, epoch)
            self._order = epoch, torch.randperm(self.num, generator=generator)
        return self._order[1]


class EBMBatches(Batches):
    """Draws the batches of a run: reference u0 and data u1 (B, C, H, W) in the path's space, times
    and importance weights (B,), and conditions (B, dim) of the data.

    Args:
        levels: training images (N, C, H, W), integers, on the device of the run.
        num_levels, space, dequantiser: as in the model.
        sampler: of the times. augmentation: of the images.
        batch_size: examples of an optimizer step, over all processes.
        seed: of the run.
    """

    def __init__(
        self,
        levels: Tensor,
        num_levels: int,
        space: Space,
        dequantiser: Dequantiser,
        sampler: TimeSampler,
        augmentation: NoAugmentation,
        batch_size: int,
        seed: int,
    ) -> None:
        super().__init__(len(levels), batch_size, seed)
        self.levels, self.num_levels, self.space = levels, num_levels, space
        self.dequantiser = dequantiser
        self.sampler, self.augmentation = sampler, augmentation

    def batch(self, step: int) -> tuple[Tensor, ...]:
        device = self.levels.device
        generator = seeded(device, self.seed, 0, step)
        levels, condition = self.augmentation(
            self.levels[self.indices(step).to(device)], generator
        )
        noise = torch.rand(levels.shape, device=device, generator=generator)
        u1 = self.dequantiser.training_points(levels, self.num_levels, self.space, noise)
        u0 = torch.randn(u1.shape, device=device, generator=generator)
        times = self.sampler.sample(self.batch_size, seeded("cpu", self.seed, 1, step))
        return u0, u1, times.t.to(device), times.weight.to(device), condition


class FlowBatches(Batches):
    """Draws the batches of a flow, images (B, C, H, W), each with fresh uniform dequantisation.

    Args:
        levels: training images (N, C, H, W), integers, on the device of the run.
        num_levels, batch_size, seed: as for ``EBMBatches``.
    """

    def __init__(self, levels: Tensor, num_levels: int, batch_size: int, seed: int) -> None:
        super().__init__(len(levels), batch_size, seed)
        self.levels, self.num_levels = levels, num_levels

    def batch(self, step: int) -> tuple[Tensor]:
        device = self.levels.device
        levels = self.levels[self.indices(step).to(device)]
        generator = seeded(device, self.seed, 0, step)
        noise = torch.rand(levels.shape, device=device, generator=generator)
        return (dequantise(levels, self.num_levels, noise),)

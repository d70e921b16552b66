"""The batch of a training step as a pure function of (seed, step).

All processes draw the whole batch of an optimizer step and keep their rows. A step therefore
depends neither on how many processes or accumulation steps share its batch, nor on what was drawn
before: a run resumes exactly from its step number alone.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ebm_app.augmentation import Augmentation
from ebm_app.dequantisation import Dequantiser
from ebm_app.numerics import mixed_seed
from ebm_app.spaces import Space
from ebm_app.time_sampling import TimeSampler


class TrainingBatch(NamedTuple):
    """Data u1 and reference u0 (B, C, H, W) in the path's space, times and importance weights
    (B,), conditions (B, dim) of the data."""

    u0: Tensor
    u1: Tensor
    t: Tensor
    weight: Tensor
    condition: Tensor

    def rows(self, start: int, end: int) -> "TrainingBatch":
        """The examples from ``start`` to ``end``."""
        return TrainingBatch(*(tensor[start:end] for tensor in self))


class BatchSource:
    """Draws the batches of a run.

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
        augmentation: Augmentation,
        batch_size: int,
        seed: int,
    ) -> None:
        self.levels, self.num_levels, self.space = levels, num_levels, space
        self.dequantiser = dequantiser
        self.sampler, self.augmentation = sampler, augmentation
        self.batch_size, self.seed = batch_size, seed

    def batch(self, step: int) -> TrainingBatch:
        """The whole batch of ``step`` = 0, 1, ...: consecutive parts of fresh permutations."""
        device = self.levels.device
        generator = torch.Generator(device).manual_seed(mixed_seed(self.seed, 0, step))
        levels, condition = self.augmentation(
            self.levels[self.indices(step).to(device)], generator
        )
        noise = torch.rand(levels.shape, device=device, generator=generator)
        u1 = self.dequantiser.training_points(levels, self.num_levels, self.space, noise)
        u0 = torch.randn(u1.shape, device=device, generator=generator)
        times = self.sampler.sample(
            self.batch_size, torch.Generator().manual_seed(mixed_seed(self.seed, 1, step))
        )
        return TrainingBatch(u0, u1, times.t.to(device), times.weight.to(device), condition)

    def indices(self, step: int) -> Tensor:
        """Indices (batch_size,) of the images of ``step``."""
        position = torch.arange(step * self.batch_size, (step + 1) * self.batch_size)
        num = len(self.levels)
        epochs = position // num
        parts = [
            self._permutation(int(epoch))[position[epochs == epoch] % num]
            for epoch in epochs.unique()
        ]
        return torch.cat(parts)

    def _permutation(self, epoch: int) -> Tensor:
        generator = torch.Generator().manual_seed(mixed_seed(self.seed, 2, epoch))
        return torch.randperm(len(self.levels), generator=generator)

"""Batches of a training run, as functions of the seed and the step.

Each process reads its own rows of a batch and draws the noise of the whole batch. A step therefore
only depends on its number, not on earlier draws or on how the batch is split over processes and
accumulation steps. This makes resuming exact.
"""

from functools import lru_cache

import torch
from torch import Tensor

from ebm_app.data.augmentation import NoAugmentation
from ebm_app.ebm import EBM
from ebm_app.objectives.time_sampling import TimeSampler
from ebm_app.utils.random import RowNoise, make_generator
from ebm_app.utils.tensors import copy_to

#: Max bytes of training images on a GPU
MAX_ON_DEVICE = 2**30


@lru_cache(maxsize=2)
def permutation(num: int, seed: int, epoch: int) -> Tensor:
    """Return the random order (num,) of the examples in an epoch."""
    return torch.randperm(num, generator=make_generator("cpu", seed, 2, epoch))


class Batches:
    """Training points of a model, with times, conditions and labels.

    Args:
        ebm: the model, on its device.
        levels: training images (N, C, H, W), uint8.
        sampler: sampler of the training times.
        size: images per step, over all processes.
        seed: seed of the order and the noise.
        augmentation: augmentation of the images; None for batches without conditions and labels.
        labels: class labels (N,), for a class-conditional model.
        label_dropout: fraction of the labels that are dropped.
    """

    def __init__(
        self,
        ebm: EBM,
        levels: Tensor,
        sampler: TimeSampler,
        size: int,
        seed: int,
        augmentation: NoAugmentation | None = None,
        labels: Tensor | None = None,
        label_dropout: float = 0.0,
    ) -> None:
        self.ebm, self.sampler, self.size, self.seed = ebm, sampler, size, seed
        self.levels = levels if levels.nbytes > MAX_ON_DEVICE else levels.to(ebm.device)
        self.augmentation = augmentation
        self.labels = None if labels is None else labels.to(self.levels.device)
        self.label_dropout = label_dropout

    def order(self, step: int) -> Tensor:
        """Return the indices (size,) of the examples of ``step`` = 0, 1, ..., the next slice of
        the concatenated permutations of the epochs."""
        num, start = len(self.levels), step * self.size
        position = torch.arange(start, start + self.size)
        epochs = position // num
        slices = [
            permutation(num, self.seed, int(epoch))[position[epochs == epoch] % num]
            for epoch in epochs.unique()
        ]
        return torch.cat(slices)

    def batch(self, step: int, rows: Tensor) -> tuple[Tensor, ...]:
        """Return the arguments (b, *) of the loss for rows (b,) of the batch of ``step``."""
        device = self.levels.device
        chosen = self.order(step)[rows].to(device, non_blocking=device.type != "cpu")
        levels = copy_to(self.levels[chosen], self.ebm.device)
        noise = RowNoise(levels.device, self.seed, step, rows, self.size)
        if self.augmentation is None:
            return self.points(levels, noise)
        levels, condition = self.augmentation(levels, noise)
        columns = *self.points(levels, noise), condition
        if self.labels is None:
            return columns
        labels = copy_to(self.labels[chosen], self.ebm.device)
        is_dropped = noise.uniform(len(labels)) < self.label_dropout
        return *columns, labels.masked_fill(is_dropped, -1)

    def points(self, levels: Tensor, noise: RowNoise) -> tuple[Tensor, ...]:
        """Return reference and data points (b, C, H, W) in the space of the path, and times and
        importance weights (b,), for images (b, C, H, W). The times are drawn by the seed of the
        noise."""
        ebm, uniform = self.ebm, noise.uniform(*levels.shape)
        u1 = ebm.dequantiser.training_points(levels, ebm.cells, uniform)
        u0 = noise.normal(*u1.shape)
        generator = make_generator("cpu", noise.seed, 1, noise.step)
        times = torch.stack(self.sampler.sample(noise.num, generator))[:, noise.rows]
        return u0, u1, *times.to(levels.device, non_blocking=levels.device.type != "cpu")

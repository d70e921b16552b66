"""Tasks: a model to train, with its batches, loss and validation.

Each process reads its own rows of a batch and draws the noise of the whole batch. A step therefore
only depends on its number, not on earlier draws or on how the batch is split over processes and
accumulation steps. This makes resuming exact.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from tqdm.auto import tqdm

from ebm_app.config import LoopConfig
from ebm_app.data.cache import move_if_small
from ebm_app.data.images import ImageData, image_digest
from ebm_app.data.levels import dequantise
from ebm_app.evaluation.scoring import bits_of_images
from ebm_app.flow import Flow
from ebm_app.likelihood.noise import dequantisation_noise
from ebm_app.pretrained import PretrainedModel
from ebm_app.utils.fields import to_dict
from ebm_app.utils.processes import sharded
from ebm_app.utils.random import RowNoise, make_generator
from ebm_app.utils.tensors import copy_to, standard_error


@lru_cache(maxsize=2)
def permutation(num: int, seed: int, epoch: int) -> Tensor:
    """Return the random order (num,) of the examples in an epoch."""
    return torch.randperm(num, generator=make_generator("cpu", seed, 2, epoch))


class Task(ABC):
    """A model on its device, with its batches, loss and validation.

    Args:
        loss_module: maps the columns of a batch to losses (B,).

    Attributes:
        name: key of the model's configuration in the run record.
        check: called once per validation batch on every process; may raise to interrupt.
    """

    name: ClassVar[str]

    def __init__(
        self,
        accelerator: Accelerator,
        model: PretrainedModel,
        loss_module: nn.Module,
        config: LoopConfig,
        data: ImageData,
    ) -> None:
        self.accelerator, self.model, self.loss_module = accelerator, model, loss_module
        self.config, self.data = config, data
        self.check: Callable[[], None] = lambda: None
        batches = config.gradient_accumulation_steps * accelerator.num_processes
        self.total_batch_size = config.train_batch_size * batches
        self.levels, self.labels = move_if_small(data.train, accelerator.device), None
        self.limit_validation(config.validation_images)

    def limit_validation(self, num_images: int) -> None:
        """Limit the number of validation images."""
        self.validation = self.data.validation[:num_images]
        repeats, seed = self.config.validation_repeats, self.config.seed
        self.noise = dequantisation_noise(repeats, self.validation, seed)

    @abstractmethod
    def points(self, levels: Tensor, noise: RowNoise) -> tuple[Tensor, ...]:
        """Return the arguments of the loss for images (b, C, H, W), without augmentation."""

    @abstractmethod
    def validate(self) -> dict[str, float]:
        """Return ``validation_loss``, ``validation_bits_per_dim`` and, as ``validation_stderr``,
        its standard error over images. All validations use the same images and noise."""

    def trained_parameters(self) -> list[nn.Parameter]:
        """Return the trainable weights."""
        return [weight for weight in self.model.parameters() if weight.requires_grad]

    def order(self, step: int) -> Tensor:
        """Return the indices (total_batch_size,) of the examples of ``step`` = 0, 1, ..., the next
        slice of the concatenated permutations of the epochs."""
        num, start = len(self.levels), step * self.total_batch_size
        position = torch.arange(start, start + self.total_batch_size)
        epochs = position // num
        slices = [
            permutation(num, self.config.seed, int(epoch))[position[epochs == epoch] % num]
            for epoch in epochs.unique()
        ]
        return torch.cat(slices)

    def batch(self, step: int, rows: Tensor) -> tuple[Tensor, ...]:
        """Return the columns (b, *) for rows (b,) of the batch of ``step`` = 0, 1, ..., which is
        split over processes."""
        on_device = self.levels.device
        chosen = self.order(step)[rows].to(on_device, non_blocking=on_device.type != "cpu")
        labels = None if self.labels is None else self.labels[chosen]
        levels = copy_to(self.levels[chosen], self.accelerator.device)
        noise = RowNoise(levels.device, self.config.seed, step, rows, self.total_batch_size)
        return self.draw(levels, labels, noise)

    def draw(self, levels: Tensor, labels: Tensor | None, noise: RowNoise) -> tuple[Tensor, ...]:
        """Return the arguments of the training loss for images (b, C, H, W) and labels (b,)."""
        return self.points(levels, noise)

    def bits(self, name: str = "validation", **options: Any) -> dict[str, float]:
        """Return the mean validation bits per dim and its standard error. ``options`` are passed
        to ``model.likelihood``."""
        watch, shared = partial(self.watch, name=name), (self.validation, self.noise)
        bits, *_ = bits_of_images(self.accelerator, self.model, *shared, wrap=watch, **options)
        return {
            f"{name}_bits_per_dim": bits.mean().item(),
            f"{name}_stderr": standard_error(bits).item(),
        }

    def watch(self, batches: Sequence[Tensor], name: str) -> Iterator[Tensor]:
        """Iterate over validation batches with a progress bar, calling ``check`` for each."""
        hidden = not self.accelerator.is_main_process
        for rows in tqdm(batches, desc=name, leave=False, disable=hidden):
            self.check()
            yield rows

    @torch.no_grad()
    def validation_loss(self) -> float:
        """Return the mean loss over validation images, in full precision and bypassing
        accelerate's wrapper."""
        num, repeats, seed = len(self.validation), self.config.validation_repeats, self.config.seed
        loss = partial(type(self.loss_module).forward, self.loss_module)

        def losses_of(rows: Tensor) -> Tensor:
            levels = self.validation[rows].to(self.model.device)
            draws = [RowNoise(levels.device, seed, k, rows, num) for k in range(repeats)]
            return torch.stack([loss(*self.points(levels, noise)) for noise in draws], 1)

        size, watch = self.config.train_batch_size, partial(self.watch, name="loss")
        return sharded(self.accelerator, num, repeats, size, losses_of, watch).mean().item()

    @cached_property
    def prepared_loss(self) -> nn.Module:
        """Loss module wrapped by accelerate."""
        return self.accelerator.prepare(self.loss_module)

    @cached_property
    def digest(self) -> str:
        """Digest of the training images and labels."""
        return image_digest(self.levels, self.labels)

    def settings(self) -> dict[str, Any]:
        """Return the configuration of the model and a digest of the data, as JSON. They must not
        change when a run is resumed."""
        data = {"digest of the images": self.digest}
        return {self.name: to_dict(self.model.config), "data": data}

    def final_metrics(self, output_dir: Path) -> dict[str, Any]:
        """Return additional metrics of a finished run, whose best model is in ``output_dir``."""
        return {}


class FlowTask(Task):
    """Trains a flow by maximum likelihood on uniformly dequantised images. Parameters with a
    closed form must be fitted first."""

    name = "flow"

    def __init__(
        self, accelerator: Accelerator, flow: Flow, config: LoopConfig, data: ImageData
    ) -> None:
        flow.requires_grad_(True).to(accelerator.device)
        super().__init__(accelerator, flow, flow, config, data)

    def points(self, levels: Tensor, noise: RowNoise) -> tuple[Tensor]:
        uniform = noise.uniform(*levels.shape)
        return (dequantise(levels, self.model.config.num_levels, uniform),)

    def validate(self) -> dict[str, float]:
        """Return the loss, -log p(x) / D in nats, and the bits per dim it follows from."""
        bits = self.bits()
        nats = bits["validation_bits_per_dim"] * math.log(2)
        return {"validation_loss": nats - math.log(self.model.config.num_levels), **bits}

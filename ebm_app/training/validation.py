"""Held-out loss and bits per dim of a model in training, and previews of its samples."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from tqdm.auto import tqdm

from ebm_app.data.augmentation import NoAugmentation
from ebm_app.data.images import ImageData
from ebm_app.data.png import save_grid
from ebm_app.image_models.ebm import EBM
from ebm_app.image_models.flow import Flow
from ebm_app.image_models.scoring import bits_of_images
from ebm_app.io import PREVIEWS
from ebm_app.likelihood.dequantisation import Dequantiser, dequantisation_noise
from ebm_app.models.config import LoopConfig, TrainingConfig
from ebm_app.numerics.tensors import standard_error
from ebm_app.objectives.regression import Objective
from ebm_app.objectives.time_sampling import TimeSampler
from ebm_app.spaces import Space
from ebm_app.training.batches import EBMBatches

Check = Callable[[], None]


def nothing() -> None:
    """The check of a validation that cannot be stopped."""


class Validator(ABC):
    """Scores the validation split with the same noise every time."""

    def __init__(
        self,
        accelerator: Accelerator,
        model: EBM | Flow,
        data: ImageData,
        config: LoopConfig,
        output_dir: Path,
    ) -> None:
        self.accelerator, self.model, self.config = accelerator, model, config
        self.levels, self.output_dir = data.validation[: config.validation_images], output_dir
        self.noise = dequantisation_noise(config.validation_repeats, self.levels, config.seed)

    def run(self, step: int, check: Check = nothing) -> dict[str, float]:
        """``validation_loss``, and ``validation_bits_per_dim`` with ``validation_stderr``, its
        standard error over images; writes a preview. ``check`` is called again and again, as often
        on every process."""
        self.model.eval()
        metrics = self.metrics(check)
        if self.accelerator.is_main_process and self.config.num_preview_images:
            images = self.model.sample(self.config.num_preview_images, seed=self.config.seed)
            save_grid(images, self.output_dir / PREVIEWS / f"step-{step:06d}.png")
        return metrics

    @abstractmethod
    def metrics(self, check: Check) -> dict[str, float]:
        """What ``run`` returns."""

    def bits(self, name: str = "validation", **options: Any) -> dict[str, float]:
        """Bits per dim with the standard error, by options of ``model.log_prob``."""
        hidden = not self.accelerator.is_main_process
        bar = partial(tqdm, desc=name, leave=False, disable=hidden)
        bits = bits_of_images(
            self.accelerator, self.model, self.levels, self.noise, wrap=bar, **options
        ).bits_per_dim
        return {
            f"{name}_bits_per_dim": bits.mean().item(),
            f"{name}_stderr": standard_error(bits).item(),
        }


class EBMValidator(Validator):
    """Bits per dim by the model's own estimator and, beside the variational bound, by the integral
    of the time score: their difference tells how far the integral is from normalised.

    Args:
        objective: measured on every image of the split as often as it is repeated.
        parts: number of levels, space, dequantiser and time sampler, as for ``EBMBatches``.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        ebm: EBM,
        objective: Objective,
        parts: tuple[int, Space, Dequantiser, TimeSampler],
        data: ImageData,
        config: TrainingConfig,
        output_dir: Path,
    ) -> None:
        super().__init__(accelerator, ebm, data, config, output_dir)
        self.objective, levels = objective, self.levels.to(accelerator.device)
        self.batches = EBMBatches(levels, *parts, NoAugmentation(), len(levels), config.seed)

    def metrics(self, check: Check) -> dict[str, float]:
        loss = self._loss(check)
        metrics = {"validation_loss": loss, **self.bits(seed=self.config.seed, check=check)}
        if self.model.default_estimator != "ratio":
            metrics |= self.bits("validation_ratio", estimator="ratio", check=check)
        return metrics

    def _loss(self, check: Check) -> float:
        model, losses = self.model.model, []
        for repeat in range(self.config.validation_repeats):
            check()
            u0, u1, t, weight, _ = self.batches.batch(repeat)
            sample = model.path.sample(u0, u1, t)
            losses.append(self.objective(model, model.path, sample, weight).detach())
        return torch.cat(losses).mean().item()


class FlowValidator(Validator):
    """Bits per dim, and the loss that they are, -log p(x) / D in nats."""

    def metrics(self, check: Check) -> dict[str, float]:
        bits = self.bits(check=check)
        nats = bits["validation_bits_per_dim"] * math.log(2)
        return {"validation_loss": nats - math.log(self.model.config.num_levels), **bits}

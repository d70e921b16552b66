"""Held-out loss and bits per dim of a model in training, and previews of its samples."""

import math
from pathlib import Path

import torch
from accelerate import Accelerator

from ebm_app.data.augmentation import NoAugmentation
from ebm_app.data.images import ImageData
from ebm_app.data.png import save_grid
from ebm_app.ebm import EBM
from ebm_app.evaluation.bits_per_dim import bits_of_images
from ebm_app.flow import Flow
from ebm_app.likelihood import Estimator, RatioIntegral, VariationalBound
from ebm_app.likelihood.dequantisation import Dequantiser, dequantisation_noise
from ebm_app.models.config import LoopConfig, TrainingConfig
from ebm_app.numerics import standard_error
from ebm_app.objectives.regression import Batch, Objective
from ebm_app.objectives.time_sampling import TimeSampler
from ebm_app.runs.files import PREVIEWS
from ebm_app.spaces import Space
from ebm_app.training.batches import EBMBatches


class Validator:
    """Scores the validation split with the same noise every time.

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
        self.accelerator, self.ebm, self.objective = accelerator, ebm, objective
        self.config, self.output_dir = config, output_dir
        self.levels = data.validation[: config.validation_images]
        levels = self.levels.to(accelerator.device)
        self.batches = EBMBatches(levels, *parts, NoAugmentation(), len(levels), config.seed)
        self.noise = dequantisation_noise(config.validation_repeats, self.levels, config.seed)

    def run(self, step: int) -> dict[str, float]:
        """Validation loss and bits per dim with its standard error over images, by the integral
        and, of a model with a Stein head, by the variational bound; writes a preview."""
        self.ebm.eval()
        metrics = {"validation_loss": self._loss(), **self._bits("validation", RatioIntegral())}
        if self.ebm.config.stein_head:
            bound = VariationalBound(num_draws=1, seed=self.config.seed)
            metrics |= self._bits("validation_elbo", bound)
        if self.accelerator.is_main_process and self.config.num_preview_images:
            images = self.ebm.sample(self.config.num_preview_images, seed=self.config.seed)
            save_grid(images, self.output_dir / PREVIEWS / f"step-{step:06d}.png")
        return metrics

    def _bits(self, name: str, estimator: Estimator) -> dict[str, float]:
        bits = bits_of_images(
            self.accelerator, self.ebm, self.levels, self.noise, estimator=estimator
        ).bits_per_dim
        return {
            f"{name}_bits_per_dim": bits.mean().item(),
            f"{name}_stderr": standard_error(bits).item(),
        }

    def _loss(self) -> float:
        path, losses = self.ebm.model.path, []
        for repeat in range(self.config.validation_repeats):
            u0, u1, t, weight, _ = self.batches.batch(repeat)
            sample = path.sample(u0, u1, t)
            losses.append(self.objective(self.ebm.model, path, Batch(sample, weight)).detach())
        return torch.cat(losses).mean().item()


class FlowValidator:
    """Scores the validation split with the same noise every time."""

    def __init__(
        self,
        accelerator: Accelerator,
        flow: Flow,
        data: ImageData,
        config: LoopConfig,
        output_dir: Path,
    ) -> None:
        self.accelerator, self.flow, self.config = accelerator, flow, config
        self.levels, self.output_dir = data.validation[: config.validation_images], output_dir
        self.noise = dequantisation_noise(config.validation_repeats, self.levels, config.seed)

    def run(self, step: int) -> dict[str, float]:
        """Bits per dim with its standard error, and the loss that it is, -log p(x) / D in nats;
        writes a preview."""
        bits = bits_of_images(self.accelerator, self.flow, self.levels, self.noise).bits_per_dim
        if self.accelerator.is_main_process and self.config.num_preview_images:
            images = self.flow.sample(self.config.num_preview_images, seed=self.config.seed)
            save_grid(images, self.output_dir / PREVIEWS / f"step-{step:06d}.png")
        mean = bits.mean().item()
        return {
            "validation_loss": mean * math.log(2) - math.log(self.flow.config.num_levels),
            "validation_bits_per_dim": mean,
            "validation_stderr": standard_error(bits).item(),
        }

"""What a training run learns: a model, the loss of a batch, and how the model is validated.

The loop (``trainer``) needs no more than this. Everything is built before the run begins or
is resumed, and a batch is a function of (seed, step) alone.
"""

import math
from abc import ABC, abstractmethod
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from tqdm.auto import tqdm

from ebm_app.data.augmentation import AUGMENTATIONS
from ebm_app.data.images import ImageData
from ebm_app.image_models.ebm import EBM
from ebm_app.image_models.flow import Flow
from ebm_app.image_models.scoring import bits_of_images
from ebm_app.io.records import to_dict
from ebm_app.likelihood.dequantisation import dequantisation_noise
from ebm_app.models.config import EBMConfig, LoopConfig, TrainingConfig
from ebm_app.models.time_score import TimeScoreModel
from ebm_app.numerics.tensors import standard_error
from ebm_app.objectives.regression import OBJECTIVES, Objective
from ebm_app.objectives.time_sampling import TIME_SAMPLERS
from ebm_app.objectives.weighting import WEIGHTINGS
from ebm_app.training.batches import Batches, EBMBatches, FlowBatches
from ebm_app.training.validation import EBMValidator, FlowValidator, Validator


class Task(ABC):
    """A model (with ``save_pretrained``), its ``loss_module`` (a batch's rows -> losses (B,)), the
    ``batches`` and the ``validator``."""

    model: nn.Module
    loss_module: nn.Module
    batches: Batches
    validator: Validator

    def trained_parameters(self) -> list[nn.Parameter]:
        """The weights that are trained."""
        return [weight for weight in self.model.parameters() if weight.requires_grad]

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """What the model is, as JSON: a run is resumed with the same only."""

    def final_metrics(self, output_dir: Path) -> dict[str, Any]:
        """Further metrics of a finished run, whose best model is in ``output_dir``."""
        return {}


def total_batch_size(accelerator: Accelerator, config: LoopConfig) -> int:
    """Examples of an optimizer step, over all processes."""
    share = config.train_batch_size * config.gradient_accumulation_steps
    return share * accelerator.num_processes


class TimeScoreLoss(nn.Module):
    """Losses (B,) of a batch: the one module that is wrapped for several processes, so that an
    objective may call the model as often as it needs within one forward pass."""

    def __init__(self, model: TimeScoreModel, objective: Objective) -> None:
        super().__init__()
        self.model, self.objective = model, objective

    def forward(
        self, u0: Tensor, u1: Tensor, t: Tensor, weight: Tensor, condition: Tensor
    ) -> Tensor:
        """See ``objectives``."""
        path, model = self.model.path, partial(self.model, condition=condition)
        return self.objective(model, path, path.sample(u0, u1, t), weight)


class EBMTask(Task):
    """The time score of images.

    Args:
        accelerator: of the run. ebm_config, config: what is trained and how. data: images.
        output_dir: where previews go.
        flow: whose fitted space the model takes over; None for the ambient space.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        ebm_config: EBMConfig,
        config: TrainingConfig,
        data: ImageData,
        output_dir: Path,
        flow: Flow | None = None,
    ) -> None:
        torch.manual_seed(config.seed)
        self.ebm_config = ebm_config
        self.model = EBM(ebm_config)
        if flow is not None:
            self.model.space.load_state_dict(flow.space.state_dict())
        self.model.to(accelerator.device)
        weighting = WEIGHTINGS[config.weighting]()
        objective = OBJECTIVES[config.objective].build(
            weighting, config.stein_factor, ebm_config.eps
        )
        self.loss_module = TimeScoreLoss(self.model.model, objective)
        sampler = TIME_SAMPLERS[config.time_sampler](self.model.model.path, ebm_config.eps)
        parts = (data.num_levels, self.model.space, self.model.dequantiser, sampler)
        levels = data.train.to(accelerator.device)
        size = total_batch_size(accelerator, config)
        augmentation = AUGMENTATIONS[config.augmentation]()
        self.batches = EBMBatches(levels, *parts, augmentation, size, config.seed)
        self.validator = EBMValidator(
            accelerator, self.model, objective, parts, data, config, output_dir
        )

    def settings(self) -> dict[str, Any]:
        return {"ebm": to_dict(self.ebm_config)}


class NegativeLogDensity(nn.Module):
    """-log p(x) / D in nats: the loss of a flow."""

    def __init__(self, flow: Flow) -> None:
        super().__init__()
        self.flow = flow

    def forward(self, x: Tensor) -> Tensor:
        """x (B, C, H, W) -> (B,)."""
        return -self.flow.log_density(x) / x[0].numel()


class FlowTask(Task):
    """The weights of a flow by maximum likelihood; what it has in closed form is fitted before.

    Args:
        accelerator: of the run. flow: fitted. config: how it is trained. data: images.
        output_dir: where previews go.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        flow: Flow,
        config: LoopConfig,
        data: ImageData,
        output_dir: Path,
    ) -> None:
        self.model = flow.requires_grad_(True).to(accelerator.device)
        self.loss_module = NegativeLogDensity(flow)
        levels, size = data.train.to(accelerator.device), total_batch_size(accelerator, config)
        self.batches = FlowBatches(levels, data.num_levels, size, config.seed)
        self.validator = FlowValidator(accelerator, flow, data, config, output_dir)
        self.accelerator, self.test = accelerator, data.test
        self.noise = dequantisation_noise(config.validation_repeats, data.test, config.seed)

    def final_metrics(self, output_dir: Path) -> dict[str, Any]:
        best = Flow.from_pretrained(output_dir, str(self.accelerator.device))
        bar = partial(tqdm, desc="test", disable=not self.accelerator.is_main_process)
        bits = bits_of_images(self.accelerator, best, self.test, self.noise, wrap=bar).bits_per_dim
        return {
            "test_bits_per_dim": bits.mean().item(),
            "test_stderr": standard_error(bits).item(),
            "uniform_bits_per_dim": math.log2(best.config.num_levels),
        }

    def settings(self) -> dict[str, Any]:
        return {"flow": to_dict(self.model.config)}

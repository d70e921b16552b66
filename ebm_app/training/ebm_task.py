"""Training of energy-based models of images."""

from functools import partial
from typing import ClassVar

import torch
from accelerate import Accelerator
from accelerate.utils import DynamoBackend
from torch import Tensor, nn

from ebm_app.config import EBMConfig, LoopConfig, TrainingConfig
from ebm_app.data.augmentation import AUGMENTATIONS
from ebm_app.data.images import ImageData
from ebm_app.ebm import EBM
from ebm_app.flow import Flow
from ebm_app.nets.time_score import TimeScoreModel
from ebm_app.objectives.regression import OBJECTIVES, TSM, WEIGHTINGS, Objective
from ebm_app.objectives.time_sampling import TIME_SAMPLERS, ArcLength, TimeSampler
from ebm_app.training.tasks import Task
from ebm_app.utils.errors import UserError
from ebm_app.utils.random import RowNoise, make_generator

#: Backends of torch.compile that do not compile
UNCOMPILED = (DynamoBackend.NO, DynamoBackend.EAGER)


class TimeScoreLoss(nn.Module):
    """Computes the losses (B,) of a batch. accelerate wraps this module instead of the model, so
    that an objective may call the model several times in one forward pass."""

    def __init__(self, model: TimeScoreModel, objective: Objective) -> None:
        super().__init__()
        self.model, self.objective = model, objective

    def forward(
        self,
        u0: Tensor,
        u1: Tensor,
        t: Tensor,
        weight: Tensor,
        condition: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> Tensor:
        """Return the losses (B,) for reference u0 and data u1 (B, C, H, W) in the path's space,
        times and importance weights (B,), augmentation conditions (B, dim) and labels (B,)."""
        path = self.model.path
        inputs = {} if labels is None else {"labels": labels}
        model = partial(self.model, condition=condition, **inputs)
        return self.objective(model, path, path.sample(u0, u1, t), weight)


def refuse_compiler(accelerator: Accelerator) -> None:
    """Raise a UserError if the training step is compiled."""
    if accelerator.state.dynamo_plugin.backend not in UNCOMPILED:
        raise UserError(
            "Energy networks and the objective tsm need second derivatives, which torch.compile "
            "does not support. Leave out --compile."
        )


class PathTask(Task):
    """Trains an EBM with an objective on noisy images, at times uniform in arc length.

    Validation uses the model's default estimator and a second estimator. Their difference shows
    how far the second is from a normalised density.
    """

    name = "ebm"
    second_estimator: ClassVar[str]

    def __init__(
        self,
        accelerator: Accelerator,
        ebm: EBM,
        objective: Objective,
        config: LoopConfig,
        data: ImageData,
    ) -> None:
        ebm.to(accelerator.device)
        super().__init__(accelerator, ebm, TimeScoreLoss(ebm.model, objective), config, data)
        self.sampler: TimeSampler = ArcLength(ebm.model.path, ebm.config.eps)

    def points(self, levels: Tensor, noise: RowNoise) -> tuple[Tensor, ...]:
        ebm, uniform = self.model, noise.uniform(*levels.shape)
        u1 = ebm.dequantiser.training_points(levels, ebm.cells, uniform)
        u0 = noise.normal(*u1.shape)
        generator = make_generator("cpu", self.config.seed, 1, noise.step)
        times = torch.stack(self.sampler.sample(noise.num, generator))[:, noise.rows]
        return u0, u1, *times.to(levels.device, non_blocking=levels.device.type != "cpu")

    def validate(self) -> dict[str, float]:
        metrics = {"validation_loss": self.validation_loss(), **self.bits(seed=self.config.seed)}
        if (second := self.second_estimator) != self.model.default_estimator:
            metrics |= self.bits(f"validation_{second}", estimator=second)
        return metrics


class EBMTask(PathTask):
    """Trains the time score of images."""

    second_estimator = "time_integral"

    def __init__(
        self,
        accelerator: Accelerator,
        ebm_config: EBMConfig,
        config: TrainingConfig,
        data: ImageData,
        flow: Flow | None = None,
    ) -> None:
        from diffusers import ModelMixin  # slow to import

        torch.manual_seed(config.seed)
        ebm = EBM(ebm_config)
        if flow is not None:
            ebm.space.load_state_dict(flow.space.state_dict())
        weighting = WEIGHTINGS[config.weighting]
        objective = OBJECTIVES[config.objective](weighting, config.stein_factor, ebm_config.eps)
        if isinstance(objective, TSM):
            refuse_compiler(accelerator)
        super().__init__(accelerator, ebm, objective, config, data)
        ends = {}
        if config.time_sampler == "early":
            ends = {"highest": ebm_config.early.max_log_snr}
            ebm.model.net.late.requires_grad_(False)
        for module in ebm.modules() if config.gradient_checkpointing else ():
            if isinstance(module, ModelMixin):
                module.enable_gradient_checkpointing()
        self.sampler = TIME_SAMPLERS[config.time_sampler](ebm.model.path, ebm_config.eps, **ends)
        if ebm_config.num_classes:
            self.labels = data.labels[0].to(accelerator.device)
        self.augmentation = AUGMENTATIONS[config.augmentation]()

    def draw(self, levels: Tensor, labels: Tensor | None, noise: RowNoise) -> tuple[Tensor, ...]:
        levels, condition = self.augmentation(levels, noise)
        batch = *self.points(levels, noise), condition
        if labels is None:
            return batch
        is_dropped = noise.uniform(len(labels)) < self.config.label_dropout
        return *batch, labels.masked_fill(is_dropped, -1)

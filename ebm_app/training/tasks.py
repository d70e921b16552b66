"""What a training run learns: a model, its batches, the loss of a batch, and its validation.

The loop (``trainer``) needs no more than this. Everything is built before the run begins or is
resumed. A process reads its own rows of the batch of an optimizer step, and draws the noise of all
of them: a step depends neither on how many processes or accumulation steps share its batch, nor on
what was drawn before, so that a run resumes exactly from its step number alone.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from tqdm.auto import tqdm

from ebm_app.config import EBMConfig, LoopConfig, TrainingConfig
from ebm_app.data.augmentation import AUGMENTATIONS
from ebm_app.data.images import ImageData
from ebm_app.data.lazy import LazyImages
from ebm_app.data.levels import dequantise
from ebm_app.ebm import EBM
from ebm_app.evaluation.scoring import bits_of_images
from ebm_app.flow import Flow
from ebm_app.likelihood.dequantisation import dequantisation_noise
from ebm_app.nets.protocols import NetworkEnergy
from ebm_app.nets.time_score import TimeScoreModel
from ebm_app.objectives.regression import OBJECTIVES, WEIGHTINGS, Objective
from ebm_app.objectives.time_sampling import TIME_SAMPLERS, ArcLength, TimeSampler
from ebm_app.training.residual import measure_residual
from ebm_app.utils.fields import to_dict
from ebm_app.utils.processes import sharded
from ebm_app.utils.random import RowNoise, make_generator
from ebm_app.utils.tensors import standard_error


@lru_cache(maxsize=2)
def permutation(num: int, seed: int, epoch: int) -> Tensor:
    """The order (num,) of the examples of an epoch."""
    return torch.randperm(num, generator=make_generator("cpu", seed, 2, epoch))


def indices(num: int, batch_size: int, seed: int, step: int) -> Tensor:
    """The examples (batch_size,) of ``step`` = 0, 1, ...: consecutive parts of permutations."""
    position = torch.arange(step * batch_size, (step + 1) * batch_size)
    epochs = position // num
    parts = [
        permutation(num, seed, int(epoch))[position[epochs == epoch] % num]
        for epoch in epochs.unique()
    ]
    return torch.cat(parts)


class Task(ABC):
    """A model on its device, and how it is trained and validated; ``loss_module`` maps the rows of
    a batch to losses (B,)."""

    #: of the model, in the record of a run
    name: ClassVar[str]

    def __init__(
        self,
        accelerator: Accelerator,
        model: EBM | Flow,
        loss_module: nn.Module,
        config: LoopConfig,
        data: ImageData,
    ) -> None:
        self.accelerator, self.model, self.loss_module = accelerator, model, loss_module
        self.config = config
        #: called at each batch of a validation, as often on every process; it may raise to stop it
        self.check: Callable[[], None] = lambda: None
        self.total_batch_size = (
            config.train_batch_size
            * config.gradient_accumulation_steps
            * accelerator.num_processes
        )
        self.levels, self.labels = data.train.to(accelerator.device), None
        self.order = partial(indices, len(self.levels), self.total_batch_size, config.seed)
        self.validation = data.validation[: config.validation_images]
        self.noise = dequantisation_noise(config.validation_repeats, self.validation, config.seed)

    def trained_parameters(self) -> list[nn.Parameter]:
        """The weights that are trained."""
        return [weight for weight in self.model.parameters() if weight.requires_grad]

    def batch(self, step: int, rows: Tensor) -> tuple[Tensor, ...]:
        """These rows (b,) of the batch of ``step`` = 0, 1, ..., over all processes: (b, *)."""
        chosen = self.order(step)[rows].to(self.levels.device)
        labels = None if self.labels is None else self.labels[chosen]
        levels = self.levels[chosen].to(self.accelerator.device)
        if isinstance(self.levels, LazyImages):  # while the network has this batch
            self.levels.prefetch(self.order(step + 1)[rows])
        noise = RowNoise(levels.device, self.config.seed, step, rows, self.total_batch_size)
        return self.draw(levels, labels, noise)

    def draw(self, levels: Tensor, labels: Tensor | None, noise: RowNoise) -> tuple[Tensor, ...]:
        """The arguments of the loss of a training for images (b, C, H, W) and their class labels
        (b,)."""
        return self.points(levels, noise)

    @abstractmethod
    def points(self, levels: Tensor, noise: RowNoise) -> tuple[Tensor, ...]:
        """The arguments of the loss for images (b, C, H, W) as they are."""

    @abstractmethod
    def validate(self) -> dict[str, float]:
        """``validation_loss``, and ``validation_bits_per_dim`` with ``validation_stderr``, its
        standard error over images, on the validation split with the same noise every time."""

    def bits(self, name: str = "validation", **options: Any) -> dict[str, float]:
        """Bits per dim with the standard error, by options of ``model.likelihood``."""
        watched = partial(self.watched, name=name)
        bits = bits_of_images(
            self.accelerator, self.model, self.validation, self.noise, wrap=watched, **options
        ).bits_per_dim
        return {
            f"{name}_bits_per_dim": bits.mean().item(),
            f"{name}_stderr": standard_error(bits).item(),
        }

    def watched(self, batches: Sequence[Tensor], name: str) -> Iterator[Tensor]:
        """The batches of a validation, with a progress bar and the check."""
        hidden = not self.accelerator.is_main_process
        for rows in tqdm(batches, desc=name, leave=False, disable=hidden):
            self.check()
            yield rows

    @torch.no_grad()
    def validation_loss(self) -> float:
        """Of batches as large as those of the training, shared among the processes; in full
        precision, unlike that of the module whose forward accelerate has wrapped."""
        num, repeats, seed = len(self.validation), self.config.validation_repeats, self.config.seed
        loss = partial(type(self.loss_module).forward, self.loss_module)

        def losses_of(rows: Tensor) -> Tensor:
            levels = self.validation[rows].to(self.model.device)
            draws = [RowNoise(levels.device, seed, k, rows, num) for k in range(repeats)]
            return torch.stack([loss(*self.points(levels, noise)) for noise in draws], 1)

        size, watched = self.config.train_batch_size, partial(self.watched, name="loss")
        return sharded(self.accelerator, num, repeats, size, losses_of, watched).mean().item()

    def settings(self) -> dict[str, Any]:
        """What the model is, as JSON: a run is resumed with the same only."""
        return {self.name: to_dict(self.model.config)}

    def final_metrics(self, output_dir: Path) -> dict[str, Any]:
        """Further metrics of a finished run, whose best model is in ``output_dir``."""
        return {}


class TimeScoreLoss(nn.Module):
    """Losses (B,) of a batch: the one module that is wrapped for several processes, so that an
    objective may call the model as often as it needs within one forward pass."""

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
        """Of reference u0 and data u1 (B, C, H, W) in the path's space, times and importance
        weights (B,), conditions (B, dim) of the data and their class labels (B,)."""
        path = self.model.path
        model = partial(self.model, condition=condition, labels=labels)
        return self.objective(model, path, path.sample(u0, u1, t), weight)


class PathTask(Task):
    """What an objective learns at noisy copies of images; times are evenly spread in the clock."""

    name = "ebm"

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
        u1 = ebm.dequantiser.training_points(levels, ebm.config.num_levels, ebm.space, uniform)
        u0 = noise.normal(*u1.shape)
        times = self.sampler.sample(
            noise.num, make_generator("cpu", self.config.seed, 1, noise.step)
        )
        t, weight = (column[noise.rows].to(levels.device) for column in times)
        return u0, u1, t, weight

    def final_metrics(self, output_dir: Path) -> dict[str, Any]:
        if not isinstance(self.model.density, NetworkEnergy):
            return {}
        return measure_residual(self.accelerator, output_dir, self.validation, self.noise[:1])


class EBMTask(PathTask):
    """The time score of images. Validation takes the model's own estimator and, beside the
    variational bound, the integral of the time score: their difference tells how far the integral
    is from normalised."""

    def __init__(
        self,
        accelerator: Accelerator,
        ebm_config: EBMConfig,
        config: TrainingConfig,
        data: ImageData,
        flow: Flow | None = None,
    ) -> None:
        torch.manual_seed(config.seed)
        ebm = EBM(ebm_config)
        if flow is not None:
            ebm.space.load_state_dict(flow.space.state_dict())
        weighting = WEIGHTINGS[config.weighting]
        objective = OBJECTIVES[config.objective](weighting, config.stein_factor, ebm_config.eps)
        super().__init__(accelerator, ebm, objective, config, data)
        ends = {}
        if config.time_sampler == "early":
            ends = {"highest": ebm_config.early.max_log_snr}
            ebm.model.net.late.requires_grad_(False)
        for part in ebm.modules() if config.gradient_checkpointing else ():
            if hasattr(part, "enable_gradient_checkpointing"):  # a network of diffusers
                part.enable_gradient_checkpointing()
        self.sampler = TIME_SAMPLERS[config.time_sampler](ebm.model.path, ebm_config.eps, **ends)
        if ebm_config.num_classes:
            self.labels = data.labels[0].to(accelerator.device)
        self.augmentation = AUGMENTATIONS[config.augmentation]()

    def draw(self, levels: Tensor, labels: Tensor | None, noise: RowNoise) -> tuple[Tensor, ...]:
        levels, condition = self.augmentation(levels, noise)
        batch = *self.points(levels, noise), condition
        if labels is None:
            return batch
        hidden = noise.uniform(len(labels))
        return *batch, labels.masked_fill(hidden < self.config.label_dropout, -1)

    def validate(self) -> dict[str, float]:
        metrics = {"validation_loss": self.validation_loss()}
        metrics |= self.bits(seed=self.config.seed)
        if self.model.default_estimator != "time_integral":
            metrics |= self.bits("validation_ratio", estimator="time_integral")
        return metrics


class FlowTask(Task):
    """The weights of a flow by maximum likelihood, on images with fresh uniform dequantisation;
    what it has in closed form is fitted before."""

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
        """The loss is that of the bits: -log p(x) / D in nats."""
        bits = self.bits()
        nats = bits["validation_bits_per_dim"] * math.log(2)
        return {"validation_loss": nats - math.log(self.model.config.num_levels), **bits}

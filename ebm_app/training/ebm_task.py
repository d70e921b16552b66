"""Training of energy-based models of images, and their distillation into an energy network, a
scalar function whose derivatives match the Stein score and the time score."""

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from accelerate import Accelerator
from accelerate.utils import DynamoBackend
from torch import Tensor, nn

from ebm_app.config import Calibration, EBMConfig, LoopConfig, TrainingConfig
from ebm_app.data.augmentation import AUGMENTATIONS
from ebm_app.data.images import ImageData
from ebm_app.ebm import EBM
from ebm_app.evaluation.scoring import bits_of_images
from ebm_app.flow import Flow
from ebm_app.likelihood import VariationalBound
from ebm_app.likelihood.dequantisation import LEARNED, LearnedDecoder
from ebm_app.nets.energy_net import DecodedEnergyModel, LevelEnergyModel
from ebm_app.nets.parametrisation import ENERGIES, ENERGY, LEVEL_ENERGY
from ebm_app.nets.time_score import TimeScoreModel
from ebm_app.objectives.regression import OBJECTIVES, TSM, WEIGHTINGS, Model, Objective
from ebm_app.objectives.time_sampling import TIME_SAMPLERS, ArcLength, TimeSampler
from ebm_app.paths import GaussianPath, PathSample
from ebm_app.training.tasks import Task
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import to_dict
from ebm_app.utils.random import RowNoise, make_generator
from ebm_app.utils.tensors import expand_like, standard_error, sum_except_batch

#: Backends of torch.compile that do not compile
UNCOMPILED = (DynamoBackend.NO, DynamoBackend.EAGER)
#: Draws per node of the variational bound in the calibration
BOUND_DRAWS = 16
#: Max images whose grey levels define the base of an energy network
BASE_IMAGES = 10_000
#: First layer of a network
FIRST = "unet.conv_in.weight"
#: Min gain of the Stein head in the loss; the gain vanishes at t = 0
MIN_GAIN = 1e-3


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
        twice = ebm.config.prediction in ENERGIES or isinstance(objective, TSM)
        if twice and accelerator.state.dynamo_plugin.backend not in UNCOMPILED:
            raise UserError(
                "Energy networks and the objective tsm need second derivatives, which "
                "torch.compile does not support. Leave out --compile."
            )
        if isinstance(ebm.model, LevelEnergyModel):
            rows = torch.arange(min(len(data.train), BASE_IMAGES))
            ebm.model.base.fit(data.train[rows])
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

    def final_metrics(self, output_dir: Path) -> dict[str, Any]:
        if self.model.config.prediction not in ENERGIES:
            return {}
        return calibrate(self.accelerator, output_dir, self.validation, self.noise[:1])


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


def energy_config(teacher: EBM) -> EBMConfig:
    """Return the configuration of the energy network for a teacher: the same network without
    dropout, labels and early network.

    If the teacher's points are near grey levels, its base has grey levels. If the teacher also
    predicts posterior moments, the energy network ends at the noise of ``LearnedDecoder``, with
    the teacher's network as the decoder. The time embedding then equals the teacher's at each t.
    """
    config, model = teacher.config, teacher.model
    if not config.stein_head:
        raise UserError(
            "This model has no Stein head, so an energy network cannot be distilled from it. Use "
            "a model trained with --stein_factor 1."
        )
    config = replace(
        config,
        prediction=ENERGY,
        net=replace(config.net, dropout=0.0),
        num_classes=0,
        class_names=(),
        early=None,
        calibration=None,
    )
    if config.space != EBMConfig.space or config.dequantisation == "uniform":
        return config
    config = replace(config, prediction=LEVEL_ENERGY)
    if not model.predicts_variance:
        return config
    end = LearnedDecoder().last_time(teacher.cells, model.path)
    scale = model.time_input(model.path, model.interval, torch.tensor([end], dtype=torch.float64))
    return replace(
        config,
        net=replace(config.net, t_scale=config.net.t_scale * scale.item()),
        dequantisation=LEARNED,
        decoder=teacher.config.prediction,
        eps=1 - end,
    )


class Distillation(Objective):
    r"""Squared error of both derivatives of an energy against the outputs of a teacher,

        |grad log p - s|^2 / (D b_t^2) + (d/dt log p - r)^2 / (D tau'(t)^2),

    where s and r are the teacher's Stein score and time score, b_t is the gain of its Stein head,
    and tau' is the derivative of the path's arc length. Both terms are of order 1 at all times.

    Args:
        teacher: model with the same path; its weights are frozen.
    """

    def __init__(self, teacher: TimeScoreModel) -> None:
        super().__init__()
        self.teacher = teacher.eval().requires_grad_(False)

    def __call__(
        self, model: Model, path: GaussianPath, sample: PathSample, weight: Tensor
    ) -> Tensor:
        x, t = sample.xt, sample.t
        with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
            target = self.teacher(x, t)
        output = model(x, t)
        gain = path.score_gain(t).abs().clamp_min(MIN_GAIN)
        score_error = ((output.score - target.score) / expand_like(gain, x)).square()
        time_error = sum_except_batch(output.components) - sum_except_batch(target.components)
        time_scale = path.time_score_variance(t) * x[0].numel()
        return score_error.flatten(1).mean(1) + time_error.square() / time_scale


class EnergyTask(PathTask):
    """Distils a teacher into an energy network on noisy training images. The network is
    initialised with the teacher's weights and a zero last layer. Its decoder is the teacher."""

    second_estimator = "energy"

    def __init__(
        self,
        accelerator: Accelerator,
        teacher: EBM,
        teacher_name: str,
        config: LoopConfig,
        data: ImageData,
    ) -> None:
        torch.manual_seed(config.seed)
        ebm = EBM(energy_config(teacher))
        ebm.space.load_state_dict(teacher.space.state_dict())
        net = teacher.model.net.late if teacher.config.early else teacher.model.net
        own = ebm.model.net.state_dict()
        for name, weight in net.state_dict().items():
            if name in own and own[name].shape == weight.shape:
                own[name] = weight
            elif name.endswith(FIRST):  # features of both, without conditions
                num_shared = weight.shape[1] - teacher.config.condition_dim
                own[name].zero_()[:, :num_shared] = weight[:, :num_shared]
        ebm.model.net.load_state_dict(own)
        if isinstance(ebm.model, DecodedEnergyModel):
            ebm.model.decoder.net.load_state_dict(net.state_dict())
        ebm.add_training_hashes(teacher.training_hashes)
        for weight in ebm.model.net.last_layer.parameters():
            nn.init.zeros_(weight)
        objective = Distillation(teacher.to(accelerator.device).model)
        super().__init__(accelerator, ebm, objective, config, data)
        self.teacher = teacher_name

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"teacher": {"model": self.teacher}}


def calibrate(
    accelerator: Accelerator, folder: Path, levels: Tensor, noise: Tensor
) -> dict[str, Any]:
    """Measure the calibration offset of the energy network in a folder and store it there.

    The offset is the log density from one forward pass minus the variational bound from the
    network's score, in nats, averaged over validation images.

    Args:
        levels: validation images (N, C, H, W).
        noise: dequantisation noise (1, N, C, H, W).
    """
    ebm = EBM.from_pretrained(folder, str(accelerator.device))
    ebm.density.calibration = Calibration()
    one_pass, bound = (
        bits_of_images(accelerator, ebm, levels, noise, estimator=estimator)[0].double()
        for estimator in ("energy", VariationalBound(num_draws=BOUND_DRAWS))
    )
    nats = (bound - one_pass) * math.log(2) * levels.shape[1:].numel()
    offset = Calibration(nats.mean().item(), standard_error(nats).item(), nats.std().item())
    if accelerator.is_main_process:
        ebm.config = replace(ebm.config, calibration=offset)
        ebm.save_config(folder)
    accelerator.wait_for_everyone()
    return {"calibration_nats": to_dict(offset)}

"""Distillation of a model into an energy network, a scalar function whose derivatives match the
Stein score and the time score."""

from dataclasses import replace
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from ebm_app.config import EBMConfig, LoopConfig
from ebm_app.data.images import ImageData
from ebm_app.ebm import EBM
from ebm_app.likelihood.dequantisation import LEARNED, LearnedDecoder
from ebm_app.nets.energy_net import DecodedEnergyModel
from ebm_app.nets.parametrisation import ENERGY, LEVEL_ENERGY
from ebm_app.nets.time_score import TimeScoreModel
from ebm_app.objectives.regression import Model, Objective
from ebm_app.paths import GaussianPath, PathSample
from ebm_app.training.ebm_task import PathTask
from ebm_app.training.transfer import copy_weights, unlabelled_weights
from ebm_app.utils.errors import UserError
from ebm_app.utils.tensors import expand_like, sum_except_batch

#: Min gain of the Stein head in the loss; the gain vanishes at t = 0
MIN_GAIN = 1e-3


def energy_config(teacher: EBM) -> EBMConfig:
    """Return the configuration of the energy network for a teacher: the same network without
    dropout, labels and early network.

    If the teacher's points are near grey levels, its base has grey levels. If the teacher also
    predicts posterior moments, the energy network ends at the noise of ``LearnedDecoder``, or
    where the teacher ends, with the teacher's network as the decoder. The time embedding then
    equals the teacher's at each t.
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
    end = min(LearnedDecoder().last_time(teacher.cells, model.path), teacher.density.end)
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
        copy_weights(teacher, ebm.model.net)
        if isinstance(ebm.model, DecodedEnergyModel):
            ebm.model.decoder.net.load_state_dict(unlabelled_weights(teacher))
        for weight in ebm.model.net.last_layer.parameters():
            nn.init.zeros_(weight)
        objective = Distillation(teacher.to(accelerator.device).model)
        super().__init__(accelerator, ebm, objective, config, data)
        self.teacher = teacher_name

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"teacher": {"model": self.teacher}}

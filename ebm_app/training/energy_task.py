"""Distillation of an energy network: one function whose two derivatives match the Stein score and
the time score of a trained model."""

from dataclasses import replace
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from ebm_app.config import EBMConfig, LoopConfig
from ebm_app.data.images import ImageData
from ebm_app.ebm import EBM
from ebm_app.nets.parametrisation import ENERGY
from ebm_app.nets.time_score import TimeScoreModel
from ebm_app.objectives.regression import Model, Objective
from ebm_app.paths import GaussianPath, PathSample
from ebm_app.training.ebm_task import PathTask
from ebm_app.utils.errors import UserError
from ebm_app.utils.tensors import expand_like, sum_except_batch

#: Min gain of the Stein head in the loss: the gain vanishes at t = 0
MIN_GAIN = 1e-3


def energy_config(teacher: EBMConfig) -> EBMConfig:
    """Return the configuration of the energy network that is distilled from a model: the same
    network without dropout, labels and early network."""
    if not teacher.stein_head:
        raise UserError(
            "This model has no Stein head, so an energy network cannot be distilled from it. Use "
            "a model trained with --stein_factor 1."
        )
    return replace(
        teacher,
        prediction=ENERGY,
        net=replace(teacher.net, dropout=0.0),
        num_classes=0,
        early=None,
        calibration=None,
    )


class Distillation(Objective):
    r"""Squared distance between both derivatives of an energy and the outputs of a teacher,

        |grad log p - s|^2 / (D b_t^2) + (d/dt log p - r)^2 / (D tau'(t)^2),

    where s and r are the teacher's Stein score and time score, b_t is the gain of its Stein head,
    and tau' is the derivative of the path's arc length. Both terms are of order 1 at every time.

    Args:
        teacher: a model of the same path; its weights are frozen.
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
    """Distils an energy network from a teacher at noisy training images. It starts from the
    teacher's weights, with a last layer of zeros."""

    second_estimator = "energy"

    def __init__(
        self,
        accelerator: Accelerator,
        teacher: EBM,
        name: str,
        config: LoopConfig,
        data: ImageData,
    ) -> None:
        torch.manual_seed(config.seed)
        ebm = EBM(energy_config(teacher.config))
        own, theirs = ebm.state_dict(), teacher.state_dict()
        same = [key for key in own if key in theirs and own[key].shape == theirs[key].shape]
        ebm.load_state_dict(own | {key: theirs[key] for key in same})
        ebm.add_training_hashes(teacher.training_hashes)
        for weight in ebm.model.net.last_layer.parameters():
            nn.init.zeros_(weight)
        objective = Distillation(teacher.to(accelerator.device).model)
        super().__init__(accelerator, ebm, objective, config, data)
        self.teacher = name

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"teacher": {"model": self.teacher}}

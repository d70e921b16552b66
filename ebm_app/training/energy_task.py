"""What the training of an energy network learns: a trained model's score and time score, as the
two derivatives of one function."""

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
from ebm_app.training.tasks import PathTask
from ebm_app.utils.errors import UserError
from ebm_app.utils.tensors import expand_like, sum_except_batch

#: the gain of a Stein head vanishes at t = 0, where there is nothing to learn
LEAST_GAIN = 1e-3


def energy_config(teacher: EBMConfig) -> EBMConfig:
    """The configuration of the energy network that learns from a model: its network, without
    dropout, labels or a network for early times."""
    if not teacher.stein_head:
        raise UserError("a model without a Stein head teaches no score: give one that has it")
    return replace(
        teacher,
        prediction=ENERGY,
        net=replace(teacher.net, dropout=0.0),
        num_classes=0,
        early=None,
        calibration=None,
    )


class Distillation(Objective):
    r"""How far both derivatives of an energy are from the outputs of another model,

        |grad log p - s|^2 / (D b_t^2) + (d/dt log p - r)^2 / (D tau'(t)^2),

    s and r the Stein score and the time score of the teacher, b_t the gain of a Stein head and
    tau' the rate of the path's clock: both parts are of order 1 per component at every time.

    Args:
        teacher: a model of the same path, whose weights stay as they are.
    """

    def __init__(self, teacher: TimeScoreModel) -> None:
        super().__init__()
        self.teacher = teacher.eval().requires_grad_(False)

    def __call__(
        self, model: Model, path: GaussianPath, sample: PathSample, weight: Tensor
    ) -> Tensor:
        x, t = sample.xt, sample.t
        with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
            taught = self.teacher(x, t)
        score, rate = taught.score, sum_except_batch(taught.components)
        found = model(x, t)
        gain = path.score_gain(t).abs().clamp_min(LEAST_GAIN)
        miss = ((found.score - score) / expand_like(gain, x)).square().flatten(1).mean(1)
        late = sum_except_batch(found.components) - rate
        return miss + late.square() / (path.time_score_variance(t) * x[0].numel())


class EnergyTask(PathTask):
    """An energy network distilled from a model, on noisy copies of training images. It starts
    with the model's weights, but for a last layer of zeros."""

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
        for weight in ebm.model.net.last_layer.parameters():
            nn.init.zeros_(weight)
        objective = Distillation(teacher.to(accelerator.device).model)
        super().__init__(accelerator, ebm, objective, config, data)
        self.teacher = name

    def validate(self) -> dict[str, float]:
        metrics = {"validation_loss": self.validation_loss()}
        one_pass = self.bits("validation_energy", estimator="energy")
        return {**metrics, **self.bits(seed=self.config.seed), **one_pass}

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"teacher": {"model": self.teacher}}

"""Distillation of a model into an energy network, a scalar function whose derivatives match the
Stein score and the time score."""

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from ebm_app.config import Calibration, EBMConfig
from ebm_app.data.datasets import ImageData
from ebm_app.ebm import EBM
from ebm_app.evaluation.scoring import bits_of_images
from ebm_app.likelihood import VariationalBound
from ebm_app.likelihood.dequantisation import LEARNED_DECODER, LearnedDecoder
from ebm_app.nets.model import TimeScoreModel
from ebm_app.nets.prediction import ENERGY
from ebm_app.objectives.regression import Model, Objective
from ebm_app.objectives.time_sampling import ArcLength
from ebm_app.paths import GaussianPath, PathSample
from ebm_app.training.batches import Batches
from ebm_app.training.build import init_from, refuse_compiler
from ebm_app.training.loop import VALIDATION_SEED, Task
from ebm_app.training.settings import TrainEnergy
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import to_dict
from ebm_app.utils.tensors import expand_like, standard_error, sum_except_batch

#: Lower bound on the coefficient b_t of the Stein head, which vanishes at t = 0
MIN_GAIN = 1e-3
#: Max images whose grey levels define the base of the network
BASE_IMAGES = 10_000
#: Draws per node of the variational bound in the calibration
BOUND_DRAWS = 16
#: First layer and class embedding of a network
FIRST, CLASSES = "unet.conv_in.weight", "class_embedding.weight"


def build(accelerator: Accelerator, config: TrainEnergy, teacher: EBM, data: ImageData) -> Task:
    """Build the energy network, the loss and the batches of a distillation.

    The network is initialised with the teacher's weights and a zero last layer, or with those of
    ``init_from``. Its decoder is the teacher.

    Args:
        teacher: the model to distil.
        data: the images, in the teacher's format.
    """
    refuse_compiler(accelerator)
    torch.manual_seed(config.seed)
    ebm = EBM(energy_config(teacher))
    ebm.space.load_state_dict(teacher.space.state_dict())
    copy_weights(teacher, ebm.model.net)
    for weight in ebm.model.net.last_layer.parameters():
        nn.init.zeros_(weight)
    rows = torch.arange(min(len(data.train), BASE_IMAGES))
    ebm.model.base.fit(data.train[rows])
    if config.init_from and not config.resume_from_checkpoint:
        init_from(ebm, config.init_from)
    ebm.model.decoder.net.load_state_dict(unlabelled_weights(teacher))
    ebm.to(accelerator.device)
    size = config.train_batch_size * config.gradient_accumulation_steps * accelerator.num_processes
    sampler = ArcLength(ebm.model.path, ebm.config.t_margin)
    batches = Batches(ebm, data.train, sampler, size, config.seed)
    objective = Distillation(teacher.to(accelerator.device).model)
    return Task(ebm, objective, batches, data.validation, second_estimator="energy")


def energy_config(teacher: EBM) -> EBMConfig:
    """Return the configuration of the energy network for a teacher: the same network without
    dropout and labels.

    It ends at the noise of ``LearnedDecoder``, or where the teacher ends, with the teacher's
    network as the decoder. The time embedding equals the teacher's at each t.

    Raises:
        UserError: for a teacher whose last points are not near grey levels, or that does not
            predict posterior moments.
    """
    config, model = teacher.config, teacher.model
    is_near_levels = config.space == EBMConfig.space and config.dequantisation != "uniform"
    if not (isinstance(model, TimeScoreModel) and model.has_variance and is_near_levels):
        raise UserError(
            f"An energy network cannot be distilled from a model with prediction "
            f"{config.prediction}, dequantisation {config.dequantisation} and space "
            f"{config.space}. Use a model trained with space ambient, prediction levels and "
            "dequantisation truncated_normal."
        )
    end = min(LearnedDecoder().last_time(teacher.cells, model.path), teacher.model.end)
    scale = model.net_time(torch.tensor([end], dtype=torch.float64))
    net = replace(config.net, dropout=0.0, t_scale=config.net.t_scale * scale.item())
    return replace(
        config,
        prediction=ENERGY,
        net=net,
        num_classes=0,
        class_names=(),
        class_frequencies=(),
        calibration=None,
        dequantisation=LEARNED_DECODER,
        decoder=config.prediction,
        t_margin=1 - end,
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


def unlabelled_weights(teacher: EBM) -> dict[str, Tensor]:
    """Return the weights of a network without class embedding that equals the teacher's network
    for images without labels: its bias includes the last embedding."""
    weights = dict(teacher.model.net.state_dict())
    for name in [name for name in weights if name.endswith(CLASSES)]:
        bias = name.replace(CLASSES, "time_embedding.linear_2.bias")
        weights[bias] = weights[bias] + weights.pop(name)[-1]
    return weights


def copy_weights(teacher: EBM, net: nn.Module) -> None:
    """Copy the teacher's weights into a network with the same hidden layers.

    The first layer gets the weights of the input features that both networks have, and zeros for
    its other inputs. Other layers whose shapes differ keep their initial weights.
    """
    own = net.state_dict()
    weights = {unet_name(name): weight for name, weight in unlabelled_weights(teacher).items()}
    for name, weight in own.items():
        start = weights.get(unet_name(name), weight)
        if name.endswith(FIRST):  # the last inputs of the teacher may be conditions
            num = min(weight.shape[1], start.shape[1] - teacher.config.condition_dim)
            weight.zero_()[:, :num] = start[:, :num]
        elif weight.shape == start.shape:
            own[name] = start
    net.load_state_dict(own)


def unet_name(name: str) -> str:
    """Return the name of a weight without the names of the networks that contain its U-Net."""
    return name.rpartition("unet.")[2]


def calibrate(accelerator: Accelerator, folder: Path, levels: Tensor) -> dict[str, Any]:
    """Measure the calibration offset of the energy network in a folder and store it there.

    The offset is the log density from one evaluation minus the variational bound from the
    network's score, in nats, averaged over validation images.

    Args:
        levels: validation images (N, C, H, W).
    """
    ebm = EBM.from_pretrained(folder, str(accelerator.device))
    ebm.model.calibration = Calibration()
    bits_by = partial(bits_of_images, accelerator, ebm, levels, seed=VALIDATION_SEED)
    one_pass, bound = (
        bits_by(estimator=estimator)[0].double()
        for estimator in ("energy", VariationalBound(num_draws=BOUND_DRAWS))
    )
    nats = (bound - one_pass) * math.log(2) * levels.shape[1:].numel()
    offset = Calibration(nats.mean().item(), standard_error(nats).item(), nats.std().item())
    if accelerator.is_main_process:
        ebm.config = replace(ebm.config, calibration=offset)
        ebm.save_config(folder)
    accelerator.wait_for_everyone()
    return {"calibration_nats": to_dict(offset)}

"""Energy networks: both derivatives in one pass, distillation, and the estimator."""

import dataclasses
import math

import pytest
import torch
from accelerate import Accelerator
from conftest import GREY, error_of
from exact import F64, normal
from torch import nn

from ebm_app import EBM
from ebm_app.config import Calibration, EarlyConfig, LoopConfig
from ebm_app.data.images import load_images
from ebm_app.nets.density import TimeScoreDensity
from ebm_app.nets.energy_net import GAIN, EnergyDensity, EnergyModel
from ebm_app.paths import LinearVPPath, SchrodingerBridgePath, VPPath
from ebm_app.training.ebm_task import Distillation, EnergyTask, energy_config
from ebm_app.utils.tensors import expand_like, sum_except_batch

EPS = 1e-3


class Bilinear(nn.Module):
    """f = 0.3 x t^2 and g = 0.2 x + t: an energy whose derivatives are written down below."""

    def forward(self, x, t):
        t = expand_like(t, x)
        return torch.cat([0.3 * x * t.square(), 0.2 * x + t], 1)


def times(path, num=6):
    start, end = path.interval(EPS)
    return torch.linspace(start, end, num, dtype=F64)


@pytest.mark.parametrize("path", [LinearVPPath(), LinearVPPath(c=0.4), VPPath()])
def test_both_derivatives_match_closed_form(path):
    model, t = EnergyModel(Bilinear(), path, EPS), times(path)
    x = normal((6, 2, 3, 3))
    first, last = path.arc_length(torch.tensor(model.interval, dtype=F64))
    u = (path.arc_length(t) - first) / (last - first)
    rate = path.time_score_variance(t).sqrt() / (last - first)
    u_x = expand_like(u, x)
    part = 0.3 * x * u_x.square() + x * (0.2 * x + u_x)
    normal_part = -(x.square() + math.log(2 * math.pi)) / 2
    expected = (normal_part + GAIN * u_x * part).flatten(1).sum(1)
    assert torch.allclose(model.terms(x, t).flatten(1).sum(1), expected, rtol=1e-12)
    by_u = GAIN * (part + u_x * (0.6 * x * u_x + x)).flatten(1).sum(1)
    assert torch.allclose(model(x, t).components[:, 0], by_u * rate, rtol=1e-8)
    score = -x + GAIN * u_x * (0.3 * u_x.square() + 0.4 * x + u_x)
    assert torch.allclose(model(x, t).score, score, rtol=1e-12)


def test_scores_can_be_differentiated():
    """The divergence of a probability flow needs it."""
    model, t = EnergyModel(Bilinear(), LinearVPPath(), EPS), torch.full((3,), 0.5, dtype=F64)
    point = normal((3, 4)).requires_grad_()
    (second,) = torch.autograd.grad(model(point, t).score.sum(), point)
    u = model.time_input(model.path, model.interval, t)
    assert torch.allclose(second, (-1 + 0.4 * GAIN * u)[:, None].expand(3, 4), rtol=1e-12)


def test_energy_equals_the_integral_of_its_time_derivative():
    model = EnergyModel(Bilinear(), LinearVPPath(), EPS)
    energy, x = EnergyDensity(model, 24, calibration=Calibration(0.5, 0.1, 0.2)), normal((5, 4))
    integral = TimeScoreDensity(model, 24)
    for t in (energy.end, 0.7):
        assert torch.allclose(energy.log_density(x, t), integral.log_density(x, t), atol=1e-6)
        assert torch.allclose(energy.score(x, t), integral.score(x, t), atol=1e-5)
    other = energy.with_nodes(8).with_eps(0.1)
    assert (other.num_nodes, other.end, other.calibration.mean) == (8, 0.9, 0.5)
    assert torch.equal(other.log_density(x, 0.9), energy.log_density(x, 0.9))
    bridge = EnergyModel(Bilinear(), SchrodingerBridgePath(), EPS)
    assert "SchrodingerBridgePath" in error_of(bridge, x, times(bridge.path, 5))


def test_distillation_loss_of_a_shift_matches_closed_form():
    """A time score off by delta per unit of arc length costs delta^2 / D."""
    path = LinearVPPath()
    teacher = EnergyModel(Bilinear(), path, EPS)
    x, t = normal((6, 4)), times(path)
    sample, loss = path.sample(x, x, t), Distillation(teacher)
    assert loss(teacher, path, sample, t).abs().max() < 1e-20

    class Shifted(EnergyModel):
        def forward(self, x, t):
            output = super().forward(x, t)
            gain, rate = path.score_gain(t), path.time_score_variance(t).sqrt()
            return output._replace(
                score=output.score + 0.3 * expand_like(gain, x),
                components=output.components + 0.4 * rate[:, None],
            )

    found = loss(Shifted(Bilinear(), path, EPS), path, sample, t)[1:]
    assert torch.allclose(found, torch.full((5,), 0.3**2 + 0.4**2 / 4, dtype=F64), rtol=1e-9)


@pytest.mark.parametrize(
    ("dequantisation", "prediction"),
    [("uniform", "energy"), ("truncated_normal", "level_energy")],
)
def test_energy_model_round_trip_keeps_the_calibration(tmp_path, dequantisation, prediction):
    teacher = dataclasses.replace(GREY, dequantisation=dequantisation)
    config = dataclasses.replace(energy_config(teacher), calibration=Calibration(1.5, 0.2, 2.5))
    assert config.prediction == prediction and config.net.dropout == 0
    ebm, images = EBM(config), torch.zeros(2, 1, 8, 8)
    ebm.save_pretrained(tmp_path)
    found = EBM.from_pretrained(tmp_path).likelihood(images, estimator="energy")
    assert found.nfe == 1 and found.error.tolist() == [2.5] * 2
    assert torch.allclose(sum_except_batch(found.components), found.log_prob, rtol=1e-12)
    assert "train/energy.py" in error_of(EBM(GREY).likelihood, images, "energy")
    ebm.density.calibration = Calibration()
    free = ebm.likelihood(images, estimator="energy")
    assert torch.allclose(free.log_prob - found.log_prob, torch.full((2,), 1.5, dtype=F64))
    sampled = ebm.sample(2, "annealed_hmc", num_temperatures=3, acceptance="energy")
    assert sampled.shape == (2, 1, 8, 8)
    assert "no Stein head" in error_of(
        energy_config, dataclasses.replace(config, stein_head=False)
    )


def test_student_starts_from_the_late_network_of_its_teacher():
    early = EarlyConfig(GREY.net)
    grey = dataclasses.replace(GREY, dequantisation="truncated_normal", early=early)
    teacher, data = EBM(grey), load_images("digits")
    config = LoopConfig(max_train_steps=1, train_batch_size=4)
    task = EnergyTask(Accelerator(cpu=True), teacher, "grey", config, data)
    student = task.model
    assert task.settings()["teacher"] == {"model": "grey"}
    assert student.config.prediction == "level_energy"
    own, theirs = student.model.net.unet, teacher.model.net.late.unet
    assert torch.equal(own.time_embedding.linear_1.weight, theirs.time_embedding.linear_1.weight)
    first, *others = own.conv_in.weight.split(1, dim=1)
    assert torch.equal(first, theirs.conv_in.weight) and not torch.cat(others).any()
    share = (data.train == 0).double().mean()
    assert student.model.base.log_weights[0, 0].exp() == pytest.approx(share.item(), abs=1e-3)

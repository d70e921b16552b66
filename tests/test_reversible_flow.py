"""The discrete flow: its inverse, its Jacobian, and a density that integrates to one."""

import numpy as np
import pytest
import torch
from exact import F64, ExactBridge, ExactModel, normal, two_modes

from ebm_app.paths import LinearVPPath, SchrodingerBridgePath, VPPath
from ebm_app.paths.clocks import ARC_LENGTH, CLOCKS
from ebm_app.paths.midpoint import ImplicitMidpoint
from ebm_app.paths.probability_flow import ClockField

START, END = 1e-2, 0.999


def gaussian(path):
    return ExactModel(path, 1e-5, [[0.7]], [0.5])


def modes(path, shape):
    """Two modes; one on a bridge."""
    if isinstance(path, SchrodingerBridgePath):
        return ExactBridge(path, 1e-3, (0.0, 1.0), (0.7, 0.5))
    return two_modes(path, 1e-5, shape)


def flow(model, num_steps, start=START, end=END):
    times = ARC_LENGTH.grid(model.path, start, end, num_steps + 1)
    return ImplicitMidpoint(ClockField(model.exact_score, model.path), times.tolist())


@pytest.mark.parametrize(
    ("path", "shape"),
    [(LinearVPPath(), (2,)), (VPPath(), (2,)), (SchrodingerBridgePath(), (1, 2, 2))],
    ids=["linear", "vp", "bridge"],
)
def test_backward_undoes_forward_and_its_determinant(path, shape):
    moving, x = flow(modes(path, shape), 4, end=0.9), normal((8, *shape))
    there = moving.forward(x)
    back = moving.backward(there.x)
    assert len(moving) == 4 and (there.x - x).abs().max() > 0.1
    assert (back.x - x).abs().max() < 1e-10
    assert there.log_det.shape == (8,) and there.log_det.dtype == F64
    assert (back.log_det + there.log_det).abs().max() < 1e-10
    again = moving.forward(moving.backward(x).x)
    assert (again.x - x).abs().max() < 1e-10


@pytest.mark.parametrize("clock", CLOCKS.values(), ids=CLOCKS)
def test_steps_are_in_the_clock_of_the_field(clock):
    """The exact flow of Gaussian data keeps (x - alpha mu) / sqrt(m)."""
    path = LinearVPPath()
    model = ExactModel(path, 1e-5, [[0.7]], [0.5], stein_channels=1)
    field, x = ClockField(model.exact_score, path, clock), normal((8, 2))
    there = ImplicitMidpoint(field, clock.grid(path, 0.05, 0.9, 41).tolist()).forward(x).x
    mean, variance, *_ = model.moments(torch.tensor([0.05, 0.9], dtype=F64))
    mean, deviation = mean.flatten(), variance[0].sqrt()
    expected = mean[1] + deviation[1] / deviation[0] * (x - mean[0])
    assert torch.allclose(there, expected, rtol=0, atol=1e-3)


def unrolled(moving, x):
    """The same map by fifty iterations a step, differentiable as they stand."""
    for h, t in zip(moving.steps, moving.middles, strict=True):
        middle = x
        for _ in range(50):
            middle = x + h / 2 * moving.field(middle, t)
        x = 2 * middle - x
    return x


def test_the_log_determinant_is_that_of_the_jacobian_of_the_whole_map():
    shape = (1, 2, 2)
    moving = flow(modes(LinearVPPath(), shape), 6, end=0.9)
    x = normal((3, *shape)).requires_grad_()
    there, end = moving.forward(x.detach()), unrolled(moving, x)
    assert torch.allclose(end, there.x, rtol=0, atol=1e-11)
    rows = [
        torch.autograd.grad(output, x, retain_graph=True)[0].flatten(1)
        for output in end.flatten(1).sum(0)
    ]
    expected = torch.linalg.slogdet(torch.stack(rows, 1)).logabsdet
    assert (there.log_det - expected).abs().max() < 1e-9 and there.log_det.abs().min() > 0.1


def test_the_density_converges_to_the_exact_one_in_second_order():
    """Carried back to p_t at the start, since N(0, I) is only near it."""
    model, steps = two_modes(LinearVPPath(), 1e-5, (1, 2, 2)), (16, 32, 64)
    x = model.sample(torch.full((8,), END, dtype=F64), (8, 1, 2, 2)).xt
    exact, errors = model.log_density(x, END), []
    for num_steps in steps:
        back = flow(model, num_steps).backward(x)
        found = model.log_density(back.x, START) + back.log_det
        errors.append((found - exact).abs().mean().item())
    order = -np.polyfit(np.log(steps), np.log(errors), 1)[0]
    assert errors[-1] < 1e-2 and abs(order - 2) < 0.25


def test_a_step_too_long_for_the_field_is_refused():
    """Modes of 0.02: there the field turns over faster than one step can follow."""
    model = ExactModel(LinearVPPath(), 1e-5, [[-0.8], [0.8]], [0.02, 0.02], (0.5, 0.5))
    x = model.data((2, 2))
    with pytest.raises(ValueError, match="take more steps"):
        flow(model, 1).backward(x)
    assert flow(model, 60).backward(x).log_det.isfinite().all()


def test_what_the_flow_takes_back_it_brings_again_or_refuses():
    """Where a step is too long its equation has several solutions, and the one that settles from
    y need not be the one that led to y."""
    moving, taken = flow(two_modes(LinearVPPath(), 1e-3, (1,)), 1), 0
    for y in torch.linspace(-1.5, 1.5, 31, dtype=F64).reshape(-1, 1, 1):
        try:
            again = moving.forward(moving.backward(y).x)
        except ValueError as error:
            assert "take more steps" in str(error)
            continue
        taken += 1
        assert (again.x - y).abs().max() < 1e-8, f"{y.item()} came back as {again.x.item()}"
    assert taken > 10


def test_an_example_does_not_depend_on_its_batch():
    moving, x = flow(modes(LinearVPPath(), (1, 2, 2)), 6), normal((3, 1, 2, 2))
    whole = moving.forward(x)
    for i in range(2):
        alone = moving.forward(x[i : i + 1])
        assert torch.allclose(alone.x, whole.x[i : i + 1], rtol=0, atol=1e-12)
        assert torch.allclose(alone.log_det, whole.log_det[i : i + 1], rtol=0, atol=1e-11)


def test_float32_points_stay_so_and_come_back_to_their_precision():
    moving, x = flow(modes(LinearVPPath(), (1, 2, 2)), 8), normal((6, 1, 2, 2))
    there = moving.forward(x.float())
    assert there.x.dtype == torch.float32 and there.log_det.dtype == F64
    assert (moving.backward(there.x).x - x).abs().max() < 1e-4
    assert (there.log_det - moving.forward(x).log_det).abs().max() < 1e-4

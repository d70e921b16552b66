"""The probability flow of known densities: schedules, order of its steps, log-determinants, and
the step with an exact inverse."""

import math

import numpy as np
import pytest
import torch
from exact import F64, ExactModel, normal, two_modes, z_score

from ebm_app.paths import LinearVPPath, VPPath
from ebm_app.paths.divergence import rademacher_probes, unit_probes
from ebm_app.paths.midpoint import ImplicitMidpoint
from ebm_app.paths.probability_flow import SOLVERS, ProbabilityFlow
from ebm_app.paths.schedules import ARC_LENGTH, SCHEDULES
from ebm_app.utils.errors import UserError

PATHS = {"linear": LinearVPPath(), "linear c": LinearVPPath(c=0.4), "vp": VPPath()}
START, END = 1e-2, 0.999
STEPS = (16, 32, 64)
every_schedule = pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)


def gaussian(path):
    return ExactModel(path, 1e-5, [[0.7]], [0.5], stein_channels=1)


def run(model, x, num_steps=20, start=START, end=END, solver="heun", probes=None):
    """The last state of the flow of an exact score."""
    flow = ProbabilityFlow(model.exact_score, model.path)
    *_, state = flow.solve(x, start, end, solver, num_steps, probes)
    return state


def mapped(model, x, start=START, end=END):
    """The exact flow of Gaussian data: (x - alpha mu) / sqrt(m) is constant along it."""
    mean, variance, *_ = model.moments(torch.tensor([start, end], dtype=F64))
    mean, deviation = mean.flatten(), variance[0].sqrt()
    return mean[1] + deviation[1] / deviation[0] * (x - mean[0])


def level(model, x, t):
    """Distribution function of the projection on the modes' line: constant along the flow, which
    is one-dimensional there."""
    mean, variance, *_ = model.moments(torch.tensor([t], dtype=F64))
    direction = (model.means[1] / model.means[1].norm()).flatten()
    place = x.flatten(1) @ direction - (mean[:, 0].flatten(1) @ direction)[:, None]
    modes = torch.special.ndtr(place / variance.sqrt())
    return (model.log_weights.exp()[:, None] * modes).sum(0)


@every_schedule
@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_a_schedule_is_even_in_its_reading_whose_derivative_is_its_rate(path, schedule):
    for num in (1, 9):
        times = schedule.times(path, START, END, num)
        gaps = schedule.reading(path, times).diff()
        assert times.dtype == F64 and times[0] == START and times[-1] == END
        assert torch.allclose(gaps, gaps.mean().expand(num), rtol=1e-9) and gaps.min() > 0
    t = torch.linspace(START, END, 7, dtype=F64)
    step = 1e-6 * t * (1 - t)
    secant = (schedule.reading(path, t + step) - schedule.reading(path, t - step)) / (2 * step)
    assert torch.allclose(schedule.rate(path, t), secant, rtol=1e-6)


@pytest.mark.parametrize(
    ("path", "shape", "solver", "order", "ends", "smallest"),
    [
        (LinearVPPath(), (2,), "heun", 2, (START, END), 4e-3),
        (LinearVPPath(c=0.4), (1, 2, 2), "rk4", 4, (0.1, 0.99), 1e-7),
        (VPPath(), (1, 4, 4), "heun", 2, (START, END), 4e-3),
    ],
    ids=["heun linear", "rk4 linear c", "heun vp"],
)
def test_solvers_have_their_order_on_the_flow_of_a_mixture(
    path, shape, solver, order, ends, smallest
):
    """Runge-Kutta between times that 16 steps resolve, as two dozen are needed for the whole."""
    model, x = two_modes(path, 1e-5, shape), normal((64, *shape))
    before = level(model, x, ends[0])
    states = [run(model, x, n, *ends, solver) for n in STEPS]
    errors = [(level(model, state.x, ends[1]) - before).abs().mean() for state in states]
    found = -np.polyfit(np.log(STEPS), np.log(errors), 1)[0]
    assert errors[-1] < smallest and abs(found - order) < 0.25
    assert [state.nfe for state in states] == [order * n for n in STEPS]


def test_mistakes_are_refused():
    x, path = normal((2, 2)), LinearVPPath()
    model = gaussian(path)
    nan_late = ProbabilityFlow(lambda x, t: x * (math.nan if t > 0.5 else 0.0), path)
    cases = [
        (lambda: run(model, x, start=0.0), "alpha > 0.*start later"),
        (lambda: SCHEDULES["log_snr"].times(path, 0.0, END, 5), "ratio is infinite at t = 0.0"),
        (
            lambda: ARC_LENGTH.times(path, START, 1.0, 5),
            "length of .* infinite at t = 1",
        ),
        (lambda: list(nan_late.solve(x, START, END)), "not finite at t"),
    ]
    for action, message in cases:
        with pytest.raises(UserError, match=message):
            action()
    assert run(gaussian(VPPath()), x, start=0.0).x.isfinite().all()


@pytest.mark.parametrize(
    ("path", "shape", "ends"),
    [(LinearVPPath(c=0.4), (1, 2, 2), (END, START)), (VPPath(), (1, 2, 2), (START, END))],
    ids=["linear c", "vp"],
)
def test_the_density_falls_along_the_flow_by_the_log_determinant(path, shape, ends):
    """log p_1(x_1) = log p_0(x_0) - log det, forward and back; by probes, within their error."""
    model, x = two_modes(path, 1e-5, shape), normal((4, *shape))
    state = run(model, x, 30, *ends, "rk4", unit_probes(x))
    lost = model.log_density(x, ends[0]) - model.log_density(state.x, ends[1])
    assert (state.log_det.sum(0) - lost).abs().max() < 3e-3 and lost.abs().max() > 0.5
    estimates = run(model, x, 30, *ends, "rk4", rademacher_probes(40, x, 0)).log_det
    assert estimates.shape == (40, 4)
    assert z_score(estimates, lost) < 4
    assert run(model, x).log_det.shape == (0, 4)


@every_schedule
@pytest.mark.parametrize("solver", SOLVERS)
def test_every_solver_in_every_schedule_scales_by_the_deviations_in_single_precision(
    solver, schedule
):
    """The log-determinant is that of the scale, whatever the point."""
    model, x, ends = gaussian(LinearVPPath()), normal((3, 1, 2, 2)), (0.9, 0.1)
    flow, single = ProbabilityFlow(model.exact_score, model.path, schedule), x.float()
    *_, state = flow.solve(single, *ends, solver, 40, unit_probes(single))
    assert state.x.dtype == torch.float32 and state.log_det.dtype == F64
    assert torch.allclose(state.x.double(), mapped(model, x, *ends), atol=2e-3)
    variance = model.moments(torch.tensor(ends, dtype=F64))[1][0]
    expected = math.prod(x.shape[1:]) / 2 * (variance[1] / variance[0]).log()
    assert (state.log_det.sum(0) - expected).abs().max() < 2e-2


def midpoint(model, start, end, schedule=ARC_LENGTH):
    return ImplicitMidpoint(ProbabilityFlow(model.exact_score, model.path, schedule), start, end)


@pytest.mark.parametrize(
    ("path", "shape"), [(LinearVPPath(), (2,)), (VPPath(), (1, 2, 2))], ids=["linear", "vp"]
)
def test_a_midpoint_step_has_its_inverse_and_determinant_in_every_batch(path, shape):
    """Against the Jacobian of the step by fifty iterations, as it stands."""
    step, x = (
        midpoint(two_modes(path, 1e-5, shape), 0.4, 0.7),
        normal((4, *shape)).requires_grad_(),
    )
    y, log_det = step.forward(x.detach())
    back, back_log_det = step.backward(y)
    assert (y - x).abs().max() > 0.1 and log_det.abs().min() > 1e-3
    assert (back - x).abs().max() < 1e-10 and (back_log_det + log_det).abs().max() < 1e-10
    middle = x
    for _ in range(50):
        middle = x + step.half * step.flow.rate(middle, step.t)
    assert torch.allclose(2 * middle - x, y, rtol=0, atol=1e-11)
    rows = [
        torch.autograd.grad(output, x, retain_graph=True)[0].flatten(1)
        for output in (2 * middle - x).flatten(1).sum(0)
    ]
    expected = torch.linalg.slogdet(torch.stack(rows, 1)).logabsdet
    assert (log_det - expected).abs().max() < 1e-9
    alone, single = step.forward(x[:1].detach()), step.forward(x.detach().float())
    assert torch.allclose(alone[0], y[:1], rtol=0, atol=1e-12)
    assert single[0].dtype == torch.float32 and single[1].dtype == F64
    assert (single[0] - y).abs().max() < 1e-4 and (single[1] - log_det).abs().max() < 1e-4


@every_schedule
def test_midpoint_steps_follow_the_flow_in_second_order(schedule):
    model, x, errors = gaussian(LinearVPPath()), normal((8, 2)), []
    for num in STEPS:
        times = schedule.times(model.path, 0.05, 0.9, num).tolist()
        point = x
        for ends in zip(times[:-1], times[1:], strict=True):
            point, _ = midpoint(model, *ends, schedule).forward(point)
        errors.append((point - mapped(model, x, 0.05, 0.9)).abs().mean().item())
    order = -np.polyfit(np.log(STEPS), np.log(errors), 1)[0]
    assert errors[-1] < 2e-3 and abs(order - 2) < 0.25


def test_a_midpoint_step_brings_again_what_it_took_back_or_refuses():
    """Where a step is too long its equation has several solutions, and the one that settles from
    y need not be the one that led to y."""
    model = ExactModel(LinearVPPath(), 1e-5, [[-0.8], [0.8]], [0.02, 0.02], (0.5, 0.5))
    with pytest.raises(UserError, match="take more steps"):
        midpoint(model, START, END).backward(model.data((2, 2)))
    step, taken = midpoint(two_modes(LinearVPPath(), 1e-3, (1,)), START, END), 0
    for y in torch.linspace(-1.5, 1.5, 31, dtype=F64).reshape(-1, 1, 1):
        try:
            again, _ = step.forward(step.backward(y)[0])
        except UserError as error:
            assert "take more steps" in str(error)
            continue
        taken += 1
        assert (again - y).abs().max() < 1e-8, f"{y.item()} came back as {again.item()}"
    assert 10 < taken < 31

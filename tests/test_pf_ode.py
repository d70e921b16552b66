"""The probability flow of known densities: its map, its marginals, and the order of its steps."""

import math

import numpy as np
import pytest
import torch
from exact import F64, ExactBridge, ExactModel, SinePath, normal, two_modes, z_score

from ebm_app.io.errors import UserError
from ebm_app.paths import LinearVPPath, SchrodingerBridgePath, VPPath
from ebm_app.paths.clocks import ARC_LENGTH, CLOCKS
from ebm_app.paths.divergence import ExactDivergence, Hutchinson, rademacher_probes
from ebm_app.paths.probability_flow import SOLVERS, ClockField, solve_pf_ode

PATHS = {"linear": LinearVPPath(), "linear c": LinearVPPath(c=0.4), "vp": VPPath()}
START, END = 1e-2, 0.999
STEPS = (16, 32, 64)


def gaussian(path):
    return ExactModel(path, 1e-5, [[0.7]], [0.5], stein_channels=1)


def run(model, x, num_steps=20, start=START, end=END, solver="heun", **settings):
    """The last state of the flow of an exact score."""
    field = ClockField(model.exact_score, model.path)
    *_, state = solve_pf_ode(field, x, start, end, solver, num_steps, **settings)
    return state


def mapped(model, x, start=START, end=END):
    """The exact flow of Gaussian data: (x - alpha mu) / sqrt(m) is constant along it."""
    t = torch.tensor([start, end], dtype=F64)
    mean, variance, *_ = model.moments(t)
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


def test_the_flow_of_a_bridge_from_noise_is_affine_too():
    path, shape = SchrodingerBridgePath(0.5), (1, 4, 4)
    model, x = ExactBridge(path, 1e-3, (0.0, 1.0), (0.7, 0.5)), normal((6, *shape))
    assert torch.allclose(run(model, x, 40, solver="rk4").x, mapped(model, x), rtol=0, atol=1e-3)


def test_states_say_where_they_are_and_what_they_cost():
    path, calls = LinearVPPath(), []
    model = gaussian(path)

    def score(x, t):
        calls.append(t)
        return model.exact_score(x, t)

    field = ClockField(score, path)
    states = list(solve_pf_ode(field, normal((3, 2)), START, END, "heun", 5))
    grid = ARC_LENGTH.grid(path, START, END, 6).tolist()
    assert [s.t for s in states] == grid[1:] and states[-1].t == END
    assert [s.step for s in states] == [1, 2, 3, 4, 5] and {s.num_steps for s in states} == {5}
    assert [s.nfe for s in states] == [2, 4, 6, 8, 10] and len(calls) == 10
    assert calls[::2] == grid[:-1] and calls[1::2] == grid[1:]
    only = run(model, normal((3, 2)), 1)
    assert only.step == 1 and only.t == END and only.x.isfinite().all()


@pytest.mark.parametrize("clock", CLOCKS.values(), ids=CLOCKS)
@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_the_grid_is_even_in_the_clock_and_keeps_its_ends(path, clock):
    grid = clock.grid(path, START, END, 9)
    gaps = clock.reading(path, grid).diff()
    assert grid.dtype == F64 and grid[0] == START and grid[-1] == END
    assert torch.allclose(gaps, gaps.mean().expand(8), rtol=1e-11)


@pytest.mark.parametrize("clock", CLOCKS.values(), ids=CLOCKS)
@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_the_rate_is_the_derivative_of_the_reading(path, clock):
    t = torch.linspace(START, END, 7, dtype=F64)
    step = 1e-6 * t * (1 - t)
    secant = (clock.reading(path, t + step) - clock.reading(path, t - step)) / (2 * step)
    assert torch.allclose(clock.rate(path, t), secant, rtol=1e-6)


def test_the_log_signal_to_noise_ratio_by_hand():
    t = torch.tensor([0.6], dtype=F64)
    ratio = LinearVPPath(c=0.4).log_snr(t)
    assert ratio.item() == pytest.approx(math.log(0.4 * 0.36 / 0.64))
    # of a bridge from noise: x_t = (1 - t) x0 + t x1 and its own noise
    bridge = SchrodingerBridgePath(0.5, c=2).log_snr(t).item()
    assert bridge == pytest.approx(math.log(2 * 0.36 / (0.16 + 0.25 * 0.24)))


def test_a_clock_that_is_infinite_at_an_end_is_refused():
    path = LinearVPPath()
    with pytest.raises(UserError, match="ratio is infinite at t = 0.0: start later"):
        CLOCKS["log_snr"].grid(path, 0.0, END, 5)
    with pytest.raises(UserError, match="arc length of the path is infinite at t = 1.0"):
        CLOCKS["clock"].grid(path, START, 1.0, 5)


def test_the_map_does_not_depend_on_the_clock():
    model, x = two_modes(LinearVPPath(), 1e-5, (1, 2, 2)), normal((16, 1, 2, 2))
    ends = []
    for clock in CLOCKS.values():
        field = ClockField(model.exact_score, model.path, clock)
        *_, state = solve_pf_ode(field, x, 0.01, 0.99, "dopri5", tolerance=1e-9)
        ends.append(state.x)
    assert torch.allclose(*ends, rtol=0, atol=1e-6)


def test_mistakes_are_refused():
    x, path = normal((2, 2)), LinearVPPath()
    model = gaussian(path)
    sine = ExactModel(SinePath(), 1e-5, [[0.7]], [0.5])
    with pytest.raises(UserError, match="SinePath has no velocity"):
        run(sine, x, 3)
    with pytest.raises(UserError, match="choose one of dopri5, heun, rk4"):
        run(model, x, 3, solver="euler")
    for solver in SOLVERS:
        with pytest.raises(UserError, match="start later"):
            run(model, x, 3, start=0.0, solver=solver)
    assert run(gaussian(VPPath()), x, 3, start=0.0).x.isfinite().all()


def test_a_score_that_is_not_finite_is_not_passed_on():
    def score(x, t):
        return torch.full_like(x, math.nan if t > 0.5 else 0.0)

    field = ClockField(score, LinearVPPath())
    for solver in SOLVERS:
        with pytest.raises(ValueError, match="not finite at t = 0"):
            list(solve_pf_ode(field, normal((2, 2)), START, END, solver))


@pytest.mark.parametrize(
    ("path", "shape", "ends"),
    [(LinearVPPath(), (2,), (END, START)), (VPPath(), (1, 4, 4), (START, END))],
    ids=["backward", "forward"],
)
def test_adaptive_steps_reach_their_tolerance_in_both_directions(path, shape, ends):
    """The error of a step is bounded, relative to the points; along the flow it may grow. The
    score is asked for between the ends alone, as often as the state says."""
    model, x, counts = gaussian(path), normal((6, *shape)), []
    exact = mapped(model, x, *ends)
    for tolerance in (1e-3, 1e-6):
        times = []

        def score(x, t, times=times):
            times.append(t)
            return model.exact_score(x, t)

        field = ClockField(score, path)
        (state,) = solve_pf_ode(field, x, *ends, "dopri5", tolerance=tolerance)
        assert (state.x - exact).abs().max() < 5 * tolerance * (1 + exact.abs().max())
        assert state.t == ends[1] and (state.step, state.num_steps) == (1, 1)
        assert min(times) >= START and max(times) <= END and len(times) == state.nfe
        counts.append(state.nfe)
    assert counts[0] < counts[1]


class RoundedUp(LinearVPPath):
    """Its clock inverse errs by a rounding, always to the same side."""

    side = 1

    def clock_inverse(self, tau):
        return super().clock_inverse(tau) * (1 + self.side * 1e-14)


class RoundedDown(RoundedUp):
    side = -1


@pytest.mark.parametrize(
    ("path", "ends"), [(RoundedUp(), (START, END)), (RoundedDown(), (END, START))]
)
def test_adaptive_steps_stay_between_the_ends_whatever_the_rounding(path, ends):
    """The solver asks for a reading of the clock that is the float64 next to that of the end."""
    model, times = gaussian(path), []

    def score(x, t):
        times.append(t)
        return model.exact_score(x, t)

    list(solve_pf_ode(ClockField(score, path), normal((2, 2)), *ends, "dopri5", tolerance=1e-3))
    assert min(times) >= START and max(times) <= END
    assert times.count(ends[1]) > 1


def change(model, state, x, start=START, end=END):
    """What log p_t(x) loses along the flow, by the closed form."""
    return model.log_density(x, start) - model.log_density(state.x, end)


def data_of(path, shape):
    """Data of two modes, but of one on a bridge."""
    is_bridge = isinstance(path, SchrodingerBridgePath)
    bridge = ExactBridge(path, 1e-3, (0.0, 1.0), (0.7, 0.5)) if is_bridge else None
    return bridge or two_modes(path, 1e-5, shape)


@pytest.mark.parametrize(
    ("path", "shape", "ends", "solver", "tolerance"),
    [
        (LinearVPPath(c=0.4), (1, 2, 2), (END, START), "rk4", 3e-3),
        (VPPath(), (1, 2, 2), (START, END), "rk4", 3e-3),
        (SchrodingerBridgePath(), (2,), (START, END), "dopri5", 1e-3),
    ],
    ids=["linear c", "vp", "bridge"],
)
def test_the_density_falls_along_the_flow_by_the_log_determinant(
    path, shape, ends, solver, tolerance
):
    """log p_1(x_1) = log p_0(x_0) - log det, forward and back, for each way to take it."""
    model, x = data_of(path, shape), normal((4, *shape))
    state = run(model, x, 30, *ends, solver, divergence=ExactDivergence())
    lost = change(model, state, x, *ends)
    assert (state.sums[0] - lost).abs().max() < tolerance
    assert lost.abs().max() > 0.5


@pytest.mark.parametrize("solver, shape", [("rk4", (1, 4, 4)), ("dopri5", (2,))])
def test_probes_estimate_the_log_determinant_within_their_error(shape, solver):
    """By 40 probes for each of 4 points."""
    model, x = two_modes(LinearVPPath(), 1e-5, shape), normal((4, *shape))
    probes = rademacher_probes(40, x, 0)
    settings = {"num_steps": 16, "solver": solver, "tolerance": 1e-4}
    state = run(model, x, **settings, divergence=Hutchinson(probes))
    assert state.sums.shape == (40, 4)
    assert z_score(state.sums, change(model, state, x)) < 4
    assert state.sums.std(0).min() > 0.01
    assert run(model, x, **settings).sums.shape == (0, 4)


@pytest.mark.parametrize(
    ("name", "dtype", "ends"),
    [
        ("heun", F64, (START, END)),
        ("heun", torch.float32, (END, START)),
        ("rk4", torch.float32, (START, END)),
        ("dopri5", torch.float32, (END, START)),
    ],
)
def test_every_solver_scales_by_the_deviations_and_keeps_the_dtype_of_the_points(
    name, dtype, ends
):
    """The log-determinant is that of the scale, whatever the point, in either direction."""
    model, x = gaussian(LinearVPPath()), normal((3, 1, 2, 2))
    state = run(model, x.to(dtype), 50, *ends, name, divergence=ExactDivergence())
    assert state.x.dtype == dtype and state.sums.dtype == F64 and state.sums.shape == (1, 3)
    assert torch.allclose(state.x.double(), mapped(model, x, *ends), atol=5e-3)
    variance = model.moments(torch.tensor(ends, dtype=F64))[1][0]
    expected = math.prod(x.shape[1:]) / 2 * (variance[1] / variance[0]).log()
    assert (state.sums - expected).abs().max() < (2e-2 if name == "heun" else 2e-4)

"""The probability flow of known densities: schedules, orders, costs and agreement of the solvers,
log-determinants by probes."""

import math
from typing import get_args

import numpy as np
import pytest
import torch
from exact import F64, ExactModel, generator, noise_of, normal, two_modes, z_score

from ebm_app.paths import LinearVPPath, VPPath
from ebm_app.paths.base import ARC_LENGTH, SCHEDULES
from ebm_app.sampling.ode import (
    ADAPTIVE,
    SOLVERS,
    Method,
    ProbabilityFlow,
    SolverSettings,
    probes_for,
    solve_flow,
)
from ebm_app.utils.errors import NumericalError
from ebm_app.utils.random import LIKELIHOODS, ImageNoise

PATHS = {"linear": LinearVPPath(), "linear c": LinearVPPath(c=0.4), "vp": VPPath()}
START, END = 1e-2, 0.999
STEPS = (16, 32, 64)
every_schedule = pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)


def gaussian(path):
    return ExactModel(path, 1e-5, [[0.7]], [0.5], stein_channels=1)


def run(
    model, x, num_steps=20, start=START, end=END, probes=None, method="multistep", tolerance=1e-4
):
    flow = ProbabilityFlow(model.exact_score, model.path, ARC_LENGTH, x, (start, end), probes)
    *_, state = solve_flow(flow, method, SolverSettings(num_steps, tolerance, tolerance))
    return state


def level(model, x, t):
    """Return the distribution function of the projection on the line of the modes. It is constant
    along the flow, which is one-dimensional there."""
    mean, variance, *_ = model.moments(torch.tensor([t], dtype=F64))
    direction = (model.means[1] / model.means[1].norm()).flatten()
    place = x.flatten(1) @ direction - (mean[:, 0].flatten(1) @ direction)[:, None]
    modes = torch.special.ndtr(place / variance.sqrt())
    return (model.log_weights.exp()[:, None] * modes).sum(0)


@every_schedule
@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_schedule_times_are_evenly_spaced_in_tau(path, schedule):
    for num in (1, 9):
        times = schedule.times(path, START, END, num)
        gaps = schedule.tau(path, times).diff()
        assert times.dtype == F64 and times[0] == START and times[-1] == END
        assert torch.allclose(gaps, gaps.mean().expand(num), rtol=1e-9) and gaps.min() > 0
    t = torch.linspace(START, END, 7, dtype=F64)
    step = 1e-6 * t * (1 - t)
    secant = (schedule.tau(path, t + step) - schedule.tau(path, t - step)) / (2 * step)
    assert torch.allclose(schedule.rate(path, t), secant, rtol=1e-6)


@pytest.mark.parametrize("method", [method for method in SOLVERS if method not in ADAPTIVE])
@pytest.mark.parametrize(
    "path, shape, ends",
    [
        (LinearVPPath(c=0.4), (1, 2, 2), (0.99, 0.1)),
        (VPPath(), (1, 4, 4), (START, END)),
    ],
)
def test_flow_converges_at_its_order(path, shape, ends, method):
    model, x = two_modes(path, 1e-5, shape), normal((64, *shape))
    before = level(model, x, ends[0])
    states = [run(model, x, n, *ends, method=method) for n in STEPS]
    errors = [(level(model, state.x, ends[1]) - before).abs().mean() for state in states]
    slope = -np.polyfit(np.log(STEPS), np.log(errors), 1)[0]
    assert errors[-1] < 1e-5 and abs(slope - 4) < 0.4


def test_solvers_agree_and_count_their_evaluations():
    assert get_args(Method) == tuple(SOLVERS) and {*ADAPTIVE} < {*SOLVERS}
    model, times = two_modes(LinearVPPath(c=0.4), 1e-5, (1, 2, 2)), []
    exact, x = model.exact_score, normal((6, 1, 2, 2))
    model.exact_score = lambda x, t: times.append(t) or exact(x, t)
    options, states = {"probes": probes_for(3, x, noise_of(x)), "tolerance": 1e-7}, {}
    for method, num_steps, nfe in (("multistep", 200, 201), ("rk4", 50, 200), ("dopri5", 1, None)):
        times.clear()
        states[method] = state = run(model, x, num_steps, method=method, **options)
        assert state.nfe == len(times) == (nfe or len(times)) > 20
        assert START <= min(times) and max(times) <= END
        assert state.s == 1 and state.x.dtype == state.log_det.dtype == F64
    assert states.keys() == SOLVERS.keys()
    for state in states.values():
        assert (state.x - states["dopri5"].x).abs().max() < 1e-5
        assert (state.log_det - states["dopri5"].log_det).abs().max() < 1e-4


def test_tolerance_holds_for_every_point_of_an_adaptive_solve():
    """Also for a point that needs more steps than the 200 others of its batch."""
    model = two_modes(LinearVPPath(), 1e-5, (2,))
    easy, hard = normal((12, 2))[[4, 10]].split(1)
    exact = run(model, hard, 100, method="rk4").x
    nfe = []
    for tolerance in (1e-3, 1e-5):
        options = {"method": "dopri5", "tolerance": tolerance}
        state = run(model, torch.cat([hard, easy.expand(200, -1)]), **options)
        assert (state.x[:1] - exact).abs().max() < 10 * tolerance
        assert state.nfe > run(model, easy, **options).nfe
        nfe.append(state.nfe)
    assert nfe[0] < nfe[1]


@pytest.mark.parametrize("method", SOLVERS)
def test_diverging_flow_is_refused(method):
    x = normal((2, 2))
    for score in (lambda x, t: x * (math.nan if t > 0.5 else 0), lambda x, t: x / 0):
        flow = ProbabilityFlow(score, LinearVPPath(), ARC_LENGTH, x, (0.1, END))
        with pytest.raises(NumericalError, match="from t = 0.1 to 0.999"):
            list(solve_flow(flow, method, SolverSettings(20, 1e-3, 1e-3)))
    assert run(gaussian(VPPath()), x, start=0.0, method=method).x.isfinite().all()


@pytest.mark.parametrize(
    ("path", "ends"), [(LinearVPPath(c=0.4), (END, START)), (VPPath(), (START, END))]
)
def test_log_determinant_is_the_change_of_log_density(path, ends):
    """log p_1(x_1) = log p_0(x_0) - log det, forward and back, exactly or by probes."""
    model, x = two_modes(path, 1e-5, (1, 2, 2)), normal((4, 1, 2, 2))
    state = run(model, x, 60, *ends, probes_for(0, x, noise_of(x)))
    lost = model.log_density(x, ends[0]) - model.log_density(state.x, ends[1])
    assert (state.log_det.sum(0) - lost).abs().max() < 1e-3 and lost.abs().max() > 0.5
    single = run(model, x.float(), 60, *ends, probes_for(0, x, noise_of(x))).log_det
    assert single.dtype == F64 and torch.allclose(single, state.log_det, rtol=0, atol=1e-3)
    estimates = run(model, x, 60, *ends, probes_for(40, x, noise_of(x))).log_det
    assert estimates.shape == (40, 4)
    assert z_score(estimates, lost) < 4
    assert run(model, x).log_det.shape == (0, 4)


@pytest.mark.parametrize("draw", [ImageNoise.sign_draws, ImageNoise.normal_draws])
def test_draws_of_a_point_do_not_depend_on_its_batch(draw):
    x, before = normal((60, 1, 4, 4)), torch.random.get_rng_state()
    order = torch.randperm(60, generator=generator(2))

    def draws(indices, seed=3):
        return draw(ImageNoise(seed, indices, LIKELIHOODS), 8, x[: len(indices)])

    whole = draws(range(60))
    assert torch.equal(draws(order.tolist()), whole[:, order])
    assert torch.equal(draws([2]), whole[:, 2:3])
    assert torch.equal(before, torch.random.get_rng_state())
    assert z_score(whole.flatten()[:, None]) < 4
    assert z_score(whole.flatten()[:, None].square() - 1) < 4 or draw is ImageNoise.sign_draws
    others = [draws([0], seed)[:, 0] for seed in (4, 5, 3 + 2**32)]
    rows = torch.stack([*whole.transpose(0, 1), *others]).flatten(1)
    correlations = torch.corrcoef(rows)[torch.triu_indices(len(rows), len(rows), 1).unbind()]
    assert correlations.abs().max() < 6 / math.sqrt(rows.shape[1])

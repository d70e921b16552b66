"""Annealed chains of exact models, whose log Z is 0: weights, brackets, inverses and resumption.

Data are 0.9 N(m e, s^2 I) + 0.1 N(-m e, s^2 I), wide enough that even chains which never move have
weights of a finite spread.
"""

import math
from dataclasses import replace

import pytest
import torch
from exact import F64, ExactModel, generator, normal

from ebm_app.evaluation.log_z.ais import Annealing, Chains
from ebm_app.evaluation.log_z.estimates import bennett, from_forward, from_reverse
from ebm_app.io.errors import UserError
from ebm_app.models.energy import TimeScoreEnergy
from ebm_app.numerics.tensors import sum_except_batch
from ebm_app.paths import LinearVPPath

#: shape -> (m, s)
DISTRIBUTIONS = {(16,): (1.4, 0.8), (1, 4, 4): (1.4, 0.8), (64,): (1.4, 0.88), (2,): (1.4, 0.7)}
PLAIN = Annealing(16, steps_per_temperature=4, num_leapfrog_steps=1, score="head")
TRANSPORTED = replace(PLAIN, num_temperatures=4, transport="flow", steps_per_temperature=2)
FLOW = replace(TRANSPORTED, steps_per_temperature=0)
DIFFUSION = replace(FLOW, transport="diffusion", transport_steps=32)
METHODS = {
    "plain": PLAIN,
    "transported": TRANSPORTED,
    "flow": FLOW,
    "diffusion": DIFFUSION,
}
slow = pytest.mark.slow


def mixture(shape, model=ExactModel, **settings):
    mean, std = DISTRIBUTIONS[shape]
    direction = torch.full(shape, mean / math.sqrt(math.prod(shape)), dtype=F64)
    means = torch.stack([direction, -direction])
    settings = {"eps": 0.01, "stein_channels": 1, **settings}
    return model(LinearVPPath(), settings.pop("eps"), means, (std, std), (0.9, 0.1), **settings)


def tuned(model, settings, seed=0):
    """Chains with their step sizes found."""
    chains = Chains(TimeScoreEnergy(model, 24), settings)
    g = generator(seed)
    x0 = torch.randn((64, *model.means.shape[1:]), generator=g, dtype=F64)
    assert len(list(chains.tune(x0, g))) in (0, settings.num_temperatures)
    return chains


def states(chains, start, seed, is_reverse):
    g = generator(seed)
    state = chains.start(start, g, is_reverse)
    yield state
    yield from chains.run(state, g, is_reverse)


def forward(chains, num, seed=1):
    shape = chains.energy.model.means.shape[1:]
    *_, state = states(chains, normal((num, *shape), seed), seed + 1, is_reverse=False)
    return state


def reverse(chains, num, seed=5):
    """From exact samples at the last time."""
    model = chains.energy.model
    t = torch.full((num,), chains.energy.end, dtype=F64)
    start = model.sample(t, (num, *model.means.shape[1:]), seed).xt
    *_, state = states(chains, start, seed + 3, is_reverse=True)
    return state


CASES = [
    pytest.param((16,), "plain", 0.22, 1500),
    *(pytest.param((16,), "plain", factor, 1500, marks=slow) for factor in (1.0, 4.5)),
    pytest.param((16,), "transported", 1.0, 1500),
    *(pytest.param((16,), "transported", factor, 1500, marks=slow) for factor in (0.22, 4.5)),
    pytest.param((16,), "flow", 1.0, 1500),
    pytest.param((16,), "diffusion", 1.0, 1500),
    pytest.param((64,), "diffusion", 1.0, 600),
    pytest.param((64,), "plain", 1.0, 600, marks=slow),
    *(pytest.param((64,), "plain", factor, 4000, marks=slow) for factor in (0.22, 4.5)),
    *(pytest.param((64,), "transported", f, 200, marks=slow) for f in (0.22, 1.0, 4.5)),
    pytest.param((64,), "flow", 1.0, 200, marks=slow),
]


@pytest.mark.parametrize("shape, name, factor, num", CASES)
def test_log_z_is_zero_whichever_way_the_step_and_the_direction(shape, name, factor, num):
    """Over a factor of 20 in the step sizes, from chains that hardly move to some that never do;
    and the mean log-weights of the two directions, AIS and RAISE, enclose it."""
    chains = tuned(mixture(shape), replace(METHODS[name], step_factor=factor))
    there, back = (run(chains, num).log_weight[-1] for run in (forward, reverse))
    below, above = from_forward(there), from_reverse(back)
    for found in (below, above):
        assert abs(found.log_z) < 3 * found.stderr < 0.6
    error = [w.std().item() / math.sqrt(num) for w in (there, back)]
    assert below.mean_log_weight < 3 * error[0] and above.mean_log_weight > -3 * error[1]
    if name == "plain":
        assert below.mean_log_weight < -4 * error[0] and above.mean_log_weight > 4 * error[1]
    joined = bennett(there[:100], back[:100])
    assert abs(joined.log_z) < 3.5 * joined.stderr


def test_weighted_end_points_have_the_masses_of_the_modes():
    """By the posterior weight of the heavy mode, whose mean is 0.9 exactly."""
    model = mixture((1, 4, 4))
    state = forward(tuned(model, TRANSPORTED), 2000)
    heavy = torch.softmax(model.modes(state.position, 0.99)[0], 0)[0]
    share = torch.softmax(state.log_weight[-1], 0)
    mass = (share * heavy).sum()
    error = (share * (heavy - 0.9)).square().sum().sqrt()
    assert abs(mass - 0.9) < min(3.5 * error, 0.02)


class Tilted(ExactModel):
    """The time score off by ``tilt`` in every unit of t, spread over the components."""

    tilt = 0.37

    def forward(self, x, t):
        output = super().forward(x, t)
        return output._replace(components=output.components + self.tilt / x[0].numel())


@pytest.mark.parametrize("name, shape", [("plain", (16,)), ("transported", (1, 4, 4))])
def test_a_wrong_time_score_shifts_log_z_by_its_own_integral(name, shape):
    """The same chains, since the Stein score and every ratio at one temperature are the same."""
    settings = replace(METHODS[name], num_temperatures=4)
    exact, wrong = (tuned(mixture(shape, kind), settings) for kind in (ExactModel, Tilted))
    shift = Tilted.tilt * (exact.energy.end - exact.energy.start)
    for run in (forward, reverse):
        right, off = run(exact, 40), run(wrong, 40)
        assert torch.allclose(off.position, right.position, rtol=0, atol=1e-9)
        moved = off.log_weight[-1] - right.log_weight[-1]
        assert torch.allclose(moved, torch.full_like(moved, shift), rtol=0, atol=1e-9)


def test_without_transitions_the_way_back_has_the_weights_of_the_way_there():
    """And they are log p_hat less the log density of the image of N(0, I)."""
    shape = (1, 4, 4)
    chains = tuned(mixture(shape), replace(FLOW, transport_steps=2))
    there = forward(chains, 50)
    *_, back = states(chains, there.position, 9, is_reverse=True)
    assert torch.allclose(back.log_weight[-1], there.log_weight[-1], rtol=0, atol=1e-9)
    x0 = normal((50, *shape), 1)
    assert (back.position - x0).abs().max() < 1e-9 and (there.position - x0).abs().max() > 0.1
    log_density, x = 0.0, there.position
    for flow in reversed(chains.transports):
        x, log_det = flow.backward(x, generator())
        log_density = log_density + log_det
    log_density = log_density + sum_except_batch(chains.energy.path.reference_log_density(x))
    expected = chains.energy.log_density(there.position) - log_density
    assert torch.allclose(there.log_weight[-1], expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("name", "is_reverse"), [("plain", False), ("transported", True)])
def test_chains_stopped_anywhere_go_on_as_if_they_had_not(name, is_reverse):
    shape = (1, 4, 4)
    chains = tuned(mixture(shape), replace(METHODS[name], num_temperatures=5))
    start = normal((6, *shape), 1)
    whole = list(states(chains, start, 2, is_reverse))
    assert len(whole) == chains.num_distributions + 1 == 7
    for state in whole:
        fresh = generator(99)
        rest = list(chains.run(state, fresh, is_reverse))
        assert len(state.acceptance) + len(rest) == chains.num_distributions
        for one, other in zip(rest[-1] if rest else state, whole[-1], strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
    *_, again = states(tuned(mixture(shape), chains.settings), start, 2, is_reverse)
    *_, other = states(chains, start, 3, is_reverse)
    assert torch.equal(again.log_weight, whole[-1].log_weight)
    assert not torch.equal(other.log_weight, whole[-1].log_weight)


@pytest.mark.parametrize("name", ["plain", "flow"])
def test_states_record_the_weights_and_the_acceptance_at_each_temperature(name):
    chains = tuned(mixture((16,)), replace(METHODS[name], num_temperatures=6))
    before = torch.random.get_rng_state()
    for is_reverse in (False, True):
        whole = list(states(chains, normal((5, 16), 1), 2, is_reverse))
        for count, state in enumerate(whole):
            assert state.log_weight.shape == (count + 1, 5) and state.log_weight.dtype == F64
            assert torch.equal(state.log_weight, whole[-1].log_weight[: count + 1])
            assert len(state.acceptance) == count
        read_only = whole[-1].acceptance[-1:] if name != "flow" else whole[-1].acceptance
        assert read_only.isnan().all()
        moved = whole[-1].acceptance[:-1]
        assert name == "flow" or ((moved > 0) & (moved <= 1)).all()
        assert whole[0].log_weight.abs().max() == 0
        steps = chains.settings.steps_per_temperature * chains.settings.num_leapfrog_steps
        assert whole[-1].nfe == chains.num_distributions + steps * (chains.num_distributions - 1)
    assert torch.equal(before, torch.random.get_rng_state())


def test_the_last_distribution_carries_the_weights_to_the_finer_rule():
    """Three nodes for the chains, few; two dozen at the end, and log Z is 0 by them."""
    model = mixture((2,))
    chains = tuned(model, replace(PLAIN, num_nodes=3))
    state = forward(chains, 2000)
    exact = model.log_density(state.position, chains.energy.end)
    assert (state.log_density - exact).abs().max() < 1e-3
    coarse = chains.coarse.log_density(state.position, chains.energy.end)
    assert (coarse - exact).abs().max() > 0.05
    found = from_forward(state.log_weight[-1])
    assert abs(found.log_z) < 3.5 * found.stderr < 0.3
    step = state.log_weight[-1] - state.log_weight[-2]
    assert torch.allclose(step, state.log_density - coarse, rtol=0, atol=1e-9)


def test_step_sizes_are_tuned_then_multiplied():
    model = mixture((16,))
    one, tenth = (tuned(model, replace(PLAIN, step_factor=f)) for f in (1.0, 0.1))
    assert torch.allclose(tenth.step_sizes, 0.1 * one.step_sizes, rtol=1e-12)
    assert one.step_sizes.shape == (16,)
    assert (forward(one, 500).acceptance[4:-1] - 0.65).abs().max() < 0.15


def test_settings_that_make_no_chains_are_the_users_mistake():
    for settings, message in (
        ({"steps_per_temperature": -1}, "steps_per_temperature -1"),
        ({"transport_steps": 0}, "transport_steps 0"),
        ({"transport": "train"}, "unknown transport 'train'"),
        ({"energy": "noised"}, "unknown energy 'noised'"),
        ({"num_leapfrog_steps": 0}, "num_leapfrog_steps must be at least 1"),
        ({"step_factor": 0.0}, "step_factor positive"),
        ({"step_factor": math.nan}, "step_factor positive"),
    ):
        with pytest.raises(UserError, match=message):
            Annealing(**settings)
    energy = TimeScoreEnergy(mixture((16,), stein_channels=0))
    for settings, message in (
        ({"num_temperatures": 0}, "at least 1 temperature"),
        ({"schedule": "cosine"}, "unknown schedule 'cosine'"),
        ({"score": "tail"}, "unknown score 'tail'"),
        ({"score": "head"}, "no Stein head"),
        ({"transport": "flow", "transport_score": "head"}, "no Stein head"),
        ({"num_nodes": 2}, "num_nodes must be at least 3"),
    ):
        with pytest.raises(UserError, match=message):
            Chains(energy, Annealing(**settings))

"""Annealed chains of exact models, whose log Z is 0: weights, brackets and both directions.

Data are 0.9 N(m e, s^2 I) + 0.1 N(-m e, s^2 I), wide enough that even chains which never move have
weights of a finite spread.
"""

import math
from dataclasses import replace

import pytest
import torch
from exact import F64, ExactModel, generator, normal

from ebm_app.annealing import methods, transports
from ebm_app.annealing.chains import ACCEPTANCE, Annealing, Chains, ChainState
from ebm_app.annealing.estimates import bennett, from_forward, from_reverse
from ebm_app.annealing.methods import METHODS, ChainRun
from ebm_app.nets.density import density_of
from ebm_app.paths import LinearVPPath

#: shape -> (m, s)
DISTRIBUTIONS = {(16,): (1.4, 0.8), (1, 4, 4): (1.4, 0.8), (64,): (1.4, 0.88), (2,): (1.4, 0.7)}
PLAIN = Annealing(num_temperatures=16, steps_per_temperature=4, num_leapfrog_steps=1, score="head")
FEW = replace(PLAIN, num_temperatures=4, steps_per_temperature=2)
#: name -> how the chains are transported, and their settings
KINDS = {
    "plain": (transports.none, PLAIN),
    "transported": (transports.flow, FEW),
    "diffused": (transports.diffusion, replace(PLAIN, steps_per_temperature=1)),
}
slow = pytest.mark.slow


def mixture(shape, model=ExactModel, **settings):
    mean, std = DISTRIBUTIONS[shape]
    direction = torch.full(shape, mean / math.sqrt(math.prod(shape)), dtype=F64)
    means = torch.stack([direction, -direction])
    settings = {"eps": 0.01, "stein_channels": 1, **settings}
    return model(LinearVPPath(), settings.pop("eps"), means, (std, std), (0.9, 0.1), **settings)


def tuned(model, name, **settings):
    """Chains with their step sizes found."""
    (transport, usual), g = KINDS[name], generator()
    chains = Chains(density_of(model, 24), replace(usual, **settings), transport)
    x0 = torch.randn((64, *model.means.shape[1:]), generator=g, dtype=F64)
    assert list(chains.tune(x0, g)) == list(range(1, chains.settings.num_temperatures + 1))
    return chains


def forward(chains, num, seed=1):
    shape = chains.energy.model.means.shape[1:]
    *_, state = chains.forward(normal((num, *shape), seed), generator(seed + 1))
    return state


def reverse(chains, num, seed=5):
    """From exact samples at the last time."""
    model = chains.energy.model
    t = torch.full((num,), chains.energy.end, dtype=F64)
    start = model.sample(t, (num, *model.means.shape[1:]), seed).xt
    *_, state = chains.reverse(start, generator(seed + 3))
    return state


CASES = [
    pytest.param((16,), "plain", 0.22, 1500, marks=pytest.mark.process),
    *(pytest.param((16,), "plain", factor, 2500, marks=slow) for factor in (1.0, 4.0)),
    pytest.param((16,), "transported", 1.0, 1000),
    *(pytest.param((16,), "transported", factor, 1500, marks=slow) for factor in (0.22, 4.5)),
    pytest.param((16,), "diffused", 1.0, 1000),
    *(pytest.param((16,), "diffused", factor, 1500, marks=slow) for factor in (0.22, 4.5)),
    pytest.param((64,), "plain", 1.0, 600, marks=slow),
    pytest.param((64,), "transported", 1.0, 200, marks=slow),
]


@pytest.mark.parametrize("shape, name, factor, num", CASES)
def test_log_z_is_zero_whichever_way_the_step_and_the_direction(shape, name, factor, num):
    """Over a factor of 20 in the step sizes, from chains that hardly move to some that never do;
    and the mean log-weights of the two directions, AIS and RAISE, enclose it."""
    chains = tuned(mixture(shape), name)
    chains.step_sizes = factor * chains.step_sizes
    there, back = (run(chains, num).log_weight for run in (forward, reverse))
    below, above = from_forward(there), from_reverse(back)
    for found in (below, above):
        assert abs(found.log_z) < 3 * found.stderr < 0.6
    error = [w.std().item() / math.sqrt(num) for w in (there, back)]
    assert below.mean_log_weight < 3 * error[0] and above.mean_log_weight > -3 * error[1]
    if name == "plain":
        assert below.mean_log_weight < -4 * error[0] and above.mean_log_weight > 4 * error[1]
    elif factor == 1:  # the way back undoes the way there, step by step
        assert 0.6 < error[1] / error[0] < 1.5
    joined = bennett(there[:100], back[:100])
    assert abs(joined.log_z) < 3.5 * joined.stderr


@pytest.mark.parametrize("name", METHODS)
def test_every_method_finds_it_from_noise_or_from_data(name, float64, monkeypatch):
    monkeypatch.setattr(methods, "BLOCK_SIZE", 100)
    shape, model = (1, 4, 4), mixture((1, 4, 4))
    settings = next(usual for kind, usual in KINDS.values() if kind is METHODS[name].transport)
    chains = Chains(density_of(model, 24), settings, METHODS[name].transport)
    data = model.sample(torch.full((400,), 0.99, dtype=F64), (400, *shape), 9).xt
    found = METHODS[name].estimate(ChainRun(chains, data, 3), 400)
    assert abs(found.estimate.log_z) < 3.5 * found.estimate.stderr < 1
    assert 0.3 < found.acceptance < 1


class Tilted(ExactModel):
    """The time score off by ``tilt`` in every unit of t, spread over the components."""

    tilt = 0.37

    def forward(self, x, t):
        output = super().forward(x, t)
        return output._replace(components=output.components + self.tilt / x[0].numel())


@pytest.mark.parametrize("name, shape", [("plain", (16,)), ("transported", (1, 4, 4))])
def test_a_wrong_time_score_shifts_log_z_by_its_own_integral(name, shape):
    """The same chains, since the Stein score and every ratio at one temperature are the same."""
    exact, wrong = (
        tuned(mixture(shape, kind), name, num_temperatures=4) for kind in (ExactModel, Tilted)
    )
    shift = Tilted.tilt * (exact.energy.end - exact.energy.start)
    for run in (forward, reverse):
        right, off = run(exact, 40), run(wrong, 40)
        assert torch.allclose(off.position, right.position, rtol=0, atol=1e-9)
        moved = off.log_weight - right.log_weight
        assert torch.allclose(moved, torch.full_like(moved, shift), rtol=0, atol=1e-9)


def test_the_last_distribution_carries_the_weights_to_the_finer_rule():
    """Three nodes for the chains, few; two dozen at the end, and log Z is 0 by them."""
    model = mixture((2,))
    chains = tuned(model, "plain", num_nodes=3)
    *_, before, state = chains.forward(normal((2000, 2), 1), generator(2))
    exact = model.log_density(state.position, chains.energy.end)
    assert (state.log_density - exact).abs().max() < 1e-3
    coarse = chains.energy.with_nodes(3).log_density(state.position, chains.energy.end)
    assert (coarse - exact).abs().max() > 0.05
    found = from_forward(state.log_weight)
    assert abs(found.log_z) < 3.5 * found.stderr < 0.3
    step = state.log_weight - before.log_weight
    assert torch.allclose(step, state.log_density - coarse, rtol=0, atol=1e-9)


def test_the_pilot_finds_steps_that_are_accepted_as_they_should():
    model = mixture((16,))
    chains = tuned(model, "plain")
    assert chains.step_sizes.shape == (16,)
    *states, _ = chains.forward(normal((500, 16), 1), generator(2))
    sums = torch.stack([state.acceptance[0] for state in states]) * torch.arange(1, 17)
    assert (sums.diff()[7:] - ACCEPTANCE).abs().max() < 0.05  # but at the first


@pytest.mark.parametrize("shift", [0.0, -6.0])
def test_the_error_holds_how_far_the_sides_are_apart_beyond_their_own(shift):
    """Reverse chains of weights N(s^2, s^2) agree with forward ones of N(0, s^2)."""

    def state(log_weight):
        return ChainState(log_weight, log_weight, log_weight, torch.ones(len(log_weight)))

    class Sides:
        def forward(self, num):
            return state(normal((num,), 4))

        def reverse(self, points):
            return state(1 + shift + normal((len(points),), 5))

    found = methods.two_sided(Sides(), 40)
    joined = found.estimate
    apart = [abs(joined.log_z - side.log_z) for side in (found.forward, found.reverse)]
    assert joined.stderr < 0.5 if shift == 0 else joined.stderr > 0.8 * max(apart) > 1

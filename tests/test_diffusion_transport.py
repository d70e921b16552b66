"""The reversed diffusion as a transport: weights against closed forms, for models with log Z 0."""

from dataclasses import replace

import pytest
import torch
from exact import ExactModel, generator, normal
from torch.testing import assert_close

from ebm_app.evaluation.log_z.ais import Annealing, Chains
from ebm_app.evaluation.log_z.estimates import from_forward, from_reverse
from ebm_app.models.energy import TimeScoreEnergy
from ebm_app.paths import LinearVPPath, VPPath

SETTINGS = Annealing(
    2,
    steps_per_temperature=0,
    transport="diffusion",
    transport_steps=3,
    transport_start=1e-5,
    score="head",
)
SHAPES = [(2,), (16,), (64,), (1, 4, 4)]


def chains_of(kind, shape, means, weights, path=None, settings=SETTINGS, std=0.6):
    """Chains of modes at ``means``, the same in every component."""
    centres = torch.stack([torch.full(shape, mean) for mean in means])
    path = path or LinearVPPath()
    model = kind(path, 0.01, centres, (std,) * len(means), weights, stein_channels=1)
    return Chains(TimeScoreEnergy(model, 24), settings)


def log_weights(chains, num, seed=1):
    """Of chains forward, and of chains back from exact samples."""
    model, shape = chains.energy.model, chains.energy.model.means.shape[1:]
    t = torch.full((num,), chains.energy.end, dtype=torch.float64)
    ends = model.sample(t, (num, *shape), seed + 1).xt
    found = []
    for start, is_reverse in ((normal((num, *shape), seed), False), (ends, True)):
        g = generator(seed + 5)
        *_, state = chains.run(chains.start(start, g, is_reverse), g, is_reverse)
        found.append(state.log_weight[-1])
    return found


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("num_steps", [1, 5])
def test_normal_data_give_every_chain_the_weight_1_in_steps_of_any_length(shape, num_steps):
    """There x_s given x_r is normal with exactly the mean and variance of the step."""
    settings = replace(SETTINGS, transport_steps=num_steps)
    for weights in log_weights(
        chains_of(ExactModel, shape, (0.4,), (1.0,), settings=settings), 20
    ):
        assert_close(weights, torch.zeros_like(weights), rtol=0, atol=1e-4)


class NoVariance(ExactModel):
    """Predicts no variance."""

    def forward(self, x, t):
        return super().forward(x, t)._replace(variance=None)


class Weak(ExactModel):
    """The score of N(0, I) and 95 percent of what is left of the true one."""

    def forward(self, x, t):
        output = super().forward(x, t)
        return output._replace(score=-0.05 * x + 0.95 * output.score)


@pytest.mark.parametrize("kind", [ExactModel, NoVariance, Weak])
@pytest.mark.parametrize("path", [LinearVPPath(), VPPath()], ids=["linear", "vp"])
def test_log_z_is_0_by_both_directions_whatever_the_steps_are_made_of(kind, path):
    settings = replace(SETTINGS, transport_steps=12, transport_start=1e-4)
    chains = chains_of(kind, (1, 2, 2), (-0.4, 0.5), (0.3, 0.7), path, settings)
    there, back = log_weights(chains, 4000)
    for found in (from_forward(there), from_reverse(back)):
        assert abs(found.log_z) < min(3.5 * found.stderr, 0.25)
    assert there.std() > 0.05


def test_the_spread_of_the_weights_falls_with_the_number_of_steps():
    """Like the square root of it: by 4 for sixteen times as many."""
    spreads = []
    for num in (4, 64):
        settings = replace(SETTINGS, transport_steps=num)
        chains = chains_of(ExactModel, (4,), (-0.4, 0.5), (0.3, 0.7), settings=settings)
        spreads.append(log_weights(chains, 1000)[0].std())
    assert 2.5 < spreads[0] / spreads[1] < 6


@pytest.mark.parametrize("energy", ["ratio", "along_pf_ode", "pf_ode_exact"])
def test_every_energy_of_an_exact_model_has_log_z_0(energy):
    settings = replace(SETTINGS, transport_steps=12, energy=energy, transport_start=1e-4)
    chains = chains_of(ExactModel, (1, 2, 2), (-0.4, 0.5), (0.3, 0.7), settings=settings)
    found = from_forward(log_weights(chains, 400)[0])
    assert abs(found.log_z) < 3.5 * found.stderr < 0.3


class Tilted(ExactModel):
    """The time score off by 0.37 in every unit of t."""

    def forward(self, x, t):
        output = super().forward(x, t)
        return output._replace(components=output.components + 0.37 / x[0].numel())


@pytest.mark.parametrize("energy", ["ratio", "along_pf_ode"])
def test_log_z_is_that_of_the_energy_asked_for(energy):
    """A wrong time score moves it by its own integral, and the chains not at all."""
    settings = replace(SETTINGS, energy=energy)
    right, off = (
        log_weights(chains_of(kind, (3,), (-0.4, 0.5), (0.3, 0.7), settings=settings), 30)
        for kind in (ExactModel, Tilted)
    )
    for one, other in zip(right, off, strict=True):
        assert_close(other - one, torch.full_like(one, 0.37 * 0.99), rtol=0, atol=1e-3)

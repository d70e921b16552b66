"""Annealed chains of exact models, whose log Z is 0.

The data are 0.9 N(m e, s^2 I) + 0.1 N(-m e, s^2 I), wide enough for chains that never move to have
weights of a finite variance.
"""

import math
from dataclasses import replace

import pytest
import torch
from exact import F64, ExactDensity, ExactModel, normal

from ebm_app.annealing import chains as module
from ebm_app.annealing.chains import METHODS, Annealing, ChainEnds, Chains, two_sided
from ebm_app.annealing.estimates import bennett, from_forward, from_reverse
from ebm_app.nets.density import density_of
from ebm_app.paths import LinearVPPath

PLAIN = Annealing(num_temperatures=16, steps_per_temperature=4, num_leapfrog_steps=1)
#: name -> whether chains are diffused, and their settings
KINDS = {"ais": (False, PLAIN), "diffused": (True, replace(PLAIN, steps_per_temperature=1))}


@pytest.fixture(autouse=True)
def large_blocks(monkeypatch):
    monkeypatch.setattr(module, "BLOCK_SIZE", 1000)
    monkeypatch.setattr(module, "NUM_PILOT", 64)


def mixture(shape):
    direction = torch.full(shape, 1.4 / math.sqrt(math.prod(shape)), dtype=F64)
    means = torch.stack([direction, -direction])
    return ExactModel(LinearVPPath(), 0.01, means, (0.8, 0.8), (0.9, 0.1), stein_channels=1)


def chains_of(density, name, num):
    """Return tuned chains, with ``num`` exact samples at the last time as data."""
    model, (is_diffused, settings) = density.model, KINDS[name]
    t = torch.full((num,), density.end, dtype=F64)
    data = model.sample(t, (num, *model.means.shape[1:]), 5).xt
    return Chains(density, settings, is_diffused, data, 3)


@pytest.mark.parametrize(
    "name, factor, num",
    [pytest.param("ais", 0.22, 1500, marks=pytest.mark.process), ("diffused", 1.0, 1000)],
)
def test_log_z_is_zero_in_both_directions(name, factor, num, float64):
    """Also for chains that hardly move. The mean log-weights of AIS and RAISE bracket log Z."""
    chains = chains_of(ExactDensity(mixture((16,))), name, num)
    chains.step_sizes = factor * chains.step_sizes
    u, v = chains.forward(num).log_weight, chains.reverse(chains.data).log_weight
    below, above = from_forward(u), from_reverse(v)
    for estimate in (below, above):
        assert abs(estimate.log_z) < 3 * estimate.stderr < 0.6
    errors = [w.std().item() / math.sqrt(num) for w in (u, v)]
    if name == "ais":
        assert below.mean_log_weight < -4 * errors[0] and above.mean_log_weight > 4 * errors[1]
    else:  # the reverse moves are the exact reverse of the forward moves
        assert 0.6 < errors[1] / errors[0] < 1.5
    combined = bennett(u[:100], v[:100])
    assert abs(combined.log_z) < 3.5 * combined.stderr


@pytest.mark.parametrize("name", METHODS)
def test_methods_find_log_z_by_the_time_integral(name, float64):
    energy = density_of(mixture((1, 4, 4)), 24)
    kind = "diffused" if name == "diffused" else "ais"
    is_diffused, estimate = METHODS[name]
    result = estimate(chains_of(energy, kind, 300), 300)
    assert is_diffused is KINDS[kind][0]
    assert abs(result.estimate.log_z) < 3.5 * result.estimate.stderr < 1
    assert 0.3 < result.acceptance < 1


@pytest.mark.parametrize("shift", [0.0, -6.0])
def test_stderr_includes_the_gap_between_directions(shift):
    """Reverse chains with log-weights N(s^2, s^2) agree with forward ones of N(0, s^2)."""

    class Sides:
        def forward(self, num):
            return ChainEnds(normal((num,), 4), normal((num,), 4), torch.ones(num))

        def reverse(self, points):
            weight = 1 + shift + normal((len(points),), 5)
            return ChainEnds(points, weight, torch.ones(len(points)))

    result = two_sided(Sides(), 40)
    combined = result.estimate
    gaps = [abs(combined.log_z - side.log_z) for side in (result.forward, result.reverse)]
    assert combined.stderr < 0.5 if shift == 0 else combined.stderr > 0.8 * max(gaps) > 1

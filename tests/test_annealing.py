"""Annealed HMC: the final distribution, the weights of the loop, step sizes tuned and frozen."""

import math

import pytest
import torch
from exact import F64, generator, normal, z_score

from ebm_app.numerics.tensors import standard_error, standard_normal_log_density, sum_except_batch
from ebm_app.sampling import hmc
from ebm_app.sampling.annealing import IntermediateDistribution, anneal, pilot

IMAGE = (1, 2, 2)


def geometric(log_density, num):
    """Targets (1 - b) log N(0, I) + b log_density with b = 1/K, ..., 1."""

    def at(b):
        def mix(x):
            return (1 - b) * standard_normal_log_density(x).flatten(1).sum(1) + b * log_density(x)

        return hmc.target_from_log_density(mix)

    return [at(float(b)) for b in torch.linspace(0, 1, num + 1)[1:]]


def two_modes(weight, distance, scale):
    """weight N(-distance, scale^2) + (1 - weight) N(distance, scale^2) on the first coordinate."""
    log_weight = torch.tensor([weight, 1 - weight], dtype=F64).log()
    mean = torch.tensor([-distance, distance], dtype=F64)

    def log_density(x):
        first, rest = x[:, :1], x[:, 1:]
        modes = log_weight - math.log(scale) - 0.5 * ((first - mean) / scale) ** 2
        return torch.logsumexp(modes, 1) - 0.5 * sum_except_batch(rest**2)

    return log_density


def shifted_gaussian(x):
    """N(1.5, 0.5^2) on each component, without its constant."""
    return -0.5 * sum_except_batch(((x - 1.5) / 0.5) ** 2)


def test_records_give_log_z_and_the_masses_of_modes_that_no_chain_crosses():
    """Modes ten standard deviations apart; Z = 2 pi, since the target leaves out two constants."""
    steps = torch.linspace(0.9, 0.4, 20, dtype=F64)
    targets = geometric(two_modes(0.25, 2.5, 0.5), 20)
    distributions = [
        IntermediateDistribution(t, h, 2) for t, h in zip(targets, steps, strict=True)
    ]
    x0 = normal((3000, 2), 3)
    log_weight, before = 0.0, sum_except_batch(standard_normal_log_density(x0))
    for result in anneal(x0, distributions, 4, generator(4)):
        log_weight = log_weight + result.entry_log_density - before
        before = result.state.log_density
    is_left = (result.state.position[:, 0] < 0).double()
    weight = torch.exp(log_weight - math.log(2 * math.pi))
    assert z_score(weight, 1.0) < 4 and standard_error(weight) < 0.04
    assert z_score(weight * is_left, 0.25) < 4 and z_score(is_left, 0.25) > 8
    assert z_score(weight * result.state.position[:, 1] ** 2, 1.0) < 4


def counted(target):
    calls = []

    def gradient(x):
        calls.append(len(x))
        return target.gradient(x)

    return target._replace(gradient=gradient), calls


def distributions(targets, steps, count):
    return [IntermediateDistribution(t, h, count) for t, h in zip(targets, steps, strict=True)]


def test_the_chains_end_on_a_shifted_gaussian_and_keep_what_the_pilot_found():
    """One leapfrog step, because with more the acceptance is not monotone in the step."""
    targets = geometric(shifted_gaussian, 8)
    guess = 0.15 * (1 + 3 * torch.linspace(1 / 8, 1, 8, dtype=F64)).rsqrt()
    tuned = pilot(normal((500, *IMAGE)), distributions(targets, guess, 20), 1, generator(), 120)
    steps = torch.stack([record.step_size for record in tuned])
    x0 = normal((4000, *IMAGE), 1)
    records = list(anneal(x0, distributions(targets, steps, 20), 1, generator(2)))
    samples = records[-1].state.position
    assert samples.shape == x0.shape and [r.index for r in records] == list(range(8))
    assert all(abs(record.acceptance - 0.65) < 0.08 for record in records)
    assert torch.equal(torch.stack([record.step_size for record in records]), steps)
    assert z_score(samples, 1.5) < 4 and z_score((samples - 1.5) ** 2, 0.25) < 4


def test_the_pilot_makes_some_transitions_more_and_runs_as_it_is_asked():
    target, calls = counted(hmc.target_from_log_density(shifted_gaussian))
    for num, more in ((2, 8), (40, 100)):
        given = distributions([target] * num, torch.full((num,), 0.3), 1)
        calls.clear()
        run = pilot(normal((4, 2)), given, 1, generator(), warmup_steps=3)
        assert not calls and next(run).nfe == len(calls)
        rest = list(run)
        assert len(calls) == num + num + 3 + more and [r.index for r in rest][-1] == num - 1


def test_a_run_depends_on_the_generator_alone():
    targets, steps = geometric(shifted_gaussian, 3), torch.tensor([0.5, 0.4, 0.3], dtype=F64)
    before, x0 = torch.random.get_rng_state(), normal((30, 2), 1)
    one, again, other = (
        list(anneal(x0, distributions(targets, steps, 2), 3, generator(seed)))[-1].state.position
        for seed in (7, 7, 8)
    )
    assert torch.equal(one, again) and not torch.equal(one, other)
    assert torch.equal(before, torch.random.get_rng_state())


def test_annealing_takes_a_step_size_for_each_chain():
    target = hmc.target_from_log_density(shifted_gaussian)
    steps = torch.tensor([1e-6, 0.3], dtype=F64).repeat(10)
    x0 = normal((20, *IMAGE))
    (result,) = anneal(x0, [IntermediateDistribution(target, steps, 1)], 2, generator())
    moved = (result.state.position - x0).flatten(1).norm(dim=1)
    assert moved[::2].max() < 1e-4 < moved[1::2].mean()
    assert torch.equal(result.step_size, steps)


def test_a_distribution_that_starts_outside_its_support_raises():
    target = hmc.Target(lambda x: x.log().sum(1), lambda x: 1 / x)
    run = anneal(
        normal((9, 2)), [IntermediateDistribution(target, torch.tensor(0.1), 1)], 1, generator()
    )
    with pytest.raises(ValueError, match="log_density of the current state is not finite"):
        next(run)

"""Annealed HMC: the final distribution, the weights of the loop, step sizes tuned and frozen."""

import math

import pytest
import torch
from exact import F64, generator, normal, z_score

from ebm_app.numerics.tensors import standard_error, standard_normal_log_density, sum_except_batch
from ebm_app.sampling import hmc
from ebm_app.sampling.annealed_hmc import AnnealedHMC
from ebm_app.sampling.annealing import IntermediateDistribution, anneal

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


def test_the_chains_end_on_a_shifted_gaussian():
    targets = geometric(shifted_gaussian, 8)
    settings = AnnealedHMC(steps_per_temperature=2, num_leapfrog_steps=4, final_steps=20)
    guess = torch.linspace(1.0, 0.5, 8, dtype=F64)
    x0 = normal((4000, *IMAGE), 1)
    results = list(settings.iterate(normal((500, *IMAGE)), x0, targets, guess, generator(2)))
    samples = results[-1].state.position
    assert samples.shape == x0.shape and [r.index for r in results] == list(range(8))
    assert all(0.5 < result.acceptance < 0.85 for result in results)
    assert z_score(samples, 1.5) < 4 and z_score((samples - 1.5) ** 2, 0.25) < 4


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


@pytest.mark.parametrize("guess", [0.15, 2.5])
def test_pilot_finds_the_scale_and_the_reported_run_keeps_it(guess):
    """One leapfrog step, because with more the acceptance is not monotone in the step."""
    targets = geometric(shifted_gaussian, 6)
    settings = AnnealedHMC(steps_per_temperature=5, num_leapfrog_steps=1, warmup_steps=120)
    width = (1 + 3 * torch.linspace(1 / 6, 1, 6, dtype=F64)).rsqrt()  # all are Gaussian
    pilot_x0, x0 = normal((500, *IMAGE)), normal((500, *IMAGE), 1)
    results = list(settings.iterate(pilot_x0, x0, targets, guess * width, generator()))
    acceptance = torch.stack([r.acceptance for r in results])
    assert acceptance.shape == (6,) and (acceptance - 0.65).abs().max() < 0.08
    steps = torch.stack([r.step_size for r in results])
    kept = [IntermediateDistribution(*level, 5) for level in zip(targets, steps, strict=True)]
    alone = list(anneal(x0, kept, 1, generator(1)))
    assert torch.equal(torch.stack([r.step_size for r in alone]), steps)
    assert (torch.stack([r.acceptance for r in alone]) - acceptance).abs().max() < 0.05


def test_the_pilot_makes_as_many_further_transitions_for_any_number_of_temperatures():
    """Three at the first to settle, and ten in all, spread over two, three or twenty."""
    target, guess = hmc.target_from_log_density(shifted_gaussian), torch.full((20,), 0.3)
    settings = AnnealedHMC(1, 1, final_steps=2, warmup_steps=3, pilot_steps=10)
    for num, expected in (
        (2, [9, 8]),
        (3, [7, 4, 7]),
        (20, [4, 2] + [1, 2] * 8 + [1, 4]),
    ):
        run = settings.pilot(normal((4, 2)), [target] * num, guess[:num], generator())
        counts = [result.nfe - 1 for result in run]
        assert sum(counts) == num + 2 + 3 + 10, counts
        assert sorted(counts[1:-1]) == sorted(expected[1:-1])


def test_a_run_moves_as_its_pilot_does_and_depends_on_the_generator_alone():
    targets, guess = geometric(shifted_gaussian, 3), torch.tensor([0.5, 0.4, 0.3], dtype=F64)
    settings, pilot_x0, x0 = AnnealedHMC(warmup_steps=3), normal((20, 2)), normal((30, 2), 1)
    before = torch.random.get_rng_state()
    *_, one = settings.iterate(pilot_x0, x0, targets, guess, generator(7))
    *_, again = settings.iterate(pilot_x0, x0, targets, guess, generator(7))
    *_, other = settings.iterate(pilot_x0, x0, targets, guess, generator(8))
    assert torch.equal(one.state.position, again.state.position)
    assert torch.equal(one.step_size, again.step_size)
    assert not torch.equal(one.state.position, other.state.position)
    assert torch.equal(before, torch.random.get_rng_state())


def counted(target):
    calls = []

    def gradient(x):
        calls.append(len(x))
        return target.gradient(x)

    return target._replace(gradient=gradient), calls


def test_nfe_counts_the_calls_of_the_field():
    target, calls = counted(hmc.target_from_log_density(shifted_gaussian))
    settings = AnnealedHMC(2, num_leapfrog_steps=3, final_steps=4, warmup_steps=5)
    guess = torch.full((3,), 0.3, dtype=F64)
    run = settings.iterate(normal((5, 2)), normal((7, 2)), [target] * 3, guess, generator())
    assert sum(result.nfe for result in run) == len(calls)
    assert calls.count(7) == 3 + (3 * 2 + 4) * 3
    assert calls.count(5) == calls.count(7) + 5 * 3


def test_distributions_run_only_as_they_are_asked_for():
    target, calls = counted(hmc.target_from_log_density(shifted_gaussian))
    settings, guess = AnnealedHMC(num_leapfrog_steps=3, warmup_steps=0), torch.full((4,), 0.3)
    run = settings.iterate(normal((5, 2)), normal((6, 2)), [target] * 4, guess, generator())
    assert len(calls) == 0
    assert next(run).nfe == len(calls) == 2 * 4
    assert next(run).index == 1 and len(calls) == 2 * 8
    pilot = settings.pilot(normal((5, 2)), [target] * 4, guess, generator())
    assert next(pilot).nfe == 4 and len(calls) == 2 * 8 + 4


def test_annealing_takes_a_step_size_for_each_chain():
    target = hmc.target_from_log_density(shifted_gaussian)
    steps = torch.tensor([1e-6, 0.3], dtype=F64).repeat(10)
    x0 = normal((20, *IMAGE))
    (result,) = anneal(x0, [IntermediateDistribution(target, steps, 1)], 2, generator())
    moved = (result.state.position - x0).flatten(1).norm(dim=1)
    assert moved[::2].max() < 1e-4 < moved[1::2].mean()
    assert torch.equal(result.step_size, steps)


def test_bad_settings_raise_before_any_work():
    target, calls = counted(hmc.target_from_log_density(shifted_gaussian))
    x0, g, one = normal((4, 2)), generator(), torch.ones(1, dtype=F64)
    with pytest.raises(ValueError, match="at least one distribution"):
        anneal(x0, [], 3, g)
    with pytest.raises(ValueError, match="num_steps"):
        anneal(x0, [IntermediateDistribution(target, one[0], -1)], 3, g)
    with pytest.raises(ValueError, match="at least one target"):
        AnnealedHMC().iterate(x0, x0, [], one, g)
    for steps in (one, torch.ones(2, 2), torch.ones(3)):
        with pytest.raises(ValueError, match="2 targets, but step sizes"):
            AnnealedHMC().iterate(x0, x0, [target] * 2, steps, g)
        with pytest.raises(ValueError, match="2 targets, but step sizes"):
            AnnealedHMC().pilot(x0, [target] * 2, steps, g)
    for name in (
        "steps_per_temperature",
        "num_leapfrog_steps",
        "final_steps",
        "warmup_steps",
        "pilot_steps",
    ):
        with pytest.raises(ValueError, match=name):
            AnnealedHMC(**{name: -1})
    assert not calls


def test_a_distribution_that_starts_outside_its_support_raises():
    target = hmc.Target(lambda x: x.log().sum(1), lambda x: 1 / x)
    run = anneal(
        normal((9, 2)), [IntermediateDistribution(target, torch.tensor(0.1), 1)], 1, generator()
    )
    with pytest.raises(ValueError, match="log_density of the current state is not finite"):
        next(run)

"""Annealed HMC by the field alone: its accept step, what it leaves invariant, its settings."""

import math

import pytest
import torch
from exact import F64, ExactModel, generator, normal, z_score

from ebm_app.io.errors import UserError
from ebm_app.models.energy import TimeScoreEnergy
from ebm_app.numerics.tensors import sum_except_batch
from ebm_app.paths import LinearVPPath, VPPath
from ebm_app.sampling import hmc
from ebm_app.sampling.field_hmc import AnnealedHMCSampler, no_test, transition, work_test


def gaussian(head=1, path=LinearVPPath()):  # noqa: B008 - a path has no state
    return TimeScoreEnergy(ExactModel(path, 1e-5, [[0.7]], [0.5], stein_channels=head), 24)


def run(sampler, energy=None, shape=(5, 3), seed=0):
    x0 = normal(shape, 3)
    return list(sampler.iterate(energy or gaussian(), x0, generator(seed)))


def curl(x):
    """A field that is no gradient."""
    return torch.sin(x.roll(1, 1)) - x.pow(3)


def test_the_energy_error_is_kinetic_energy_less_the_trapezoidal_work():
    """It telescopes to the ends for any field."""
    x, momentum, h = normal((6, 4)), normal((6, 4), 1), 0.23
    start = phase = hmc.Phase(x, momentum, curl(x))
    work = torch.zeros(6, dtype=F64)
    for _ in range(5):
        after = hmc.leapfrog(phase, curl, h, 1)
        step = (phase.gradient + after.gradient) / 2 * (after.position - phase.position)
        work, phase = work + step.sum(1), after
    kinetic = (phase.momentum.square() - start.momentum.square()).sum(1) / 2
    expected = (work - kinetic).clamp(max=0)
    found = work_test(h, start.gradient, phase.gradient)
    assert torch.allclose(found, expected, rtol=0, atol=1e-12)
    assert 0 < (found < -1e-3).sum() < 6


@pytest.mark.parametrize(
    "test, factor", [(work_test, 1.0), (no_test, 1 / (1 - 0.9**2 / 4))], ids=["work", "none"]
)
def test_transitions_leave_a_gaussian_or_the_leapfrogs_own_invariant(test, factor):
    """The trapezoidal rule is exact for its linear field; the leapfrog itself keeps p^2 / 2 +
    (1 - h^2 / 4) x^2 / 2."""
    shape, g = (6000, 1, 2, 2), generator(5)
    x = math.sqrt(factor) * normal(shape, 4)
    phase = hmc.Phase(x, x, -x)
    for _ in range(4):
        phase, probability = transition(phase, lambda y: -y, 0.9, 3, test, g)
    assert torch.equal(phase.gradient, -phase.position)
    assert z_score(phase.position.flatten(1)) < 4
    assert z_score(phase.position.flatten(1).square(), factor) < 4
    assert z_score((phase.position * x).flatten(1), factor) > 10  # they have moved
    mean = probability.mean()
    assert mean == 1 if test is no_test else 0.2 < mean < 0.95


def test_what_is_not_finite_is_refused_and_the_chain_stays():
    x = normal((4, 2))
    phase = hmc.Phase(x, x, -x)
    far, probability = transition(
        phase, lambda y: torch.full_like(y, math.inf), 0.1, 2, work_test, generator()
    )
    assert torch.equal(far.position, x) and torch.equal(far.gradient, -x)
    assert probability.eq(0).all()


@pytest.mark.parametrize("path", [LinearVPPath(), VPPath()], ids=["linear", "vp"])
def test_samples_are_the_denoised_marginal_of_a_gaussian(path):
    """The mean of x_1 given x_t has the variance of the data times that of its share in x_t."""
    energy = gaussian(path=path)
    x = run(AnnealedHMCSampler(num_steps=40, end_variance=0.01), energy, (2000, 1, 2, 2))[-1].x
    alpha_squared = 0.99
    variance = 0.25 * alpha_squared * 0.25 / (alpha_squared * 0.25 + 0.01)
    residual = x.flatten(1) - 0.7
    assert z_score(residual) < 4.5 and z_score(residual.square(), variance) < 4.5


def test_temperatures_grow_with_the_root_of_the_dimension_and_frames_count_evaluations():
    frames, more = (run(AnnealedHMCSampler(), shape=(3, d)) for d in (4, 16))
    assert abs(len(more) - 2 * len(frames)) <= 1 and len(frames) == 15
    assert [f.step for f in frames] == list(range(1, 16)) and frames[0].num_steps == 15
    assert [f.nfe for f in frames] == [*(5 * k for k in range(1, 15)), 5 * 15 + 4 * 5]
    assert all(0 <= f.acceptance <= 1 and f.x.shape == (3, 4) for f in frames)
    assert len(run(AnnealedHMCSampler(num_steps=3))) == 3


def test_the_step_follows_the_acceptance_and_never_grows_beyond_the_first():
    """A field that is refused makes it shrink until it is accepted."""
    energy = gaussian()

    class Steep(ExactModel):
        def forward(self, x, t):
            output = super().forward(x, t)
            return output._replace(score=30 * output.score)

    steep = TimeScoreEnergy(Steep(LinearVPPath(), 1e-5, [[0.0]], [0.5], stein_channels=1))
    settings = {"num_steps": 60, "final_steps": 0}
    found = run(AnnealedHMCSampler(**settings), steep, (64, 16))
    assert sum(f.acceptance for f in found[:5]) / 5 < 0.5
    assert sum(f.acceptance for f in found[-20:]) / 20 > 0.65
    found = run(AnnealedHMCSampler(acceptance="none", **settings), energy, (64, 16))
    assert {f.acceptance for f in found} == {1.0}


def test_the_same_generator_gives_the_same_samples_whatever_score_is_named():
    one, same, other = (run(AnnealedHMCSampler(num_steps=4), seed=s)[-1].x for s in (0, 0, 1))
    assert torch.equal(one, same) and not torch.equal(one, other)
    integral = run(AnnealedHMCSampler(num_steps=4, score="integral"))[-1].x
    assert torch.allclose(integral, one, atol=1e-4)
    without = run(AnnealedHMCSampler(num_steps=4), gaussian(head=0))[-1].x
    assert torch.equal(without, integral)
    assert sum_except_batch(one).isfinite().all()


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"num_steps": 0}, "num_steps must be at least 1, not 0"),
        ({"steps_per_temperature": 0}, "steps_per_temperature must be at least 1"),
        ({"num_leapfrog_steps": 0}, "num_leapfrog_steps must be at least 1"),
        ({"final_steps": -1}, "final_steps must be at least 0, not -1"),
        ({"step_size": 0.0}, "give one above 0, and one between 0 and 1"),
        ({"target_acceptance": 1.0}, "give one above 0, and one between 0 and 1"),
        ({"acceptance": "never"}, "unknown acceptance 'never': choose one of none, work"),
        ({"start": 0.99999}, "lower start"),
        ({"end_variance": 2.0}, "end_variance 2.0"),
        ({"score": "tail"}, "unknown score 'tail'"),
        ({"schedule": "cosine"}, "unknown schedule 'cosine'"),
    ],
)
def test_settings_that_make_no_run_are_the_users_mistake(settings, message):
    with pytest.raises(UserError, match=message):
        run(AnnealedHMCSampler(**settings))

"""Samplers: with exact scores the samples are distributed as the data at the end of the path."""

import pytest
import torch
from exact import F64, ExactModel, generator, normal, two_modes, z_score

from ebm_app.io.errors import UserError
from ebm_app.io.registry import make
from ebm_app.models.energy import TimeScoreEnergy
from ebm_app.paths import LinearVPPath, VPPath
from ebm_app.paths.clocks import ARC_LENGTH
from ebm_app.sampling.energy_hmc import ENERGIES
from ebm_app.sampling.samplers import SAMPLERS, EnergyHMCSampler, PFODESampler

MEAN, STD = 0.7, 0.5
PATHS = {"linear": LinearVPPath(), "vp": VPPath()}


def gaussian(path=PATHS["linear"], head=1, nodes=24, eps=1e-5, model=ExactModel):
    return TimeScoreEnergy(model(path, eps, [[MEAN]], [STD], stein_channels=head), nodes)


def run(sampler, energy, x0, seed=0):
    return list(sampler.iterate(energy, x0, generator(seed)))


def moments(energy, variance):
    """alpha, and mean and variance of p_t at the time where v_t is ``variance``; v = 1 - alpha^2
    on these paths."""
    alpha = (1 - variance) ** 0.5
    return alpha, alpha * MEAN, alpha**2 * STD**2 + variance


@pytest.mark.parametrize(
    "name, score, shape", [("linear", "integral", (2,)), ("vp", "head", (1, 2, 2))]
)
def test_the_flow_and_tweedie_are_exact_on_a_gaussian(name, score, shape):
    """Point by point: x0 moves along an affine map, whose end is shrunk towards the mean.

    The integral is left out on the VP path, where N(0, I), from which it starts, is not p_0.
    """
    energy, x0 = gaussian(PATHS[name]), normal((3, *shape))
    sampler = PFODESampler(80, score=score, end_variance=1e-2)
    x = run(sampler, energy, x0)[-1].x
    alpha, mean, variance = moments(energy, 1e-2)
    start, start_variance, *_ = energy.model.moments(torch.tensor([sampler.start], dtype=F64))
    end = mean + (variance / start_variance.squeeze()).sqrt() * (x0 - start.squeeze())
    denoised = MEAN + alpha * STD**2 / variance * (end - mean)
    assert (x - denoised).abs().max() < 1e-3


def test_energy_hmc_samples_a_gaussian():
    energy = gaussian(PATHS["vp"])
    sampler = EnergyHMCSampler(num_steps=6, final_steps=30, pilot_size=64, end_variance=0.01)
    frames = run(sampler, energy, normal((1500, 1, 2, 2)))
    _, mean, variance = moments(energy, 0.01)
    residual = frames[-1].x.flatten(1) - mean
    assert z_score(residual) < 4.5 and z_score(residual.square(), variance) < 4.5
    # few leapfrog steps on a Gaussian: acceptance is not monotone in the step, so not near 0.65
    assert all(0.2 < frame.acceptance <= 1 for frame in frames)


class Biased(ExactModel):
    """An exact energy, but a Stein head that is off by a third and a shift."""

    def forward(self, x, t):
        output = super().forward(x, t)
        return output._replace(score=output.score / 1.5 + 0.3)


def test_energy_hmc_is_right_whichever_score_drives_it():
    energy, x0 = gaussian(model=Biased), normal((1500, 2))
    sampler = EnergyHMCSampler(num_steps=6, final_steps=30, end_variance=0.01, score="head")
    x = run(sampler, energy, x0)[-1].x
    _, mean, variance = moments(energy, 0.01)
    residual = x.flatten(1) - mean
    assert z_score(residual) < 4.5 and z_score(residual.square(), variance) < 4.5
    flowed = run(PFODESampler(score="head"), energy, x0)[-1].x
    assert z_score(flowed.flatten(1) - MEAN) > 10  # the same head misleads the flow


@pytest.mark.parametrize("make, shape", [(PFODESampler, (2,)), (EnergyHMCSampler, (1, 2, 2))])
def test_head_and_integral_give_the_same_samples_of_an_exact_model(make, shape):
    model = two_modes(LinearVPPath(), 1e-5, shape, stein_channels=1)
    energy, x0 = TimeScoreEnergy(model, 40), normal((6, *shape))
    nodes = {"num_nodes": 40, "score_nodes": 40} if make is EnergyHMCSampler else {}
    head, integral = (
        run(make(num_steps=3, score=s, end_variance=0.01, **nodes), energy, x0)[-1].x
        for s in ("head", "integral")
    )
    assert torch.allclose(head, integral, atol=1e-4) and (head - x0).abs().max() > 0.1


def test_stein_score_takes_the_head_where_there_is_one():
    x = normal((4, 1, 2, 2))
    for head in (1, 0):
        energy = gaussian(head=head)
        exact = energy.model.exact_score(x, 0.7)
        assert torch.allclose(energy.stein_score()(x, 0.7), exact, atol=1e-6)
        assert torch.allclose(energy.stein_score("integral")(x, 0.7), exact, atol=1e-6)
    calls = []
    energy = gaussian()
    energy.model.register_forward_hook(lambda *args: calls.append(len(args[1][0])))
    energy.stein_score()(x, 0.7)
    assert calls == [4]
    energy.stein_score("integral")(x, 0.7)
    assert sum(calls[1:]) == 4 * energy.log_ratio(x, 0.0, 0.7).nfe


def test_frames_of_the_flow_count_steps_and_evaluations():
    energy, x0 = gaussian(head=0), normal((2, 3))
    frames = run(PFODESampler(num_steps=6), energy, x0)
    assert [f.step for f in frames] == [1, 2, 3, 4, 5, 6]
    assert [f.nfe for f in frames] == [2, 4, 6, 8, 10, 13]  # the last denoises
    assert all(f.num_steps == 6 and f.x.shape == (2, 3) for f in frames)
    assert all(f.acceptance is None and f.x.isfinite().all() for f in frames)
    assert [f.nfe for f in run(PFODESampler(num_steps=1), energy, x0)] == [3]


def test_frames_of_energy_hmc_count_temperatures_and_evaluations_with_the_pilot():
    """A temperature of n transitions of L leapfrog steps costs 1 + n L. Its pilot makes 4
    transitions more, and 10 more at the first."""
    energy, x0 = gaussian(), normal((5, 3))
    sampler = EnergyHMCSampler(
        num_steps=4, steps_per_temperature=2, num_leapfrog_steps=3, final_steps=6, pilot_size=7
    )
    frames = run(sampler, energy, x0)
    one, last = 1 + 2 * 3, 1 + 8 * 3
    further = 4 * 3
    assert [f.nfe for f in frames] == [
        *(10 * 3 + (2 * one + further) * k for k in (1, 2, 3)),
        10 * 3 + 6 * one + 2 * last + 4 * further,
    ]
    assert [(f.step, f.num_steps) for f in frames] == [(k, 4) for k in (1, 2, 3, 4)]
    assert all(f.x.shape == (5, 3) for f in frames)


def test_the_pilot_of_many_temperatures_is_no_longer_than_a_hundred_further_transitions():
    """Here of 26 temperatures, for which it would be 104."""
    sampler = EnergyHMCSampler(26, steps_per_temperature=1, num_leapfrog_steps=1, final_steps=0)
    assert run(sampler, gaussian(), normal((2, 3)))[-1].nfe == 2 * 26 * 2 + 10 + 100


#: of samplers of which the temperatures alone are looked at
SHORT = {"steps_per_temperature": 1, "num_leapfrog_steps": 1, "final_steps": 0}


def visited(energy, sampler):
    """The times at which the energy is asked for its density, each once."""
    times, log_density = [], TimeScoreEnergy.proposal_log_density
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            TimeScoreEnergy,
            "proposal_log_density",
            lambda self, x, t: times.append(t) or log_density(self, x, t),
        )
        run(sampler, energy, normal((2, 2)))
    return sorted(set(times))


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_temperatures_are_even_in_the_clock_or_in_t_and_stop_at_the_variance(path):
    clock, linear = (
        visited(gaussian(path), EnergyHMCSampler(4, name, **SHORT, end_variance=0.02))
        for name in ("clock", "linear")
    )
    for times in (clock, linear):
        assert len(times) == 4 and times[-1] == clock[-1]
    assert abs(path.variance(torch.tensor(clock[-1], dtype=F64)) - 0.02) < 1e-9
    assert torch.allclose(torch.tensor(linear), clock[-1] * torch.tensor([0.25, 0.5, 0.75, 1.0]))
    assert clock == ARC_LENGTH.grid(path, 0.0, clock[-1], 5)[1:].tolist()


def test_a_variance_that_is_never_reached_means_the_end_of_the_model():
    energy = gaussian(eps=0.1)
    assert visited(energy, EnergyHMCSampler(2, **SHORT, end_variance=0.0))[-1] == energy.end


@pytest.mark.parametrize("make", [PFODESampler, EnergyHMCSampler])
def test_samples_depend_on_the_start_and_the_generator_alone(make):
    energy, x0 = gaussian(), normal((4, 2))
    before = torch.random.get_rng_state()
    one, same, other = (run(make(num_steps=2), energy, x0, seed)[-1].x for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert torch.equal(one, other) == (make is PFODESampler)  # the flow adds no noise
    assert torch.equal(before, torch.random.get_rng_state()) and not one.requires_grad


@pytest.mark.parametrize("name", SAMPLERS)
def test_float32_stays_float32(name):
    sampler = make(SAMPLERS, "sampler", name, {"num_steps": 2})
    frames = run(sampler, gaussian(eps=1e-3), normal((4, 2)).float())
    assert frames[-1].x.dtype == torch.float32 and frames[-1].x.isfinite().all()


def test_a_sampler_is_made_by_name_with_its_settings():
    made = make(SAMPLERS, "sampler", "pf_ode", {"num_steps": 7, "score": None})
    assert made == PFODESampler(num_steps=7)
    made = make(SAMPLERS, "sampler", "annealed_hmc_energy", {"schedule": "linear"})
    assert made == EnergyHMCSampler(schedule="linear")
    made = make(SAMPLERS, "sampler", "annealed_hmc_energy", {"final_steps": 0, "pilot_size": None})
    assert (made.final_steps, made.pilot_size) == (0, EnergyHMCSampler.pilot_size)
    ready = PFODESampler(3)
    assert make(SAMPLERS, "sampler", ready, {}) is ready
    with pytest.raises(UserError, match="unknown sampler 'gibbs': choose one of annealed_hmc"):
        make(SAMPLERS, "sampler", "gibbs", {})
    with pytest.raises(UserError, match="sampler 'pf_ode' has no setting 'final_steps'"):
        make(SAMPLERS, "sampler", "pf_ode", {"final_steps": 3})


@pytest.mark.parametrize(
    "sampler, message",
    [
        (PFODESampler(score="tail"), "unknown score 'tail'"),
        (PFODESampler(score="head"), "no Stein head"),
        (PFODESampler(num_steps=0), "at least 1 step"),
        (PFODESampler(start=0.0), "start later"),
        (PFODESampler(start=0.9999), "lower start"),
        (PFODESampler(end_variance=1.0), "end_variance 1.0"),
        (EnergyHMCSampler(score="tail"), "unknown score 'tail'"),
        (EnergyHMCSampler(score="head"), "no Stein head"),
        (EnergyHMCSampler(schedule="cosine"), "unknown schedule 'cosine'"),
        (EnergyHMCSampler(num_steps=0), "num_steps must be at least 1"),
        (EnergyHMCSampler(steps_per_temperature=0), "steps_per_temperature must be at least 1"),
        (EnergyHMCSampler(num_leapfrog_steps=0), "num_leapfrog_steps must be at least 1"),
        (EnergyHMCSampler(pilot_size=0), "pilot_size must be at least 1"),
        (EnergyHMCSampler(energy="noised"), "unknown energy 'noised'"),
        (EnergyHMCSampler(final_steps=-1), "final_steps must be at least 0, not -1"),
        (EnergyHMCSampler(end_variance=2.0), "end_variance 2.0"),
    ],
)
def test_settings_that_make_no_run_are_the_users_mistake(sampler, message):
    with pytest.raises(UserError, match=message):
        run(sampler, gaussian(head=0), normal((2, 2)))


@pytest.mark.parametrize("name", ENERGIES)
@pytest.mark.parametrize("t", [0.05, 0.6, 0.99])
def test_the_energy_that_accepts_is_the_log_density_at_that_time(name, t):
    model = ExactModel(
        LinearVPPath(), 1e-4, [[-0.5], [0.7]], [0.5, 0.5], (0.3, 0.7), stein_channels=1
    )
    x = model.sample(torch.full((6,), t, dtype=torch.float64), (6, 1, 2, 2)).xt
    found = ENERGIES[name](TimeScoreEnergy(model), 24)(x, t)
    assert torch.allclose(found, model.log_density(x, t), rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ENERGIES)
def test_a_proposal_on_which_the_model_overflows_is_rejected(name):
    """The chains stay within the ball outside which the model is infinite, and the run goes on."""

    class Overflowing(ExactModel):
        def forward(self, x, t):
            output = super().forward(x, t)
            far = (x.flatten(1).norm(dim=1) > 6).reshape(-1, *(1,) * (x.ndim - 1))
            return output._replace(components=output.components.masked_fill(far, -torch.inf))

    model = Overflowing(LinearVPPath(), 1e-4, [[0.0]], [1.0], stein_channels=1)
    energy = TimeScoreEnergy(model, num_nodes=16)
    inside = normal((200, 4))
    inside = inside[inside.norm(dim=1) < 6]
    sampler = EnergyHMCSampler(num_steps=3, num_leapfrog_steps=3, final_steps=2, energy=name)
    *_, last = sampler.iterate(energy, inside, generator(1))
    assert last.x.norm(dim=1).max() < 6 and last.acceptance > 0.2

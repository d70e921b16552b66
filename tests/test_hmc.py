"""HMC: the leapfrog's geometry, and invariance measured from exact samples of known densities."""

import math

import pytest
import torch
from exact import F64, generator, normal, z_score

from ebm_app.numerics.tensors import standard_error, sum_except_batch
from ebm_app.sampling import hmc

CHAINS, TRANSITIONS = 20_000, 4
IMAGE = (2, 2, 3)
MASS = torch.tensor([0.6, 2.0, 1.5], dtype=F64)  # inverse mass, the same over channels and rows


class Gaussian:
    """Correlated, (B, 3): E yy^T = S, E y_i^4 = 3 S_ii^2, E (y^T S^-1 y)^2 = 15; y = x - m."""

    step_size = 0.45
    mean = torch.tensor([1.0, -2.0, 0.5], dtype=F64)
    factor = torch.tensor([[1.0, 0.0, 0.0], [0.8, 0.6, 0.0], [-0.3, 0.5, 1.5]], dtype=F64)
    covariance = factor @ factor.T
    precision = covariance.inverse()
    fourth = torch.cat([3 * covariance.diagonal() ** 2, torch.tensor([15.0], dtype=F64)])
    expected = torch.cat([torch.zeros(3, dtype=F64), covariance.flatten(), fourth])

    def target(self):
        def gradient(x):
            return (self.mean - x) @ self.precision

        return hmc.Target(lambda x: 0.5 * ((x - self.mean) * gradient(x)).sum(1), gradient)

    def sample(self, g, n=CHAINS):
        return self.mean + torch.randn(n, 3, generator=g, dtype=F64) @ self.factor.T

    def statistics(self, x):
        y = x - self.mean
        distance = ((y @ self.precision) * y).sum(1, keepdim=True)
        return torch.cat([y, (y[:, :, None] * y[:, None]).flatten(1), y**4, distance**2], 1)


class Logistic:
    """Independent logistic pixels (B, 2, 2, 3): variance pi^2 / 3, fourth moment 7 pi^4 / 15."""

    step_size = 1.1
    values = torch.tensor([0.0, math.pi**2 / 3, 7 * math.pi**4 / 15, 2 * math.log(2)], dtype=F64)
    expected = values.repeat_interleave(math.prod(IMAGE))

    def target(self):
        softplus = torch.nn.functional.softplus
        return hmc.target_from_log_density(lambda x: sum_except_batch(-x - 2 * softplus(-x)))

    def sample(self, g, n=CHAINS):
        return torch.logit(torch.rand(n, *IMAGE, generator=g, dtype=F64))

    def statistics(self, x):
        return torch.cat([x, x**2, x**4, x.abs()], 1).flatten(1)


FIELDS = {
    "exact": lambda gradient: gradient,
    "scaled": lambda gradient: lambda x: 0.65 * gradient(x),
    "rotated": lambda gradient: lambda x: 1.1 * gradient(x) - 0.2 * gradient(x).roll(1, -1),
}
every_field = pytest.mark.parametrize("distort", FIELDS.values(), ids=FIELDS)
every_density = pytest.mark.parametrize("known", [Gaussian(), Logistic()], ids=["D", "CHW"])


def largest_z(known, x):
    """Largest |mean - expected| over the statistics, in standard errors over the chains."""
    values = known.statistics(x)
    return ((values.mean(0) - known.expected) / values.std(0)).abs().max() * math.sqrt(len(x))


@pytest.mark.parametrize(
    "known, name", [(Gaussian(), "exact"), (Gaussian(), "rotated"), (Logistic(), "scaled")]
)
def test_exact_samples_stay_exact_whatever_the_field(known, name):
    g, (log_density, gradient) = generator(1), known.target()
    target = hmc.Target(log_density, FIELDS[name](gradient))
    state = hmc.init(known.sample(g), target)
    h = known.step_size * (0.8 + 0.4 * torch.rand(CHAINS, generator=g, dtype=F64))
    for _ in range(TRANSITIONS):
        state, info = hmc.step(state, target, h, 3, g, MASS)
        assert 0.3 < info.acceptance_probability.mean() < 0.97
        surplus = info.is_accepted.double() - info.acceptance_probability
        assert surplus.mean().abs() < 4 * 0.5 / math.sqrt(CHAINS)
    assert largest_z(known, state.position) < 4


@pytest.mark.parametrize("known, name", [(Gaussian(), "scaled"), (Logistic(), "exact")])
def test_without_the_accept_step_the_same_test_fails(known, name):
    g, field = generator(1), FIELDS[name](known.target().gradient)
    x = known.sample(g)
    assert largest_z(known, x) < 4
    for _ in range(TRANSITIONS):
        v = torch.randn(x.shape, generator=g, dtype=F64) / MASS.sqrt()
        x = hmc.leapfrog(hmc.Phase(x, v, field(x)), field, known.step_size, 3, MASS).position
    assert largest_z(known, x) > 8


def test_non_finite_proposals_are_rejected_and_the_law_is_kept():
    """Gamma(3, 1): log x is NaN for x < 0, and here the field is NaN there as well."""
    target = hmc.target_from_log_density(
        lambda x: sum_except_batch(2 * x.sqrt().square().log() - x)
    )
    g, count = generator(1), 0
    exact = -torch.rand(CHAINS, 3, generator=g, dtype=F64).log().sum(1, keepdim=True)
    state = hmc.init(exact, target)
    for _ in range(TRANSITIONS):
        state, info = hmc.step(state, target, 0.8, 2, g)
        bad = ~info.energy_error.isfinite()
        count, x = count + int(bad.sum()), state.position[:, 0]
        assert not info.acceptance_probability[bad].any() and not info.is_accepted[bad].any()
    assert count > 1000 and x.min() > 0
    for k, moment in (1, 3), (2, 12), (3, 60):
        assert abs((x**k).mean() - moment) < 4 * standard_error(x**k)


@every_field
def test_leapfrog_runs_backwards_when_the_momentum_is_flipped(distort):
    g, shape, field = generator(), IMAGE, distort(lambda x: -(x**3) + 0.5 * x.roll(1, -1))
    x, v = torch.randn(2, 50, *shape, generator=g, dtype=F64)
    h = 0.05 + 0.1 * torch.rand(50, generator=g, dtype=F64)
    end = hmc.leapfrog(hmc.Phase(x, v, field(x)), field, h, 7, MASS)
    assert (end.position - x).flatten(1).norm(dim=1).mean() > 0.5
    torch.testing.assert_close(end.gradient, field(end.position))
    back = hmc.leapfrog(end._replace(momentum=-end.momentum), field, h, 7, MASS)
    torch.testing.assert_close(back.position, x, rtol=0, atol=1e-10)
    torch.testing.assert_close(back.momentum, -v, rtol=0, atol=1e-10)


@every_field
def test_leapfrog_preserves_volume(distort):
    field = distort(lambda x: -(x**3) + 0.5 * x.roll(1, -1))

    def flow(z):
        start = hmc.Phase(z[None, :3], z[None, 3:], field(z[None, :3]))
        end = hmc.leapfrog(start, field, 0.3, 5, MASS)
        return torch.cat([end.position, end.momentum], 1)[0]

    z = torch.randn(6, generator=generator(), dtype=F64)
    assert abs(float(torch.autograd.functional.jacobian(flow, z).det()) - 1) < 1e-10


@every_density
def test_energy_error_is_second_order_in_the_step(known):
    target, steps, errors = known.target(), [0.1, 0.05, 0.025, 0.0125], []
    state = hmc.init(known.sample(generator(), 500), target)
    for h in steps:  # same seed, hence the same momenta; same length of trajectory
        _, info = hmc.step(state, target, h, round(0.5 / h), generator(3), MASS)
        errors.append(float(info.energy_error.abs().mean()))
    x, y = torch.tensor([steps, errors], dtype=F64).log()
    slope = ((x - x.mean()) * y).sum() / (x - x.mean()).square().sum()
    assert abs(float(slope) - 2) < 0.15


def test_autograd_target_equals_the_closed_form_and_leaves_no_graph():
    known, weight = Gaussian(), torch.nn.Parameter(torch.ones((), dtype=F64))
    x = known.sample(generator(), 20).requires_grad_()
    target = hmc.target_from_log_density(lambda y: weight * known.target().log_density(y))
    torch.testing.assert_close(target.gradient(x), known.target().gradient(x).detach())
    state, _ = hmc.step(hmc.init(x, target), target, 0.3, 2, generator())
    assert not any(value.requires_grad for value in state)


@every_density
def test_accepted_chains_carry_their_own_values_and_rejected_ones_do_not_move(known):
    target = known.target()
    old = hmc.init(known.sample(generator(), 200), target)
    new, info = hmc.step(old, target, 1.5 * known.step_size, 3, generator(), MASS)
    assert 0 < info.is_accepted.sum() < 200
    torch.testing.assert_close(new, hmc.init(new.position, target))
    assert torch.equal((new.position != old.position).flatten(1).any(1), info.is_accepted)


@pytest.mark.parametrize("name", hmc.HMCState._fields)
def test_non_finite_current_state_raises(name):
    target = Gaussian().target()
    state = hmc.init(torch.zeros(4, 3, dtype=F64), target)
    broken = getattr(state, name).clone()
    broken[1] = torch.inf
    with pytest.raises(ValueError, match=f"the {name} .* not finite in 1 chain"):
        hmc.step(state._replace(**{name: broken}), target, 0.1, 1, generator())
    with pytest.raises(ValueError, match="the position .* not finite in 4 chains"):
        hmc.init(torch.full((4, 3), torch.nan, dtype=F64), target)


def test_wrong_shapes_and_settings_raise():
    target, x = Gaussian().target(), torch.zeros(4, 3, dtype=F64)
    with pytest.raises(ValueError, match="log_density must return"):
        hmc.init(x, target._replace(log_density=lambda x: x.sum(1, keepdim=True)))
    for gradient in (lambda x: x[:, :1], lambda x: x.float()):
        with pytest.raises(ValueError, match="shape and the dtype"):
            hmc.init(x, target._replace(gradient=gradient))
    state = hmc.init(x, target)
    for h in (0.0, -0.1, math.nan, torch.tensor([0.1, 0.2]), torch.full((4, 1), 0.1)):
        with pytest.raises(ValueError, match="step_size"):
            hmc.step(state, target, h, 1, generator())
    with pytest.raises(ValueError, match="inverse_mass"):
        hmc.step(state, target, 0.1, 1, generator(), 0.0)
    with pytest.raises(RuntimeError):
        hmc.step(state, target, 0.1, 1, generator(), torch.ones(2))


def test_step_depends_on_the_generator_alone_and_keeps_dtypes():
    target, before = Logistic().target(), torch.random.get_rng_state()
    state = hmc.init(Logistic().sample(generator(), 10), target)
    one, _ = hmc.step(state, target, 0.5, 3, generator(5))
    two, _ = hmc.step(state, target, torch.full((10,), 0.5, dtype=F64), 3, generator(5))
    other, _ = hmc.step(state, target, 0.5, 3, generator(6))
    assert torch.equal(one.position, two.position)
    assert not torch.equal(one.position, other.position)
    assert torch.equal(before, torch.random.get_rng_state())
    target = hmc.Target(lambda x: -0.5 * sum_except_batch(x.double() ** 2), lambda x: -x)
    state = hmc.init(torch.zeros(8, *IMAGE), target)
    state, _ = hmc.step(state, target, 0.3, 3, generator(), MASS)
    assert [value.dtype for value in state] == [torch.float32, F64, torch.float32]


@pytest.mark.parametrize("shape, start, aim", [((), 0.2, 0.65), ((400,), 4.0, 0.8)])
def test_adapt_settles_at_the_target_acceptance(shape, start, aim):
    known, g, h, seen = Logistic(), generator(), torch.full(shape, start, dtype=F64), []
    state = hmc.init(known.sample(g, 400), known.target())
    for _ in range(250):
        state, info = hmc.step(state, known.target(), h, 3, g)
        h = hmc.adapt(h, info.acceptance_probability, aim)
        seen.append(info.acceptance_probability)
    settled = torch.stack(seen[-100:])
    assert abs(settled.mean() - aim) < 0.03


def test_adapt_moves_each_chain_by_its_own_acceptance_and_changes_nothing_in_place():
    h, acceptance = torch.tensor([1.0, 2.0]), torch.tensor([0.9, 0.1])
    new = hmc.adapt(h, acceptance, 0.65, 1.25)
    powers = torch.tensor([1.25 ** (0.25 / 0.35), 2 * 1.25 ** (-0.55 / 0.35)])
    torch.testing.assert_close([new, h], [powers, torch.tensor([1.0, 2.0])])


def curl(x):
    """A field that is no gradient."""
    return torch.sin(x.roll(1, 1)) - x.pow(3)


def test_by_the_work_the_energy_error_is_kinetic_energy_less_the_trapezoidal_rule():
    """It telescopes to the ends for any field."""
    x, momentum, h = normal((6, 4)), normal((6, 4), 1), 0.23
    start = phase = hmc.Phase(x, momentum, curl(x))
    work = torch.zeros(6, dtype=F64)
    for _ in range(5):
        after = hmc.leapfrog(phase, curl, h, 1)
        step = (phase.gradient + after.gradient) / 2 * (after.position - phase.position)
        work, phase = work + step.sum(1), after
    kinetic = (phase.momentum.square() - start.momentum.square()).sum(1) / 2
    nothing, size = torch.zeros(6, dtype=F64), torch.tensor(h, dtype=F64)
    found = hmc.work_error(hmc.Proposal(start, phase, nothing, nothing, size, size))
    assert torch.allclose(found, kinetic - work, rtol=0, atol=1e-12) and found.abs().max() > 1e-3


@pytest.mark.parametrize("name, factor", [("work", 1.0), ("none", 1 / (1 - 0.9**2 / 4))])
def test_a_score_alone_leaves_a_gaussian_or_the_leapfrogs_own_invariant(name, factor):
    """The trapezoidal rule is exact for its linear field; the leapfrog itself keeps p^2 / 2 +
    (1 - h^2 / 4) x^2 / 2."""
    x, g = math.sqrt(factor) * normal((6000, 1, 2, 2), 4), generator(5)
    target = hmc.score_target(lambda y: -y)
    state = hmc.init(x, target)
    for _ in range(4):
        state, info = hmc.step(state, target, 0.9, 3, g, error=hmc.ACCEPTANCES[name])
    assert torch.equal(state.gradient, -state.position)
    assert z_score(state.position.flatten(1)) < 4
    assert z_score(state.position.flatten(1).square(), factor) < 4
    assert z_score((state.position * x).flatten(1), factor) > 10  # they have moved
    mean = info.acceptance_probability.mean()
    assert mean == 1 if name == "none" else 0.2 < mean < 0.95

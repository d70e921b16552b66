"""The variational bound: attained by an exact score; any other loses what it must."""

import pytest
import torch
from exact import F64, ExactModel, normal, two_modes, z_score
from path_cases import SineDiffusion

from ebm_app.likelihood import VariationalBound
from ebm_app.likelihood.elbo import bound_rule
from ebm_app.nets.density import density_of
from ebm_app.paths import LinearVPPath, VPPath
from ebm_app.utils.tensors import sum_except_batch

PATHS = [LinearVPPath(), VPPath()]


@pytest.mark.parametrize(
    ("path", "shape", "t"),
    [
        pytest.param(PATHS[0], (1, 4, 4), 1 - 1e-4, marks=pytest.mark.process),
        (PATHS[1], (2,), 0.9),
        (SineDiffusion(), (2,), 0.5),
    ],
    ids=["linear late", "vp", "not variance preserving"],
)
def test_an_exact_score_attains_the_bound(path, shape, t):
    """Within the standard error that it states, which is the deviation of one example from
    another."""
    model = two_modes(path, 1e-4, shape, stein_channels=1)
    x = torch.cat([model.data((40, *shape)), normal((40, *shape), 1)])
    found = VariationalBound(num_draws=30)(density_of(model), x, t)
    deviation = found.value - model.log_density(x, t)
    assert z_score(deviation[:, None]) < 4
    share = deviation.square().mean() / found.error.square().mean()
    assert share.sqrt() == pytest.approx(1, abs=0.35)


def test_twelve_nodes_resolve_modes_as_narrow_as_grey_levels():
    """At the noise of the bundled models; nodes even in the log signal-to-noise ratio lose 0.2
    nats here."""
    means, weights = [[-1.0], [0.0], [1.0]], (0.3, 0.3, 0.4)
    model = ExactModel(LinearVPPath(), 1e-6, means, (0.004,) * 3, weights, 1)
    x, t = model.data((400, 1)), 1 - 1e-6
    found = VariationalBound(num_nodes=12, num_draws=32)(density_of(model), x, t)
    deviation = found.value - model.log_density(x, t)
    assert z_score(deviation[:, None]) < 4 and deviation.mean().abs() < 0.05


def test_a_wrong_score_loses_the_divergence_of_the_two_diffusions():
    """On average over the data, 1/2 int w E|s - s_true|^2 dl, which is known here."""
    path, pull, t = VPPath(), 0.7, 0.9

    class Pulled(ExactModel):
        def forward(self, x, t):
            output = super().forward(x, t)
            return output._replace(score=output.score - pull * x)

    model = Pulled(path, 1e-4, [[0.5]], [0.6], stein_channels=1)
    time = torch.tensor(t, dtype=F64)
    x1 = 0.5 + 0.6 * normal((4000, 2), 1)
    x = path.alpha(time) * x1 + path.variance(time).sqrt() * normal((4000, 2), 2)
    bound = VariationalBound()
    lost = model.log_density(x, t) - bound(density_of(model), x, t).value
    expected = 0.0
    for node in bound_rule(path, t, bound.start, bound.tail, bound.num_nodes):
        r = torch.tensor(node.time, dtype=F64)
        square = path.alpha(r).square() * (0.5**2 + 0.6**2) + path.variance(r)
        expected += node.weight / 2 * node.deviation**2 * pull**2 * 2 * square.item()
    assert expected > 0.5 and z_score(lost[:, None], expected) < 4


@pytest.mark.parametrize("draws", [1, 2])
def test_components_sum_to_the_value_and_two_draws_know_no_error(draws):
    model = two_modes(LinearVPPath(), 1e-4, (1, 4, 4), stein_channels=1)
    x = normal((3, 1, 4, 4))
    found = VariationalBound(num_draws=draws)(density_of(model), x, 0.9)
    assert torch.allclose(sum_except_batch(found.components), found.value, rtol=1e-12)
    assert found.error.isnan().all() and found.nfe == 16 * draws
    assert VariationalBound()(density_of(model), x, 0.9).nfe == 64


@pytest.mark.parametrize("path", PATHS, ids=["linear", "vp"])
def test_nodes_lie_on_the_transition_of_the_path(path):
    """a x + deviation e has, over x_t of the path, the mean and the variance of the path at r."""
    t = torch.tensor(0.99, dtype=F64)
    for node in bound_rule(path, 0.99, 1e-3, 1e-5, 9):
        r = torch.tensor(node.time, dtype=F64)
        assert node.a * path.alpha(t) == pytest.approx(path.alpha(r).item(), rel=1e-12)
        variance = node.a**2 * path.variance(t) + node.deviation**2
        assert variance == pytest.approx(path.variance(r).item(), rel=1e-9)


@pytest.mark.parametrize("draws", [3, 5])
def test_the_guess_of_the_residual_brings_no_bias_and_less_noise(draws):
    """Even by a variance that is wrong, and of a factor two and more where it is right; without a
    variance the reference's residual is the guess, as for a single draw. The stated error holds
    what the draws have in common, which is much where the variance is wrong."""

    class Other(ExactModel):
        factor = 0.5

        def forward(self, x, t):
            output = super().forward(x, t)
            return output._replace(variance=self.factor and self.factor * output.variance)

    model = Other(LinearVPPath(), 1e-4, [[-1.2], [1.2]], (0.1, 0.1), (0.3, 0.7), 1)
    model.means = model.means.expand(2, 16)
    x = model.data((300, 16))
    energy, bound = density_of(model), VariationalBound(num_draws=draws, num_nodes=24)
    wrong, exact = bound(energy, x, 0.99), model.log_density(x, 0.99)
    model.factor = 1.0
    right = bound(energy, x, 0.99)
    model.factor = None
    plain = bound(energy, x, 0.99)
    for found in (wrong, right, plain):
        deviation = found.value - exact
        assert z_score(deviation[:, None]) < 4
        share = deviation.square().mean() / found.error.square().mean()
        assert share.sqrt() == pytest.approx(1, abs=0.2)
    assert right.error.mean() < wrong.error.mean() < plain.error.mean()
    assert right.error.mean() < plain.error.mean() / 2

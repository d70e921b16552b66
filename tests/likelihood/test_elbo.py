"""The variational bound: attained by an exact score, lower by a known amount for another."""

import pytest
import torch
from exact import F64, ExactModel, normal, two_modes, z_score
from path_cases import SineDiffusion

from ebm_app.likelihood import VariationalBound
from ebm_app.likelihood.elbo import bound_rule
from ebm_app.nets.density import SteinHeadDensity, density_of
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
def test_elbo_of_an_exact_score_is_the_log_density(path, shape, t):
    """Within the stated standard error, which matches the spread over examples."""
    model = two_modes(path, 1e-4, shape, stein_channels=1)
    x = torch.cat([model.data((40, *shape)), normal((40, *shape), 1)])
    found = VariationalBound(num_draws=30)(density_of(model), x, t)
    deviation = found.value - model.log_density(x, t)
    assert z_score(deviation[:, None]) < 4
    share = deviation.square().mean() / found.error.square().mean()
    assert share.sqrt() == pytest.approx(1, abs=0.35)


def test_twelve_nodes_resolve_modes_as_narrow_as_levels():
    """Nodes spaced in the log signal-to-noise ratio lose 0.2 nats here."""
    means, weights = [[-1.0], [0.0], [1.0]], (0.3, 0.3, 0.4)
    model = ExactModel(LinearVPPath(), 1e-6, means, (0.004,) * 3, weights, 1)
    x, t = model.data((400, 1)), 1 - 1e-6
    found = VariationalBound(num_nodes=12, num_draws=32)(density_of(model), x, t)
    deviation = found.value - model.log_density(x, t)
    assert z_score(deviation[:, None]) < 4 and deviation.mean().abs() < 0.05


def test_elbo_of_a_wrong_score_loses_its_squared_error():
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
    rule = bound_rule(path, t, bound.num_nodes)
    square = path.alpha(rule.times).square() * (0.5**2 + 0.6**2) + path.variance(rule.times)
    expected = (rule.weights * rule.deviation.square() * square).sum().item() * pull**2
    assert expected > 0.5 and z_score(lost[:, None], expected) < 4


@pytest.mark.parametrize("draws", [1, 2])
def test_components_sum_and_two_draws_have_no_error(draws):
    model = two_modes(LinearVPPath(), 1e-4, (1, 4, 4), stein_channels=1)
    x = normal((3, 1, 4, 4))
    found = VariationalBound(num_draws=draws)(density_of(model), x, 0.9)
    assert torch.allclose(sum_except_batch(found.components), found.value, rtol=1e-12)
    assert found.error.isnan().all() and found.nfe == 16 * draws
    assert VariationalBound()(density_of(model), x, 0.9).nfe == 64


def test_control_variate_is_unbiased_and_reduces_noise():
    """Also with a wrong variance; with the right one the error at least halves. Without one, the
    residual of the reference is the guess."""

    class Scaled(ExactModel):
        factor = 0.5

        def forward(self, x, t):
            output = super().forward(x, t)
            return output._replace(variance=self.factor * output.variance)

    model = Scaled(LinearVPPath(), 1e-4, [[-1.2], [1.2]], (0.1, 0.1), (0.3, 0.7), 1)
    model.means = model.means.expand(2, 16)
    x = model.data((300, 16))
    density, bound = density_of(model), VariationalBound(num_draws=3, num_nodes=24)
    wrong, exact = bound(density, x, 0.99), model.log_density(x, 0.99)
    plain = bound(SteinHeadDensity(model), x, 0.99)
    model.factor = 1.0
    right = bound(density, x, 0.99)
    for found in (wrong, right, plain):
        deviation = found.value - exact
        assert z_score(deviation[:, None]) < 4
        share = deviation.square().mean() / found.error.square().mean()
        assert share.sqrt() == pytest.approx(1, abs=0.2)
    assert right.error.mean() < wrong.error.mean() < plain.error.mean()
    assert right.error.mean() < plain.error.mean() / 2

"""Estimators of log p_t: closed forms with exact models, and honest errors."""

import dataclasses

import pytest
import torch
from conftest import error_of
from exact import (
    F64,
    Exact,
    ExactModel,
    ExactScore,
    SineDiffusion,
    noise_of,
    normal,
    points,
    two_modes,
    z_score,
)

from ebm_app.likelihood import (
    PathIntegral,
    ProbabilityFlowDensity,
    TimeIntegral,
    VariationalBound,
    check_estimator,
)
from ebm_app.paths import LinearVPPath, VPPath
from ebm_app.utils.random import LIKELIHOODS, ImageNoise
from ebm_app.utils.tensors import expand_like, sum_except_batch

T = 0.99
#: Estimators with few steps.
QUICK = {
    "time_integral": TimeIntegral(),
    "rk45": TimeIntegral("rk45"),
    "path_integral": PathIntegral(num_nodes=12),
    "probability_flow": ProbabilityFlowDensity(num_steps=4, max_refinements=1),
    "probability_flow dopri5": ProbabilityFlowDensity(method="dopri5"),
    "elbo": VariationalBound(num_nodes=12),
}
#: Their points share the steps of an adaptive solve
ADAPTIVE = ("rk45", "probability_flow dopri5")


every_estimator = pytest.mark.parametrize("name", QUICK)


def mixture(shape, head=1):
    return two_modes(LinearVPPath(), 1e-4, shape, stein_channels=head)


@pytest.mark.parametrize(
    ("estimator", "shape", "tolerance"),
    [
        (TimeIntegral(), (1, 4, 4), 1e-4),
        (TimeIntegral("rk45"), (16,), 1e-4),
        (PathIntegral(), (64,), 1e-5),
        (ProbabilityFlowDensity(num_probes=0, start=1e-6), (1, 4, 4), 2e-3),
    ],
)
def test_estimators_match_the_density_of_a_mixture(estimator, shape, tolerance):
    model = mixture(shape)
    x = points(model, shape)
    found = estimator(Exact(model, 48), x, T, noise_of(x))
    assert found.value.shape == found.error.shape == (6,)
    assert found.value.dtype == found.error.dtype == F64
    assert (found.value - model.log_density(x, T)).abs().max() < tolerance
    if found.components is not None:
        assert torch.allclose(sum_except_batch(found.components), found.value, rtol=1e-12)


def test_probe_error_matches_the_deviation():
    """From the exact divergence, without bias; it falls as one over the root of the probes."""
    model = mixture((1, 4, 4))
    x, density = points(model, (1, 4, 4), 300), Exact(model)
    some, many, exact = (
        ProbabilityFlowDensity(12, max_refinements=1, num_probes=num)(density, x, 0.9, noise_of(x))
        for num in (12, 48, 0)
    )
    for found in (some, many):
        deviation = found.value - exact.value
        assert z_score(deviation[:, None]) < 4 and found.error.min() > 1e-9
        assert z_score((deviation.square() - found.error.square())[:, None]) < 4
        share = deviation.square().mean() / found.error.square().mean()
        assert share.sqrt() == pytest.approx(1, abs=0.2)
    fall = many.error.square().mean() / some.error.square().mean()
    assert fall.sqrt() == pytest.approx(0.5, abs=0.05)
    assert 0 < exact.error.max() < many.error.median() / 10


def test_steps_are_halved_until_each_point_converges():
    model = mixture((1, 4, 4))
    x, density = points(model, (1, 4, 4), 20), Exact(model)
    exact, values = model.log_density(x, T), []
    for num in (0, 1, 3, 6):
        flow = ProbabilityFlowDensity(4, num_probes=0, start=1e-6, max_refinements=num)
        values.append(flow(density, x, T, noise_of(x)))
    assert values[0].error.isnan().all()
    for found in values[1:]:
        assert ((found.value - exact).abs() < found.error + 1e-3).all()
    assert (values[-1].error < 2e-3 * 16).all() and values[1].error.max() > 2e-3 * 16
    assert values[1].nfe == 17 * (5 + 9) < values[-1].nfe < 17 * (4 * 2**7 + 3)


def test_path_integral_error_includes_rule_and_model():
    """Curves of an exact model differ by the rule alone, those of a wrong one by more."""
    model = mixture((16,))
    x, density = points(model, (16,), 20), Exact(model)
    exact = model.log_density(x, T)
    found = PathIntegral()(density, x, T, noise_of(x))
    assert ((found.value - exact).abs() <= found.error).all()
    model.forward = lambda x, t: ExactModel.forward(model, 1.05 * x, t)
    wrong = PathIntegral(num_draws=8)(density, x, T, noise_of(x))
    assert wrong.error.median() > 100 * (found.value - exact).abs().max()
    assert PathIntegral(num_draws=1)(density, x, T, noise_of(x)).error.isnan().all()


@every_estimator
def test_values_depend_on_point_and_seed_only(name):
    model = mixture((1, 4, 4))
    x, density = points(model, (1, 4, 4)), Exact(model)
    estimator = QUICK[name]
    whole = estimator(density, x, 0.9, noise_of(x))
    tolerance = 1e-3 if name in ADAPTIVE else 1e-10
    part = torch.tensor([3, 0])
    found = estimator(density, x[part], 0.9, ImageNoise(0, part.tolist(), LIKELIHOODS))
    assert torch.allclose(found.value, whole.value[part], rtol=0, atol=tolerance)
    if name not in ADAPTIVE:
        assert torch.allclose(found.error, whole.error[part], rtol=1e-6, atol=1e-9)
    is_flow = name.startswith("probability_flow")
    if is_flow or name in ("path_integral", "elbo"):
        other = estimator(density, x, 0.9, noise_of(x, 1))
        assert (other.value != whole.value).all()
    if is_flow:
        estimator = dataclasses.replace(estimator, num_probes=0)
    rough, fine = (estimator(density, each, 0.9, noise_of(x)) for each in (x.float(), x))
    assert rough.value.dtype == rough.error.dtype == F64
    assert torch.allclose(rough.value, fine.value, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("head", [1, 0], ids=["head", "integral"])
@every_estimator
def test_nfe_counts_forward_and_backward_passes(name, head):
    """A gradient of the time integral is one backward pass per node, a probe another per pass."""
    model, calls = mixture((2,), head), []
    model.register_forward_hook(lambda *args: calls.append(len(args[1][0])))
    x, estimator = points(model, (2,)), QUICK[name]
    if not estimator.supports(Exact(model)):
        message = error_of(check_estimator, estimator, Exact(model))
        assert message.startswith("Estimator path_integral needs") and head == 0
        assert "Stein head" in message.partition("Available for")[2]
        return
    nfe = estimator(Exact(model), x, 0.9, noise_of(x)).nfe
    is_flow = name.startswith("probability_flow")
    is_score = name == "elbo" or is_flow
    passes = (1 if head or not is_score else 2) * (3 if is_flow else 1)
    assert nfe * len(x) == passes * sum(calls)


class ShiftedByLabel(ExactModel):
    def forward(self, x, t, labels):
        return super().forward(x - 0.4 * expand_like(labels, x), t)


def test_refined_points_keep_their_labels():
    """The flow refines some of the four points more often than others."""
    model = ShiftedByLabel(LinearVPPath(), 1e-4, [[0.1]], [0.3], stein_channels=1)
    flow = ProbabilityFlowDensity(num_steps=3, max_refinements=4, num_probes=0)
    x, labels = model.data((4, 2)) + torch.arange(4)[:, None], torch.arange(4)

    def estimate(rows):
        density, noise = Exact(model), ImageNoise(0, rows.tolist(), LIKELIHOODS)
        return flow(density.conditioned_on(labels[rows]), x[rows], T, noise)

    whole, alone = estimate(labels), [estimate(row[None]) for row in labels]
    assert len({each.nfe for each in alone}) > 1
    for row in labels:
        torch.testing.assert_close(whole.value[row], alone[row].value[0], rtol=0, atol=1e-9)


PATHS = [LinearVPPath(), VPPath()]


@pytest.mark.parametrize(
    ("path", "shape", "t"),
    [
        (PATHS[0], (1, 4, 4), 1 - 1e-4),
        (PATHS[1], (2,), 0.9),
        (SineDiffusion(), (2,), 0.5),
    ],
    ids=["linear late", "vp", "not variance preserving"],
)
def test_elbo_of_an_exact_score_is_the_log_density(path, shape, t):
    """Within the stated standard error, which matches the spread over examples."""
    model = two_modes(path, 1e-4, shape, stein_channels=1)
    x = torch.cat([model.data((40, *shape)), normal((40, *shape), 1)])
    found = VariationalBound(num_draws=30)(Exact(model), x, t, noise_of(x))
    assert torch.allclose(sum_except_batch(found.components), found.value, rtol=1e-12)
    deviation = found.value - model.log_density(x, t)
    assert z_score(deviation[:, None]) < 4 and found.nfe == 30 * 16
    share = deviation.square().mean() / found.error.square().mean()
    assert share.sqrt() == pytest.approx(1, abs=0.35)


def test_control_variate_is_unbiased_and_reduces_noise():
    """Also with a wrong variance, or without one. The stated error is too large in all cases, by
    most where the guess is worst."""

    class Scaled(ExactModel):
        factor = 0.5

        def forward(self, x, t):
            output = super().forward(x, t)
            return output._replace(variance=self.factor * output.variance)

    model = Scaled(LinearVPPath(), 1e-4, [[-1.2], [1.2]], (0.1, 0.1), (0.3, 0.7), 1)
    model.means = model.means.expand(2, 16)
    x = model.data((1500, 16))
    density, exact = Exact(model), model.log_density(x, 0.99)

    def deviation(density):
        estimate = VariationalBound(num_nodes=24)(density, x, 0.99, noise_of(x))
        deviation = estimate.value - exact
        assert z_score(deviation[:, None]) < 4
        square = deviation.square().mean()
        return square.sqrt(), (square / estimate.error.square().mean()).sqrt()

    wrong, wrong_share = deviation(density)
    plain, plain_share = deviation(ExactScore(model, 32))
    model.factor = 1.0
    right, right_share = deviation(density)
    assert right < wrong < plain / 2
    assert 0.7 < right_share < 1 and 0.7 < wrong_share < 1 and 0.4 < plain_share < 1

"""Line integrals along curves of log p, and solves that are refined: their stated errors."""

import pytest
from exact import ExactModel, normal, two_modes
from test_estimators import T, mixture, points

from ebm_app.likelihood import NoisedIntegral, PFODEDensity
from ebm_app.models.energy import TimeScoreEnergy
from ebm_app.paths import LinearVPPath, VPPath


def test_steps_are_halved_until_a_point_settles_and_the_error_holds_what_is_left():
    """Points settle one by one; the evaluations are those of all, shared evenly."""
    model = mixture((1, 4, 4))
    x, energy = points(model, (1, 4, 4), 20), TimeScoreEnergy(model)
    exact, values = model.log_density(x, T), []
    for refinements in (0, 1, 3, 6):
        settings = {"num_steps": 4, "num_probes": 0, "start": 1e-6}
        values.append(PFODEDensity(**settings, max_refinements=refinements)(energy, x, T))
    assert values[0].error.isnan().all()
    for found in values[1:]:
        assert ((found.value - exact).abs() < found.error + 1e-3).all()
    assert (values[-1].error < 2e-3 * 16).all() and values[1].error.max() > 2e-3 * 16
    assert values[1].nfe == 16 + 32 < values[-1].nfe < 16 * (2**7 - 1)


def test_curves_of_other_noise_differ_by_the_rule_alone_and_those_of_a_wrong_model_by_more():
    """The error holds both."""
    model = mixture((16,))
    x, energy = points(model, (16,), 20), TimeScoreEnergy(model)
    for nodes, tolerance in ((16, 2e-2), (32, 1e-5)):
        one, other = (
            NoisedIntegral(num_nodes=nodes, num_draws=1, seed=seed)(energy, x, T).value
            for seed in (0, 1)
        )
        assert 0 < (one - other).abs().max() < tolerance
    exact = model.log_density(x, T)
    found = NoisedIntegral()(energy, x, T)
    assert ((found.value - exact).abs() <= found.error).all()
    model.forward = lambda x, t: ExactModel.forward(model, 1.05 * x, t)
    wrong = NoisedIntegral(num_draws=8)(energy, x, T)
    assert wrong.error.median() > 100 * (found.value - exact).abs().max()
    assert NoisedIntegral(num_draws=1)(energy, x, T).error.isnan().all()


@pytest.mark.parametrize("t", [0.6, 0.9])
@pytest.mark.parametrize("path", [LinearVPPath(c=0.4), VPPath()], ids=["linear c", "vp"])
def test_the_curve_ends_in_the_point_at_inner_times_too(path, t):
    """Where it behaves like a square root. N(0, I) is taken for p_0, which it is nearly on VP."""
    model = two_modes(path, 1e-4, (64,), stein_channels=1)
    x = normal((4, 64))
    found = NoisedIntegral()(TimeScoreEnergy(model), x, t)
    tolerance = 1e-8 if isinstance(path, LinearVPPath) else 5e-3
    assert (found.value - model.log_density(x, t)).abs().max() < tolerance
    assert (found.components.flatten(1).sum(1) - found.value).abs().max() < 1e-9


def test_a_model_of_the_time_score_alone_has_no_components():
    class Whole(ExactModel):
        def forward(self, x, t):
            output = super().forward(x, t)
            return output._replace(components=output.components.flatten(1).sum(1)[:, None])

    shape = (1, 4, 4)
    whole, parts = (
        kind(LinearVPPath(), 1e-4, [[0.3]], [0.5], (1.0,), 1) for kind in (Whole, ExactModel)
    )
    x = normal((3, *shape))
    found, expected = (NoisedIntegral()(TimeScoreEnergy(m), x, T) for m in (whole, parts))
    assert found.components is None and expected.components.shape == x.shape
    assert (found.value - expected.value).abs().max() < 1e-9

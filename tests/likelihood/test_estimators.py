"""Every estimator of log p_t gives the closed form with an exact model, and states its error."""

import dataclasses

import pytest
import torch
from exact import F64, ExactBridge, ExactModel, normal, two_modes, z_score

from ebm_app.likelihood import (
    ESTIMATORS,
    PathIntegral,
    ProbabilityFlowDensity,
    TimeIntegral,
    VariationalBound,
    make_estimator,
)
from ebm_app.nets.density import density_of
from ebm_app.paths import LinearVPPath, SchrodingerBridgePath, VPPath
from ebm_app.utils.errors import UserError
from ebm_app.utils.tensors import sum_except_batch

T = 0.99
Flow = ProbabilityFlowDensity
#: every estimator but the bound with settings that resolve the models here, and the error in nats
#: that is left
RESOLVED = {
    "time_integral": (TimeIntegral(), 1e-4),
    "paper": (TimeIntegral("rk45"), 1e-4),
    "path_integral": (PathIntegral(), 1e-5),
    "probability_flow": (Flow(num_probes=0, start=1e-6), 2e-3),
}
#: every estimator with few steps, for what does not need it exact
QUICK = {
    "time_integral": TimeIntegral(),
    "paper": TimeIntegral("rk45"),
    "path_integral": PathIntegral(num_nodes=12),
    "probability_flow": Flow(num_steps=4, max_refinements=1),
    "elbo": VariationalBound(num_nodes=8),
}
every_estimator = pytest.mark.parametrize("name", QUICK)


def mixture(shape, head=1):
    return two_modes(LinearVPPath(), 1e-4, shape, stein_channels=head)


def points(model, shape, num=6):
    """Data and noise."""
    return torch.cat([model.data((num // 2, *shape)), normal((num - num // 2, *shape), 1)])


def test_every_estimator_is_tried_here():
    """But for those that test_energy_model and test_diffusion_models are of."""
    found = {name: type(estimator) for name, estimator in QUICK.items()}
    assert found == {
        name: kind for name, kind in ESTIMATORS.items() if name not in ("energy", "discrete")
    }
    normalised = {name for name, kind in ESTIMATORS.items() if kind.normalised}
    assert normalised == {"probability_flow", "elbo", "discrete"}


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("time_integral", (1, 4, 4)),
        ("paper", (16,)),
        ("path_integral", (2,)),
        ("path_integral", (64,)),
        ("probability_flow", (1, 4, 4)),
    ],
)
def test_every_estimator_gives_the_log_density_of_a_mixture(name, shape):
    """And its components sum to it; a solve has none."""
    estimator, tolerance = RESOLVED[name]
    model = mixture(shape)
    x = points(model, shape)
    found = estimator(density_of(model, 48), x, T)
    assert found.value.shape == found.error.shape == (6,)
    assert found.value.dtype == found.error.dtype == F64
    assert (found.value - model.log_density(x, T)).abs().max() < tolerance
    assert (found.components is None) == (name in ("paper", "probability_flow"))
    if found.components is not None:
        assert torch.allclose(sum_except_batch(found.components), found.value, rtol=1e-12)


@pytest.mark.parametrize("t", [0.6, 0.9])
@pytest.mark.parametrize("path", [LinearVPPath(c=0.4), VPPath()], ids=["linear c", "vp"])
def test_the_noised_curve_ends_in_the_point_at_inner_times_too(path, t):
    """Where it behaves like a square root. N(0, I) is taken for p_0, which it is nearly on VP."""
    model = two_modes(path, 1e-4, (64,), stein_channels=1)
    x = normal((4, 64))
    found = PathIntegral()(density_of(model), x, t)
    tolerance = 1e-8 if isinstance(path, LinearVPPath) else 5e-3
    assert (found.value - model.log_density(x, t)).abs().max() < tolerance


def test_the_error_over_the_probes_is_honest():
    """Its square is in the mean that of the deviation from the exact divergence, which has no
    bias; and it falls as one over the root of the number of probes."""
    model = mixture((1, 4, 4))
    x, energy = points(model, (1, 4, 4), 300), density_of(model)
    some, many, exact = (
        Flow(8, max_refinements=1, num_probes=num)(energy, x, 0.9) for num in (12, 48, 0)
    )
    for found in (some, many):
        deviation = found.value - exact.value
        assert z_score(deviation[:, None]) < 4 and found.error.min() > 1e-9
        assert z_score((deviation.square() - found.error.square())[:, None]) < 4
        share = deviation.square().mean() / found.error.square().mean()
        assert share.sqrt() == pytest.approx(1, abs=0.2)
    fall = many.error.square().mean() / some.error.square().mean()
    assert fall.sqrt() == pytest.approx(0.5, abs=0.05)
    assert 0 < exact.error.max() < many.error.median() / 10  # of the solver, too little to be seen
    single = Flow(num_steps=4, num_probes=1)(energy, x[:3], T)
    assert single.value.isfinite().all() and single.error.isnan().all()


def test_steps_are_halved_until_a_point_settles_and_the_error_holds_what_is_left():
    """Points settle one by one; the evaluations are those of all, shared evenly."""
    model = mixture((1, 4, 4))
    x, energy = points(model, (1, 4, 4), 20), density_of(model)
    exact, values = model.log_density(x, T), []
    for refinements in (0, 1, 3, 6):
        settings = {"num_steps": 4, "num_probes": 0, "start": 1e-6}
        values.append(Flow(**settings, max_refinements=refinements)(energy, x, T))
    assert values[0].error.isnan().all()
    for found in values[1:]:
        assert ((found.value - exact).abs() < found.error + 1e-3).all()
    assert (values[-1].error < 2e-3 * 16).all() and values[1].error.max() > 2e-3 * 16
    assert values[1].nfe == 16 + 32 < values[-1].nfe < 16 * (2**7 - 1)


def test_curves_of_other_noise_differ_by_the_rule_alone_and_those_of_a_wrong_model_by_more():
    """The error holds both."""
    model = mixture((16,))
    x, energy = points(model, (16,), 20), density_of(model)
    for nodes, tolerance in ((16, 2e-2), (32, 1e-5)):
        one, other = (
            PathIntegral(num_nodes=nodes, num_draws=1, seed=seed)(energy, x, T).value
            for seed in (0, 1)
        )
        assert 0 < (one - other).abs().max() < tolerance
    exact = model.log_density(x, T)
    found = PathIntegral()(energy, x, T)
    assert ((found.value - exact).abs() <= found.error).all()
    model.forward = lambda x, t: ExactModel.forward(model, 1.05 * x, t)
    wrong = PathIntegral(num_draws=8)(energy, x, T)
    assert wrong.error.median() > 100 * (found.value - exact).abs().max()
    assert PathIntegral(num_draws=1)(energy, x, T).error.isnan().all()


@every_estimator
def test_a_value_depends_on_its_point_and_the_seed_alone_and_is_float64(name):
    """The solve with one step size for the batch: to its tolerance, 1e-6 of it and of one. Probes
    are drawn from the bytes of a point, so that they are others for a float32 one."""
    model = mixture((1, 4, 4))
    x, energy = points(model, (1, 4, 4)), density_of(model)
    estimator = QUICK[name]
    whole = estimator(energy, x, 0.9)
    tolerance = 1e-4 if name == "paper" else 1e-10
    for part in (slice(1, 2), torch.tensor([3, 0])):
        found = estimator(energy, x[part], 0.9)
        assert torch.allclose(found.value, whole.value[part], rtol=0, atol=tolerance)
        if name != "paper":
            assert torch.allclose(found.error, whole.error[part], rtol=1e-6, atol=1e-9)
    if hasattr(estimator, "seed"):
        other = dataclasses.replace(estimator, seed=1)(energy, x, 0.9)
        assert (other.value != whole.value).all()
    if name == "probability_flow":
        estimator = dataclasses.replace(estimator, num_probes=0)
    rough, fine = estimator(energy, x.float(), 0.9), estimator(energy, x, 0.9)
    assert rough.value.dtype == rough.error.dtype == F64
    assert torch.allclose(rough.value, fine.value, rtol=1e-4, atol=1e-3)


def test_a_model_without_a_head_takes_the_gradient_of_the_integral():
    """As the head's would be, where the head is exact and the nodes many; on float32 too."""
    x = points(mixture((2,)), (2,), 4)
    with_head, without = (density_of(mixture((2,), head), 24) for head in (1, 0))
    estimator = Flow(3)
    found, expected = estimator(without, x, 0.9), estimator(with_head, x, 0.9)
    assert (found.value - expected.value).abs().max() < 1e-3
    assert estimator(without, x.float(), 0.9).value.isfinite().all()
    assert not found.value.requires_grad


@pytest.mark.parametrize("head", [1, 0], ids=["head", "integral"])
@every_estimator
def test_nfe_counts_the_evaluations_of_the_network_for_an_example(name, head):
    model, calls = mixture((2,), head), []
    model.register_forward_hook(lambda *args: calls.append(len(args[1][0])))
    x = points(model, (2,))
    if name == "path_integral" and not head:
        with pytest.raises(UserError, match="this model has no Stein head"):
            QUICK[name](density_of(model), x, 0.9)
        return
    found = QUICK[name](density_of(model), x, 0.9)
    assert found.nfe * len(x) == sum(calls)


def test_an_estimator_is_made_by_name_with_its_settings_and_refuses_mistakes():
    assert make_estimator("probability_flow", {"num_steps": 7}, 5) == Flow(num_steps=7, seed=5)
    assert make_estimator("elbo", {"seed": 6}, 5) == VariationalBound(seed=6)
    assert make_estimator(QUICK["elbo"], {}, 5) is QUICK["elbo"]
    with pytest.raises(UserError, match="setting of the estimator ratio 'num_probes'"):
        make_estimator("time_integral", {"num_probes": 2})
    x = normal((2, 2))
    bridge = ExactBridge(SchrodingerBridgePath(), 1e-3, (0.0, 1.0), (0.7, 0.5), 1)
    for estimator in QUICK.values():
        with pytest.raises(UserError, match="no known reference density"):
            estimator(density_of(bridge), x, 0.9)

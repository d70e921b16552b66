"""Every estimator of log p_t against the closed form, with its own statement of its error."""

import dataclasses

import pytest
import torch
from exact import (
    F64,
    DequantisedHistograms,
    ExactBridge,
    ExactModel,
    PixelHistograms,
    normal,
    two_modes,
    z_score,
)

from ebm_app.io.errors import UserError
from ebm_app.likelihood import (
    ESTIMATORS,
    NoisedIntegral,
    PFODEDensity,
    RatioIntegral,
    RatioODE,
    VariationalBound,
    make_estimator,
)
from ebm_app.models.energy import TimeScoreEnergy
from ebm_app.numerics.tensors import sum_except_batch
from ebm_app.paths import LinearVPPath, SchrodingerBridgePath

T = 0.99
#: every estimator with settings that resolve the models here, and the error in nats that is left
RESOLVED = {
    "ratio": (RatioIntegral(), 1e-4),
    "paper": (RatioODE(), 1e-4),
    "noised": (NoisedIntegral(), 1e-5),
    "pf_ode": (PFODEDensity("rk4", 20, num_probes=0, start=1e-6), 2e-3),
}
#: every estimator with few steps, for what does not need it exact
QUICK = {
    "ratio": RatioIntegral(),
    "paper": RatioODE(),
    "noised": NoisedIntegral(num_nodes=12),
    "pf_ode": PFODEDensity(num_steps=4, max_refinements=1),
    "elbo": VariationalBound(num_nodes=8),
}
#: of every estimator a shape of points
ON_SHAPES = [
    ("ratio", (1, 4, 4)),
    ("paper", (2,)),
    ("noised", (1, 4, 4)),
    ("pf_ode", (1, 4, 4)),
    ("elbo", (1, 4, 4)),
]


def mixture(shape, head=1):
    return two_modes(LinearVPPath(), 1e-4, shape, stein_channels=head)


def points(model, shape, num=6):
    """Data and noise."""
    return torch.cat([model.data((num // 2, *shape)), normal((num - num // 2, *shape), 1)])


def test_every_estimator_is_tried_here():
    assert set(QUICK) == {name for name, _ in ON_SHAPES} == set(ESTIMATORS)
    for name, estimator in QUICK.items():
        assert type(estimator) is ESTIMATORS[name] and estimator.note
    normalised = {name for name, kind in ESTIMATORS.items() if kind.normalised}
    assert normalised == {"pf_ode", "elbo"}


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("ratio", (1, 4, 4)),
        ("paper", (16,)),
        ("noised", (2,)),
        ("noised", (64,)),
        ("noised", (1, 4, 4)),
        ("pf_ode", (1, 4, 4)),
    ],
)
def test_every_estimator_gives_the_log_density_of_a_mixture(name, shape):
    estimator, tolerance = RESOLVED[name]
    model = mixture(shape)
    x = points(model, shape)
    found = estimator(TimeScoreEnergy(model, 48), x, T)
    assert found.value.shape == found.error.shape == (6,)
    assert found.value.dtype == found.error.dtype == F64
    assert (found.value - model.log_density(x, T)).abs().max() < tolerance


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ratio", DequantisedHistograms),
        ("paper", PixelHistograms),
        ("noised", PixelHistograms),
        ("noised", DequantisedHistograms),
        ("pf_ode", DequantisedHistograms),
        ("pf_ode", PixelHistograms),
    ],
)
def test_every_estimator_gives_the_log_density_of_pixels(name, kind):
    """Of five levels, each as likely as it will, to twice the error of the mixture."""
    estimator, tolerance = RESOLVED[name]
    model = kind(LinearVPPath(), 1e-4, (0.1, 0.2, 0.4, 0.05, 0.25))
    x = model.levels((2, 1, 2, 2)).double() * 0.4 - 0.8 + 0.1 * normal((2, 1, 2, 2))
    found = estimator(TimeScoreEnergy(model, 48), x, 0.97)
    assert (found.value - model.log_density(x, 0.97)).abs().max() < 2 * tolerance


def test_components_are_the_parts_of_the_value():
    model = mixture((1, 4, 4))
    x = points(model, (1, 4, 4))
    found = RatioIntegral()(TimeScoreEnergy(model), x, T)
    assert found.components.shape == x.shape
    assert torch.allclose(sum_except_batch(found.components), found.value, rtol=1e-12)
    assert RatioODE()(TimeScoreEnergy(model), x, T).components is None
    flow = PFODEDensity(num_steps=2, num_probes=0)
    assert flow(TimeScoreEnergy(model), x, T).components is None


def test_the_error_over_the_probes_is_honest():
    """Its square is in the mean that of the deviation from the exact divergence, which has no
    bias; and it falls as one over the root of the number of probes."""
    model = mixture((1, 4, 4))
    x, energy = points(model, (1, 4, 4), 300), TimeScoreEnergy(model)
    some, many, exact = (
        PFODEDensity("rk4", 8, max_refinements=1, num_probes=num)(energy, x, 0.9)
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
    assert 0 < exact.error.max() < many.error.median() / 10  # of the solver, too little to be seen


def test_the_error_of_the_quadrature_bounds_it():
    model = mixture((16,))
    x = points(model, (16,), 20)
    for nodes in (12, 24):
        found = RatioIntegral()(TimeScoreEnergy(model, nodes), x, T)
        assert ((found.value - model.log_density(x, T)).abs() <= found.error + 1e-10).all()


def test_a_single_probe_has_a_value_and_no_known_error():
    """Without a word on standard error, which a warning of the library would be."""
    model = mixture((2,))
    found = PFODEDensity(num_steps=4, num_probes=1)(TimeScoreEnergy(model), points(model, (2,)), T)
    assert found.value.isfinite().all() and found.error.isnan().all()


def test_another_seed_takes_other_probes():
    model = mixture((1, 4, 4))
    x, energy = points(model, (1, 4, 4)), TimeScoreEnergy(model)
    one, same, other = (PFODEDensity("heun", 4, seed=s)(energy, x, T).value for s in (0, 0, 1))
    assert torch.equal(one, same) and (one - other).abs().min() > 1e-9


@pytest.mark.parametrize(("name", "shape"), ON_SHAPES)
def test_a_value_does_not_depend_on_its_batch(name, shape):
    """The solve with one step size for the batch: to its tolerance, 1e-6 of it and of one."""
    model = mixture(shape)
    x, energy = points(model, shape), TimeScoreEnergy(model)
    estimator = QUICK[name]
    whole = estimator(energy, x, 0.9)
    tolerance = 1e-4 if name == "paper" else 1e-10
    for part in (slice(1, 2), slice(2, 6), torch.tensor([3, 0])):
        found = estimator(energy, x[part], 0.9)
        assert torch.allclose(found.value, whole.value[part], rtol=0, atol=tolerance)
        if name != "paper":
            assert torch.allclose(found.error, whole.error[part], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("name", "shape"), ON_SHAPES)
def test_float32_points_give_float64_values(name, shape):
    """The probes are drawn from the bytes of a point, so that they are others here."""
    model = mixture(shape)
    x, energy = points(model, shape), TimeScoreEnergy(model)
    estimator = QUICK[name]
    if name == "pf_ode":
        estimator = dataclasses.replace(estimator, num_probes=0)
    rough, fine = estimator(energy, x.float(), 0.9), estimator(energy, x, 0.9)
    assert rough.value.dtype == rough.error.dtype == F64
    assert torch.allclose(rough.value, fine.value, rtol=1e-4, atol=1e-3)


def test_a_model_without_a_head_takes_the_gradient_of_the_integral():
    """As the head's would be, where the head is exact and the nodes many; on float32 too."""
    x = points(mixture((2,)), (2,), 4)
    with_head, without = (TimeScoreEnergy(mixture((2,), head), 24) for head in (1, 0))
    for estimator in (PFODEDensity("rk4", 3, num_probes=2),):
        found, expected = estimator(without, x, 0.9), estimator(with_head, x, 0.9)
        assert (found.value - expected.value).abs().max() < 1e-3
        integral = dataclasses.replace(estimator, score="integral")(with_head, x, 0.9)
        assert torch.allclose(integral.value, found.value, rtol=0, atol=1e-9)
        assert estimator(without, x.float(), 0.9).value.isfinite().all()
        assert not found.value.requires_grad
        with pytest.raises(UserError, match="no Stein head"):
            dataclasses.replace(estimator, score="head")(without, x, 0.9)


@pytest.mark.parametrize("head", [1, 0], ids=["head", "integral"])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_nfe_counts_the_evaluations_of_the_network_for_an_example(name, head):
    model, calls = mixture((2,), head), []
    model.register_forward_hook(lambda *args: calls.append(len(args[1][0])))
    x = points(model, (2,))
    if name == "noised" and not head:
        with pytest.raises(UserError, match="this model has no Stein head"):
            QUICK[name](TimeScoreEnergy(model), x, 0.9)
        return
    found = QUICK[name](TimeScoreEnergy(model), x, 0.9)
    assert found.nfe * len(x) == sum(calls)


def test_the_flow_has_its_own_density_whatever_its_score():
    """With a head that is wrong: the ratio knows nothing of it, and the flow's density is that of
    another distribution, which is normalised all the same."""

    class Pulled(ExactModel):
        def forward(self, x, t):
            output = super().forward(x, t)
            return output._replace(score=output.score - 0.7 * t[:, None] * x)

    path, axis = LinearVPPath(), torch.linspace(-8, 8, 801, dtype=F64)
    energy = TimeScoreEnergy(Pulled(path, 1e-4, [[0.5]], [0.6], stein_channels=1))
    exact = energy.model.log_density(axis[:, None], 0.9)
    ratio = RatioIntegral()(energy, axis[:, None], 0.9).value
    assert (ratio - exact).abs().max() < 1e-3
    found = PFODEDensity("rk4", 40, num_probes=0)(energy, axis[:, None], 0.9).value
    assert abs(torch.trapezoid(found.exp(), axis) - 1) < 1e-4
    assert (found.exp() - exact.exp()).abs().max() > 0.05


def test_an_estimator_is_made_by_name_with_its_settings_and_refuses_mistakes():
    assert make_estimator("pf_ode", {"num_steps": 7}, 5) == PFODEDensity(num_steps=7, seed=5)
    assert make_estimator("elbo", {"seed": 6}, 5) == VariationalBound(seed=6)
    assert make_estimator("ratio", {}, 5) == RatioIntegral()
    assert make_estimator(QUICK["elbo"], {}, 5) is QUICK["elbo"]
    with pytest.raises(UserError, match="setting of the estimator ratio 'num_probes'"):
        make_estimator("ratio", {"num_probes": 2})
    energy, x = TimeScoreEnergy(mixture((2,))), normal((2, 2))
    for estimator, message in (
        (PFODEDensity(solver="euler"), "unknown solver 'euler': choose one of heun, rk4"),
        (PFODEDensity(score="tail"), "unknown score 'tail'"),
        (RatioIntegral("euler"), "unknown integrator 'euler'"),
    ):
        with pytest.raises(UserError, match=message):
            estimator(energy, x, 0.9)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_two_sided_path_has_no_log_density(name):
    bridge = ExactBridge(SchrodingerBridgePath(), 1e-3, (0.0, 1.0), (0.7, 0.5), 1)
    with pytest.raises(UserError, match="no known reference density"):
        QUICK[name](TimeScoreEnergy(bridge), normal((2, 2)), 0.9)

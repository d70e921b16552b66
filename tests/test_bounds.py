"""The paper's error bounds: Theorem 4 and Proposition 5 against closed forms and derivatives, and
the script."""

import json
import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from conftest import call
from exact import F64, ExactBridge, ExactModel, generator, z_score
from torch.func import grad, hessian, vmap

from ebm_app.io.records import read_json
from ebm_app.models.time_score import ModelOutput
from ebm_app.objectives.regression import CTSM, CTSMv
from ebm_app.objectives.weighting import TimeScore
from ebm_app.paths import LinearVPPath, PathSample, SchrodingerBridgePath, VPPath
from studies.bounds import (
    OBJECTIVES,
    GaussianMixture,
    Regression,
    ScoreErrors,
    kl_bound,
    lipschitz_constant,
    ripple,
)

SHIFT = torch.tensor([[1.0, -0.5]], dtype=F64)
PAIR = torch.tensor([[-1.0, 0.5, 0.0], [1.5, 0.5, 0.3]], dtype=F64)
MODES = (0.6, 0.8), (0.3, 0.7)
PATHS = {"linear_vp": LinearVPPath(), "vp": VPPath(), "bridge": SchrodingerBridgePath(0.7)}
THETA = torch.tensor([1.0, -0.5, math.log(0.8)], dtype=F64)


def drawn(name, path, num):
    """A problem of Theorem 4, draws of its data and their L."""
    made = {
        "shift": GaussianMixture(PATHS[path], SHIFT, (1.0,)),
        "narrow": GaussianMixture(PATHS[path], SHIFT, (0.6,)),
        "mixture": GaussianMixture(PATHS[path], PAIR, *MODES),
    }[name]
    x = made.draw(num, generator())
    return made, x, lipschitz_constant(made, x)


def gaussian_kl(mean, std, num_steps):
    """KL of Theorem 4 for N(mean, std^2 I) and its exact score on the linear path, in numpy."""
    square, dim, t = float((mean**2).sum()), mean.size, np.arange(1, num_steps + 1) / num_steps
    u, u_dt = 1 + t**2 * (std**2 - 1), 2 * t * (std**2 - 1)
    spread = u_dt / (2 * u) * ((dim * std**2 + (1 - t) ** 2 * square) / u - dim)
    whole = (square + dim * std**2 - dim) / 2 - dim * math.log(std)
    return whole - (spread + (1 - t) * square / u).mean()


@pytest.mark.parametrize("path", PATHS)
def test_marginals_are_those_of_the_paths(path):
    if path == "bridge":  # whose reference model has one mode, on 1
        made = GaussianMixture(PATHS[path], torch.full((1, 2), 0.4, dtype=F64), (0.6,))
        exact = ExactBridge(PATHS[path], 0.1, (0.0, 1.0), (0.4, 0.6))
    else:
        made = GaussianMixture(PATHS[path], PAIR, *MODES)
        exact = ExactModel(PATHS[path], 0.1, PAIR, *MODES)
    x, t, step = made.draw(50, generator()), torch.tensor(0.37, dtype=F64), 1e-5
    assert torch.allclose(made.log_density(x, t), exact.log_density(x, t.item()), rtol=1e-12)
    assert torch.allclose(made.time_score(x, t), exact.time_score(x, t.expand(50)), rtol=1e-10)
    difference = made.time_score(x, t + step) - made.time_score(x, t - step)
    assert torch.allclose(made.time_score_dt(x, t), difference / (2 * step), rtol=1e-6, atol=1e-7)


def test_a_shift_along_the_linear_path_is_known_by_hand():
    """s = m.(x - t m): L = |m|^2 and KL = |m|^2 / 2K."""
    made, x, constant = drawn("shift", "linear_vp", 100)
    square = SHIFT.square().sum().item()
    assert torch.allclose(constant, torch.full_like(constant, square), rtol=1e-12)
    for num_steps in (1, 3, 50):
        found = kl_bound(made, x, constant, num_steps)
        assert found["kl"] == pytest.approx(square / (2 * num_steps), rel=1e-9)
        assert found["kl_stderr"] < 1e-12 and found["estimation"] == 0
        assert found["ratio"] == pytest.approx(math.sqrt(2), rel=1e-9)


@pytest.mark.parametrize(
    ("name", "path"), [("narrow", "linear_vp"), ("mixture", "vp"), ("mixture", "bridge")]
)
def test_the_bound_holds_at_every_number_of_steps(name, path):
    made, x, constant = drawn(name, path, 500)
    for size in (0.0, 0.1):
        for num_steps in (1, 3, 16):
            found = kl_bound(made, x, constant, num_steps, ripple(size))
            chain = (found["kl"] ** 2, found["mean_square"], found["bound"])
            assert all(a <= b * (1 + 1e-9) for a, b in pairwise(chain))
            if name == "narrow" and size == 0:
                expected = gaussian_kl(SHIFT.numpy(), 0.6, num_steps)
                assert abs(found["kl"] - expected) < 4 * found["kl_stderr"]


def loss(regression, theta, sample):
    """Losses (B,) by the package's objective, for CTSM-v the sum over components."""
    is_ctsm = regression.objective == "ctsm"
    objective = (CTSM if is_ctsm else CTSMv)(TimeScore())
    model = lambda x, t: ModelOutput(regression.components(theta, x, t), None)  # noqa: E731
    factor = 1 if is_ctsm else sample.x1.shape[1]
    return factor * objective(model, regression.path, sample, torch.ones_like(sample.t))


@pytest.mark.parametrize("path", [LinearVPPath(), VPPath()], ids=["linear_vp", "vp"])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_matrices_are_moments_of_derivatives_of_the_objective(name, path, monkeypatch):
    """G and H as they are defined, whose Hessian has the term that vanishes."""
    regression = Regression(name, path)
    rule = regression.draw_rule(THETA, num_times=4)
    monkeypatch.setattr(Regression, "draw_rule", lambda *_: rule)
    sample, weight = rule
    square = regression.residuals(THETA, sample).square().sum(1)
    assert torch.allclose(square, loss(regression, THETA, sample), rtol=1e-12)

    def one(theta, *parts):
        return loss(regression, theta, PathSample(*(part[None] for part in parts)))[0]

    gradients = vmap(grad(one), (None, 0, 0, 0, 0, 0))(THETA, *sample)
    hessians = vmap(hessian(one), (None, 0, 0, 0, 0, 0))(THETA, *sample)
    g, h = regression.matrices(THETA)
    assert (weight @ gradients).abs().max() < 1e-10
    expected = torch.einsum("q,qp,qr->pr", weight, gradients, gradients)
    assert torch.allclose(g, expected, rtol=1e-9)
    assert torch.allclose(h, torch.einsum("q,qpr->pr", weight, hessians), rtol=1e-9)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_fit_is_stationary_for_the_objective_and_lowers_its_loss(name):
    regression = Regression(name, LinearVPPath())
    sample = regression.draw(THETA, 500, generator())
    theta = regression.fit(THETA, sample)
    mean = lambda theta: loss(regression, theta, sample).mean()  # noqa: E731
    assert grad(mean)(theta).abs().max() < 1e-5 < grad(mean)(THETA).abs().max()
    assert mean(theta) < mean(THETA)
    assert regression.fit(THETA, sample, max_steps=1) is None


def test_the_squared_error_of_fits_is_e_over_n_and_their_kl_is_bounded():
    num, num_examples, num_steps = 60, 2_500, 16
    regression = Regression("ctsm_v", LinearVPPath())
    draws = [regression.draw(THETA, num_examples, generator(seed)) for seed in range(num)]
    errors = ScoreErrors(regression, THETA, num_steps)
    e = errors.limit()
    square, kl = errors.measured(torch.stack([regression.fit(THETA, draw) for draw in draws]))
    assert z_score(num_examples * square, e) < 4
    expected = gaussian_kl(THETA[:2].numpy(), 0.8, num_steps)
    assert errors.exact_kl.item() == pytest.approx(expected, rel=1e-9)
    # the error of the mean score is what fits do to KL: (KL_hat - KL)^2 <= the squared error
    assert ((kl - errors.exact_kl).square() <= square).all()


@pytest.mark.process
def test_the_script_leaves_tables_record_and_plot(script, capsys, tmp_path, monkeypatch):
    module = script("evaluate/bounds.py")
    monkeypatch.setattr(module, "PATHS", {"linear_vp": LinearVPPath})
    monkeypatch.setattr(module, "QUICK", module.Budget(20, (1, 4), (300, 400), 3))
    assert call(module, "--quick", "--device", "cpu", "--output_dir", tmp_path) == 0
    table = json.loads(capsys.readouterr().out.splitlines()[-1])["table"]
    assert read_json(tmp_path / "bounds.json")["figures"]["table"] == table
    assert len(table["theorem4"]) == 3 * 2 * 2  # problems, errors, numbers of steps
    ctsm, _, ctsm_v, _ = table["proposition5"]  # objectives, sizes
    assert ctsm_v["e"] < ctsm["e"]
    assert (tmp_path / "bounds.png").stat().st_size > 10_000

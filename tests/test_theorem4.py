"""Theorem 4: both sides of the bound against closed forms."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from exact import F64, ExactBridge, ExactModel, generator, z_score
from exact_kl import gaussian_kl
from scipy.integrate import quad

from ebm_app.paths import LinearVPPath, SchrodingerBridgePath, VPPath
from studies.theorem4 import (
    GaussianMixture,
    Ripple,
    first_order,
    kl_bound,
    lipschitz_constant,
)

SHIFT = torch.tensor([[1.0, -0.5]], dtype=F64)
PAIR = torch.tensor([[-1.0, 0.5, 0.0], [1.5, 0.5, 0.3]], dtype=F64)
MODES = (0.6, 0.8), (0.3, 0.7)
PATHS = {"linear_vp": LinearVPPath(), "vp": VPPath(), "bridge": SchrodingerBridgePath(0.7)}


def problem(name, path):
    return {
        "shift": GaussianMixture(path, SHIFT, (1.0,)),
        "narrow": GaussianMixture(path, SHIFT, (0.6,)),
        "mixture": GaussianMixture(path, PAIR, *MODES),
    }[name]


def drawn(name, path, num):
    """A problem, draws of its data and their L."""
    made = problem(name, path)
    x = made.draw(num, generator())
    return made, x, lipschitz_constant(made, x)


def triangle(found):
    """The bound on kl^2 by the triangle inequality (nats^2)."""
    return sum(math.sqrt(found[key] / 2) for key in ("discretisation", "estimation")) ** 2


@pytest.mark.parametrize("path", PATHS)
def test_marginals_are_those_of_the_paths(path):
    path = PATHS[path]
    if isinstance(path, SchrodingerBridgePath):  # whose reference model has one mode, on 1
        made = GaussianMixture(path, torch.full((1, 2), 0.4, dtype=F64), (0.6,))
        exact = ExactBridge(path, 0.1, (0.0, 1.0), (0.4, 0.6))
    else:
        made, exact = problem("mixture", path), ExactModel(path, 0.1, PAIR, *MODES)
    x, t, step = made.draw(50, generator()), torch.tensor(0.37, dtype=F64), 1e-5
    assert torch.allclose(made.log_density(x, t), exact.log_density(x, t.item()), rtol=1e-12)
    assert torch.allclose(made.time_score(x, t), exact.time_score(x, t.expand(50)), rtol=1e-10)
    difference = made.time_score(x, t + step) - made.time_score(x, t - step)
    assert torch.allclose(made.time_score_dt(x, t), difference / (2 * step), rtol=1e-6, atol=1e-7)


def test_a_shift_along_the_linear_path_is_known_by_hand():
    """s = m.(x - t m): L = |m|^2, KL = |m|^2 / 2K, and the triangle bound is attained."""
    made, x, constant = drawn("shift", PATHS["linear_vp"], 100)
    square = SHIFT.square().sum().item()
    assert torch.allclose(constant, torch.full_like(constant, square), rtol=1e-12)
    for num_steps in (1, 3, 50):
        found = kl_bound(made, x, constant, num_steps)
        assert found["kl"] == pytest.approx(square / (2 * num_steps), rel=1e-9)
        assert found["kl_stderr"] < 1e-12 and found["estimation"] == 0
        assert found["ratio"] == pytest.approx(math.sqrt(2), rel=1e-9)
        assert triangle(found) == pytest.approx(found["kl"] ** 2, rel=1e-9)


@pytest.mark.parametrize(
    ("name", "path"),
    [("narrow", "linear_vp"), ("mixture", "vp"), ("mixture", "bridge")],
)
def test_the_bound_holds_at_every_number_of_steps(name, path):
    made, x, constant = drawn(name, PATHS[path], 1000)
    for error in (Ripple(), Ripple(0.1)):
        for num_steps in (1, 3, 16):
            found = kl_bound(made, x, constant, num_steps, error)
            chain = (found["kl"] ** 2, found["mean_square"], triangle(found), found["bound"])
            assert all(a <= b * (1 + 1e-9) for a, b in pairwise(chain))
            expected = found["kl"]
            if (name, path) == ("narrow", "linear_vp") and error.size == 0:
                expected = gaussian_kl(SHIFT.numpy(), 0.6, num_steps)
                assert abs(found["kl"] - expected) < 4 * found["kl_stderr"]
            margin = 4 * (found["bound_stderr"] + 2 * abs(expected) * found["kl_stderr"])
            assert expected**2 < found["bound"] - margin


@pytest.mark.parametrize(
    ("name", "path"), [("mixture", "linear_vp"), ("narrow", "vp"), ("mixture", "bridge")]
)
def test_the_exact_score_leaves_an_error_that_falls_like_one_over_k(name, path):
    made, x, constant = drawn(name, PATHS[path], 200)
    steps, limit = (64, 128, 256), first_order(made, x).item()
    kls = [kl_bound(made, x, constant, num_steps)["kl"] for num_steps in steps]
    assert np.polyfit(np.log(steps), np.log(kls), 1)[0] == pytest.approx(-1, abs=0.1)
    # K KL has an error of order 1 / K, which two values of K show
    assert 2 * 256 * kls[2] - 128 * kls[1] == pytest.approx(limit, rel=0.01)
    if path == "linear_vp":
        start = made.time_score(x, torch.zeros((), dtype=F64))
        mean = torch.tensor(made.weights, dtype=F64) @ made.means
        assert z_score(start, mean.square().sum()) < 4


def test_an_error_of_the_score_alone_is_known_by_hand():
    """p1 = p0: s = 0 and L = 0, so that everything is the ripple's own."""
    made = GaussianMixture(PATHS["linear_vp"], torch.zeros(1, 2, dtype=F64), (1.0,))
    x = made.draw(1000, generator())
    constant = lipschitz_constant(made, x)
    assert constant.abs().max() < 1e-12
    found = kl_bound(made, x, constant, 5, Ripple(0.3))
    assert found["kl"] == pytest.approx(-0.3) and found["mean_square"] == pytest.approx(0.09)
    assert found["estimation"] == pytest.approx(3 * 0.09) and found["discretisation"] < 1e-20
    assert found["ratio"] == pytest.approx(math.sqrt(3))
    assert triangle(found) == pytest.approx(1.5 * 0.09)
    rough = kl_bound(made, x, constant, 1, Ripple(0.3))  # sin(x_1 + x_2) is left, of mean 0
    assert abs(rough["kl"] + 0.3) < 4 * rough["kl_stderr"]
    expected = 2 * 0.09 * (1 + (1 - math.exp(-4)) / 2)
    assert abs(rough["bound"] - expected) < 4 * rough["bound_stderr"]


def test_the_kl_divergence_from_the_normalised_density_is_not_bounded():
    made = GaussianMixture(PATHS["linear_vp"], torch.zeros(1, 1, dtype=F64), (1.0,))
    x, a = made.draw(20_000, generator()), 0.96
    found = kl_bound(
        made, x, torch.zeros(len(x), dtype=F64), 4, lambda x, t: a * (x[:, 0].square() - 1) / 2
    )
    assert (
        abs(found["kl"]) < 4 * found["kl_stderr"]
        and abs(found["bound"] - a**2) < 4 * found["bound_stderr"]
    )
    mass = quad(lambda y: math.exp(-((1 - a) * y**2 + a) / 2) / math.sqrt(2 * math.pi), -99, 99)[0]
    kl_divergence = math.log(mass)
    assert kl_divergence == pytest.approx(-a / 2 - math.log(1 - a) / 2, rel=1e-6)
    assert kl_divergence**2 > found["bound"] + 4 * found["bound_stderr"]


def test_the_lipschitz_constant_has_converged_in_its_grid():
    for path in PATHS.values():
        made, x, constant = drawn("mixture", path, 10)
        assert torch.allclose(constant, lipschitz_constant(made, x, 1025), rtol=3e-3)

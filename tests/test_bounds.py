"""The paper's error bound: Theorem 4 against closed forms, and the script."""

import json
import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from conftest import call
from exact import F64, ExactBridge, ExactModel, generator

from ebm_app.io.records import read_json
from ebm_app.paths import LinearVPPath, SchrodingerBridgePath, VPPath
from studies.bounds import GaussianMixture, kl_bound, lipschitz_constant, ripple

SHIFT = torch.tensor([[1.0, -0.5]], dtype=F64)
PAIR = torch.tensor([[-1.0, 0.5, 0.0], [1.5, 0.5, 0.3]], dtype=F64)
MODES = (0.6, 0.8), (0.3, 0.7)
PATHS = {"linear_vp": LinearVPPath(), "vp": VPPath(), "bridge": SchrodingerBridgePath(0.7)}


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


@pytest.mark.process
def test_the_script_leaves_a_table_and_a_record(script, capsys, tmp_path, monkeypatch):
    module = script("evaluate/bounds.py")
    monkeypatch.setattr(module, "PATHS", {"linear_vp": LinearVPPath})
    monkeypatch.setattr(module, "QUICK_DRAWS", 20)
    assert call(module, "--quick", "--device", "cpu", "--output_dir", tmp_path) == 0
    table = json.loads(capsys.readouterr().out.splitlines()[-1])["table"]
    assert read_json(tmp_path / "bounds.json")["figures"]["table"] == table
    assert len(table) == 3 * 2 * 4  # problems, errors, numbers of steps

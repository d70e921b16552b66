"""The paper's error bound: Theorem 4 against closed forms, and the script."""

import math
from itertools import pairwise

import pytest
import torch
from conftest import figures_of
from exact import F64, ExactBridge, ExactModel, generator

from ebm_app.paths import LinearVPPath, SchrodingerBridgePath, VPPath
from ebm_app.ratios.pairs import mixture
from ebm_app.utils.files import read_json
from studies import bounds

SHIFT = [1.0, -0.5]
PAIR, STDS, WEIGHTS = [[-1.0, 0.5, 0.0], [1.5, 0.5, 0.3]], [0.6, 0.8], [0.3, 0.7]
PATHS = {"linear_vp": LinearVPPath(), "vp": VPPath(), "bridge": SchrodingerBridgePath(0.7)}
PROBLEMS = {
    "shift": mixture([SHIFT], 1.0),
    "narrow": mixture([SHIFT], 0.6),
    "mixture": mixture(PAIR, torch.tensor(STDS, dtype=F64)[:, None], WEIGHTS),
}


def drawn(name, path, num):
    """Log density of p_t of a problem, draws of its data, and their L."""
    data = PROBLEMS[name]
    x = data.sample(num, generator()).double()
    log_density = bounds.log_density_of(data, PATHS[path])
    return log_density, x, bounds.lipschitz_constant(log_density, x)


@pytest.mark.parametrize("path", PATHS)
def test_marginals_match_the_paths(path):
    if path == "bridge":  # the exact bridge has one mode
        data = mixture([[0.4, 0.4]], 0.6)
        exact = ExactBridge(PATHS[path], 0.1, (0.0, 1.0), (0.4, 0.6))
    else:
        data = PROBLEMS["mixture"]
        exact = ExactModel(PATHS[path], 0.1, torch.tensor(PAIR, dtype=F64), STDS, WEIGHTS)
    log_density = bounds.log_density_of(data, PATHS[path])
    x, t = data.sample(50, generator()).double(), torch.tensor(0.37, dtype=F64)
    assert torch.allclose(log_density(x, t), exact.log_density(x, t.item()), rtol=1e-10)
    score = bounds.time_derivative(log_density)
    assert torch.allclose(score(x, t), exact.time_score(x, t.expand(50)), rtol=1e-10)


def test_bound_of_a_shift_matches_closed_form():
    """s = m.(x - t m): L = |m|^2 and KL = |m|^2 / 2K."""
    log_density, x, constant = drawn("shift", "linear_vp", 100)
    square = sum(entry**2 for entry in SHIFT)
    assert torch.allclose(constant, torch.full_like(constant, square), rtol=1e-12)
    for num_steps in (1, 3, 50):
        found = bounds.kl_bound(log_density, x, constant, num_steps, 0.0)
        assert found["kl"] == pytest.approx(square / (2 * num_steps), rel=1e-9)
        assert found["kl_stderr"] < 1e-12 and found["estimation"] == 0
        assert found["ratio"] == pytest.approx(math.sqrt(2), rel=1e-9)


@pytest.mark.parametrize(
    ("name", "path"), [("narrow", "linear_vp"), ("mixture", "vp"), ("mixture", "bridge")]
)
def test_bound_holds_at_every_number_of_steps(name, path):
    log_density, x, constant = drawn(name, path, 500)
    for size in (0.0, 0.1):
        for num_steps in (1, 3, 16):
            found = bounds.kl_bound(log_density, x, constant, num_steps, size)
            chain = (found["kl"] ** 2, found["mean_square"], found["bound"])
            assert all(a <= b * (1 + 1e-9) for a, b in pairwise(chain))
            if num_steps > 2:  # the mean square of the error over the grid is 3/2 size^2
                assert found["estimation"] == pytest.approx(3 * size**2)


@pytest.mark.process
def test_script_writes_a_table_and_a_record(tmp_path, monkeypatch):
    monkeypatch.setattr(bounds, "PATHS", {"linear_vp": LinearVPPath})
    monkeypatch.setattr(bounds, "QUICK_DRAWS", 20)
    table = figures_of(bounds, "--quick", "--device", "cpu", "--output_dir", tmp_path)["table"]
    assert read_json(tmp_path / "bounds.json")["figures"]["table"] == table
    assert len(table) == 3 * 2 * 4  # problems, errors, numbers of steps

"""Densities of exact time scores: log ratios, their errors, and calls of limited size."""

import pytest
import torch
from conftest import error_of
from exact import F64, ExactBridge, ExactModel, normal, points, two_modes

from ebm_app.nets.density import MIN_NODES, density_of
from ebm_app.paths import LinearVPPath, SchrodingerBridgePath, VPPath
from ebm_app.utils.tensors import CHUNK_SIZES, sum_except_batch

SHAPES = [(2,), (10,), (1, 8, 8)]
INNER = [(0.05, 0.95), (0.3, 0.6), (0.0, 0.5), (0.9, 0.999)]


def gaussian(path, std=0.6, mean=0.5, eps=1e-5):
    return ExactModel(path, eps, [[mean]], [std])


def bridge(sigma=1.0):
    return ExactBridge(SchrodingerBridgePath(sigma), 1e-3, (-0.4, 0.8), (0.5, 0.6))


#: Models and the nodes that resolve them; the arc length of a bridge is infinite at both ends.
MODELS = {
    "linear": (gaussian(LinearVPPath()), 32),
    "linear c": (gaussian(LinearVPPath(c=0.3)), 32),
    "linear wide": (gaussian(LinearVPPath(), 1.5, -0.4), 32),
    "vp": (gaussian(VPPath()), 32),
    "bridge": (bridge(), 64),
    "bridge sigma": (bridge(sigma=0.7), 64),
}


def ratio(model, x, t0, t1):
    return model.log_density(x, t1) - model.log_density(x, t0)


def whole_ratio(density, x):
    return density.log_ratio(x, density.start, density.end)


@pytest.mark.parametrize("name, shape", list(zip(MODELS, 2 * SHAPES, strict=True)))
def test_log_ratio_and_its_error_match_closed_form(name, shape):
    model, enough = MODELS[name]
    x = points(model, shape, 8)
    for nodes in (16, 24, enough, 128):
        density = density_of(model, nodes)
        for t0, t1 in [model.interval, *INNER]:
            t0 = max(t0, model.interval[0])
            found = density.log_ratio(x, t0, t1)
            error = (found.value - ratio(model, x, t0, t1)).abs()
            assert (error <= found.error + 1e-10).all() and MIN_NODES <= found.nfe <= nodes
            if nodes == enough:
                back = density.log_ratio(x, t1, t0)
                assert error.max() < 1e-5
                assert torch.allclose(back.value, -found.value, rtol=0, atol=1e-6)
    whole = whole_ratio(density, x)
    assert whole.value.shape == whole.error.shape == (8,) and whole.value.dtype == F64
    assert whole.error.max() < 1e-3
    assert torch.allclose(sum_except_batch(whole.components), whole.value, rtol=1e-12)
    # component i is the log ratio of x_i alone
    single = ratio(model, x.reshape(-1, 1), *model.interval).reshape(x.shape)
    assert (whole.components - single).abs().max() < 1e-5


def test_values_do_not_depend_on_batch_or_chunks(monkeypatch):
    shape, sizes = (1, 8, 8), []
    model = two_modes(VPPath(), 1e-5, shape)
    model.register_forward_hook(lambda *args: sizes.append(len(args[1][0])))
    x = points(model, shape, 6)
    whole = whole_ratio(density_of(model), x)
    alone = torch.cat([whole_ratio(density_of(model), x[i : i + 1]).value for i in range(6)])
    assert torch.allclose(whole.value, alone, rtol=1e-12, atol=1e-12)
    score = density_of(model).score(x, 0.9)
    for num_inputs in (1, 7, 64):
        monkeypatch.setitem(CHUNK_SIZES, "cpu", num_inputs * x[0].numel())
        density = density_of(model)
        sizes.clear()
        chunked = whole_ratio(density, x)
        assert chunked.nfe == whole.nfe == sum(sizes) / 6 and max(sizes) <= max(6, num_inputs)
        for left, right in zip(whole[:3], chunked[:3], strict=True):
            assert torch.allclose(left, right, rtol=1e-11, atol=1e-11)
        assert torch.allclose(score, density.score(x, 0.9), rtol=1e-11, atol=1e-11)


def test_two_sided_paths_have_log_ratios_only():
    density, x = density_of(bridge()), normal((3, 2))
    assert whole_ratio(density, x).value.shape == (3,)
    for call in (density.log_density, density.score):
        assert "SchrodingerBridgePath" in error_of(call, x, 0.9)
    assert "num_nodes" in error_of(density_of, gaussian(LinearVPPath()), num_nodes=2)

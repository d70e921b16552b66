"""Denoising moves of data with known densities."""

import pytest
import torch
from exact import F64, ExactModel, generator, normal, z_score

from ebm_app.annealing.moves import DenoisingMove
from ebm_app.paths import LinearVPPath, VPPath

TIMES = (0.3, 0.5)


@pytest.mark.parametrize("path", [LinearVPPath(), VPPath()])
def test_fitted_move_of_gaussian_data_has_weight_one(path):
    """For isotropic data each kernel is the exact reverse of the other if the variance fits. The
    points are scaled to the mean square of the marginal."""
    model = ExactModel(path, 1e-5, torch.zeros(1, 1, 2, 2, dtype=F64), [0.6], [1.0])
    move, x = DenoisingMove(model.exact_score, path, *TIMES), normal((50, 1, 2, 2))
    square = -1 / (model.exact_score(x, TIMES[0]) / x).mean()
    x = x * (square / x.square().mean()).sqrt()
    least = move.variance
    y, log_ratio = move.fit(x, generator(1))
    assert move.variance > 1.02 * least and (y - x).abs().max() > 0.1
    before, after = (model.log_density(*a) for a in zip((x, y), TIMES, strict=True))
    assert (after - before + log_ratio).abs().max() < 1e-10
    back, log_ratio = move.backward(y, generator(2))
    assert (model.log_density(back, TIMES[0]) - after + log_ratio).abs().max() < 1e-10
    again, _ = move.forward(x, generator(1))
    assert torch.equal(again, y) and move.forward(x.float(), generator(1))[1].dtype == F64


@pytest.mark.parametrize("factor", [1.0, 0.7])
def test_weights_are_exact_for_any_score(factor):
    """From samples of either side, the mean weight is 1 in both directions, and backward moves
    have the distribution of the earlier time."""
    means = torch.tensor([[-0.8, 0.0, 0.0], [0.8, 0.0, 0.0]], dtype=F64)
    model = ExactModel(LinearVPPath(), 1e-5, means, [0.3, 0.3], [0.3, 0.7])
    move = DenoisingMove(lambda x, t: factor * model.exact_score(x, t), LinearVPPath(), *TIMES)
    x, y = (model.sample(torch.full((20000,), t, dtype=F64), (20000, 3), 4).xt for t in TIMES)
    moved, forward = move.forward(x, generator(50))
    noised, backward = move.backward(y, generator(60))
    weights = (
        model.log_density(moved, TIMES[1]) - model.log_density(x, TIMES[0]) + forward,
        model.log_density(noised, TIMES[0]) - model.log_density(y, TIMES[1]) + backward,
    )
    for weight in weights:
        assert weight.std() > 0.05 and z_score(weight.exp()[:, None], 1.0) < 4
    moments = torch.cat([noised, noised.square()], 1)
    assert z_score(moments, torch.cat([x, x.square()], 1).mean(0)) < 5

"""Steps of the reversed diffusion, of data whose densities are known."""

import pytest
import torch
from exact import F64, ExactModel, generator, normal, z_score

from ebm_app.annealing.denoising import DenoisingStep
from ebm_app.paths import LinearVPPath, SchrodingerBridgePath, VPPath
from ebm_app.utils.errors import UserError

TIMES = (0.3, 0.5)


@pytest.mark.parametrize("path", [LinearVPPath(), VPPath()])
def test_of_gaussian_data_a_fitted_step_gives_every_chain_the_weight_1(path):
    """Of isotropic data both kernels are each other's way back, if the variance fits: the points
    are scaled to the mean square of the marginal."""
    model = ExactModel(path, 1e-5, torch.zeros(1, 1, 2, 2, dtype=F64), [0.6], [1.0])
    step, x = DenoisingStep(model.exact_score, path, *TIMES), normal((50, 1, 2, 2))
    square = -1 / (model.exact_score(x, TIMES[0]) / x).mean()
    x = x * (square / x.square().mean()).sqrt()
    least = step.variance
    y, there = step.fit(x, generator(1))
    assert step.variance > 1.02 * least and (y - x).abs().max() > 0.1
    before, after = (model.log_density(*a) for a in zip((x, y), TIMES, strict=True))
    assert (after - before + there).abs().max() < 1e-10
    back, weight = step.backward(y, generator(2))
    assert (model.log_density(back, TIMES[0]) - after + weight).abs().max() < 1e-10
    again, _ = step.forward(x, generator(1))
    assert torch.equal(again, y) and step.forward(x.float(), generator(1))[1].dtype == F64


@pytest.mark.parametrize("factor", [1.0, 0.7])
def test_the_weights_of_a_step_are_exact_whatever_the_score(factor):
    """Their mean is 1 there and back, from samples of either side; back, the chains are noised."""
    means = torch.tensor([[-0.8, 0.0, 0.0], [0.8, 0.0, 0.0]], dtype=F64)
    model = ExactModel(LinearVPPath(), 1e-5, means, [0.3, 0.3], [0.3, 0.7])
    step = DenoisingStep(lambda x, t: factor * model.exact_score(x, t), LinearVPPath(), *TIMES)
    x, y = (model.sample(torch.full((20000,), t, dtype=F64), (20000, 3), 4).xt for t in TIMES)
    moved, there = step.forward(x, generator(50))
    noised, back = step.backward(y, generator(60))
    weights = (
        model.log_density(moved, TIMES[1]) - model.log_density(x, TIMES[0]) + there,
        model.log_density(noised, TIMES[0]) - model.log_density(y, TIMES[1]) + back,
    )
    for weight in weights:
        assert weight.std() > 0.05 and z_score(weight.exp()[:, None], 1.0) < 4
    moments = torch.cat([noised, noised.square()], 1)
    assert z_score(moments, torch.cat([x, x.square()], 1).mean(0)) < 5


def test_a_path_that_does_not_start_from_noise_is_refused():
    with pytest.raises(UserError, match="no known reference"):
        DenoisingStep(lambda x, t: x, SchrodingerBridgePath(), *TIMES)

"""Features of images: residuals in closed form, symmetric copies."""

import pytest
import torch
from conftest import GREY

from ebm_app.anomaly.features import SYMMETRY_LEVELS, extract_features, noise_times
from ebm_app.anomaly.features import symmetric_copies as copies
from ebm_app.ebm import EBM


def test_residuals_of_a_linear_score_in_closed_form(monkeypatch):
    """For s(x, t) = -x and alpha^2 + v = 1, e - e_s = alpha^2 e - alpha sqrt(v) y, and all copies
    have the same loss."""
    ebm = EBM(GREY).double().eval()

    def output(x, t):
        return type("Output", (), {"score": -x, "components": 0 * x, "variance": None})

    monkeypatch.setattr(ebm.density, "output", output)
    images = torch.randint(0, 17, (3, 1, 8, 8), dtype=torch.uint8)
    features, times = extract_features(ebm, images), noise_times(ebm)
    noise = torch.randn((len(times), 1, 8, 8), generator=torch.manual_seed(0)).double()
    u = torch.rand((1, 1, 8, 8), generator=torch.manual_seed(0)).double().expand(3, -1, -1, -1)
    y = ebm.dequantise(images, u).y
    for index, time in enumerate(times):
        t = torch.tensor(time, dtype=torch.float64)
        alpha, v = ebm.density.path.alpha(t), ebm.density.path.variance(t)
        residual = alpha**2 * noise[index] - alpha * v.sqrt() * y
        torch.testing.assert_close(features.squares[:, index], residual.square().mean(1))
    losses = features.squares[:, : len(SYMMETRY_LEVELS)].sum((1, 2, 3)) / 2
    torch.testing.assert_close(features.losses, losses[:, None].expand(-1, 8))


@pytest.mark.parametrize(("shape", "num"), [((1, 2, 2), 8), ((1, 2, 3), 4)])
def test_copies_keep_the_shape_and_differ(shape, num):
    image = torch.arange(float(torch.Size(shape).numel())).view(shape)
    rotated = copies(image)
    assert len({tuple(x.flatten().tolist()) for x in rotated}) == len(rotated) == num
    assert all(x.shape == shape for x in rotated) and torch.equal(rotated[0], image)

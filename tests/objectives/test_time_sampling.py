"""Time samplers: draws follow the stated density, and weights make averages uniform."""

import pytest
import torch
from exact import F64, SinePath, generator
from scipy.integrate import quad

from ebm_app.objectives.time_sampling import TIME_SAMPLERS, EarlyTimes, ImportanceSampler
from ebm_app.paths import LinearVPPath, SchrodingerBridgePath, VPPath

PATHS = {
    "linear_vp": LinearVPPath(),
    "vp": VPPath(),
    "bridge sigma=0.5 c=2": SchrodingerBridgePath(0.5, c=2),
    "user": SinePath(c=0.5),
}


SAMPLERS = {name: kind for name, kind in TIME_SAMPLERS.items() if name != "early"}


def distribution(sampler):
    """The distribution function of a sampler on a grid of times: its stated density,
    1 / (weight (t1 - t0)), integrated by the midpoint rule."""
    u = torch.linspace(0, 1, 8 * 2048 + 1, dtype=F64)
    t, weight = sampler.transform(u).t, sampler.transform((u[1:] + u[:-1]) / 2).weight
    mass = t.diff() / (weight * (sampler.end - sampler.start))
    return u, t, torch.cat([torch.zeros(1), mass.cumsum(0)])


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
@pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS)
def test_transform_inverts_the_distribution_function(make, path):
    sampler = make(path, 1e-5)
    u, t, cdf = distribution(sampler)
    drawn = sampler.sample(100, generator(2))
    assert drawn.t.dtype == F64 and sampler.start <= drawn.t.min() <= drawn.t.max() <= sampler.end
    assert (t.diff() > 0).all()
    assert t[0].item() == sampler.start
    assert t[-1].item() == pytest.approx(sampler.end, rel=1e-14)
    assert (cdf - u).abs().max() < 1e-6


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_importance_sampler_follows_the_papers_density(path):
    """p(r) proportional to (1 + r^2) / (1 - r^2)^2 on [0, 0.9], rescaled to [t0, t1]."""
    sampler = ImportanceSampler(path, 1e-5)
    t0, t1 = path.interval(1e-5)

    def density(r):
        return (1 + r * r) / (1 - r * r) ** 2

    t, weight = sampler.transform(torch.linspace(0, 1, 21, dtype=F64))
    expected = density(0.9 * (t - t0) / (t1 - t0)) * 0.9 / quad(density, 0, 0.9, epsabs=1e-13)[0]
    torch.testing.assert_close(1 / weight, expected, rtol=1e-9, atol=0)


@pytest.mark.parametrize("path", [LinearVPPath(), LinearVPPath(c=4), VPPath()])
def test_early_times_are_uniform_in_log_snr(path):
    sampler = EarlyTimes(path, 1e-6, highest=1.5)
    u, t, cdf = distribution(sampler)
    ratio = path.log_snr(t)
    low = max(-8.0, path.log_snr(torch.tensor(0.0, dtype=F64)).item())
    assert ratio[0].item() == pytest.approx(low, abs=1e-9)
    assert ratio[-1].item() == pytest.approx(1.5, abs=1e-9)
    assert (cdf - u).abs().max() < 1e-6
    if low == -8:
        assert (ratio - torch.lerp(ratio[0], ratio[-1], u)).abs().max() < 1e-4

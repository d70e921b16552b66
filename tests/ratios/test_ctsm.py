"""CTSM on two samples: closed forms, checks, and the script."""

import json
import math

import numpy as np
import pytest
import torch
from conftest import figures_of
from exact import F64, ExactBridge, generator, normal

from ebm_app import CTSMRatio
from ebm_app.ratios import ctsm
from ebm_app.ratios.ctsm import SIGMA, T_MARGIN, Bridge
from ebm_app.ratios.densities import DensityPair, GaussianMixture, standard_normal
from ebm_app.ratios.gaussians import GaussianRatio


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(ctsm, "WIDTH", 32)
    monkeypatch.setattr(ctsm, "BATCH_SIZE", 1024)
    monkeypatch.setattr(ctsm, "CHECK_EVERY", 20)


def gaussians(dim):
    std = torch.linspace(0.8, 1.2, dim)
    return DensityPair(
        standard_normal(dim), GaussianMixture([[1.2 / math.sqrt(dim)] * dim], std[None])
    )


MIXTURES = DensityPair(
    GaussianMixture([[-1.0, 0.0], [1.0, 0.5]], 0.7),
    GaussianMixture([[0.0, 1.0], [1.0, -1.0]], 0.6),
)


def draw(pair, num, seed=0):
    return pair.p0.sample(num, generator(2 * seed)), pair.p1.sample(num, generator(2 * seed + 1))


def correlation(pair, ratio, num=1_000):
    x = torch.cat(draw(pair, num, 9))
    return np.corrcoef(ratio.log_ratio(x), pair.log_ratio(x))[0, 1]


def test_untrained_time_score_is_that_of_two_gaussians():
    """Against the exact bridge between isotropic Gaussians, and in its integral."""
    means, stds = (0.2, 0.9), (0.8, 1.1)
    base = GaussianRatio(
        torch.zeros(3, dtype=F64),
        torch.eye(3, dtype=F64),
        torch.tensor(means, dtype=F64)[:, None].expand(2, 3),
        torch.tensor(stds, dtype=F64)[:, None].square().expand(2, 3),
    )
    x, t = normal((20, 3)), torch.full((20,), 0.3, dtype=F64)
    exact = ExactBridge(
        ctsm.SchrodingerBridgePath(SIGMA), T_MARGIN, *zip(means, stds, strict=True)
    )
    expected = exact.time_score(x, t).float()
    found = Bridge(base)(x.float(), t.float()).sum(1)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(Bridge(base).log_ratio(x.numpy()), base(x), rtol=1e-12)


@pytest.mark.parametrize("std", [1e-2, 1e-3])
def test_divergence_of_a_narrow_gaussian(std):
    x0, x1 = normal((900, 1)), std * normal((900, 1), 1)
    low, high = CTSMRatio(num_folds=3, steps=5).fit(x0, x1).estimate_.interval
    assert low < -math.log(std) + (std**2 - 1) / 2 < high < low + 0.6


def test_intervals_contain_the_divergence_of_distant_gaussians():
    hits = 0
    for seed in range(12):
        x0, x1 = normal((300, 1), 2 * seed), normal((300, 1), 2 * seed + 1) + 5
        ratio = CTSMRatio(num_folds=3, steps=1, random_state=seed)
        low, high = ratio.fit(x0, x1).estimate_.interval
        hits += low < 12.5 < high
    assert hits >= 11


@pytest.mark.parametrize("dim", [1, 40])
def test_log_ratio_of_gaussians_matches_closed_form(dim):
    pair = gaussians(dim)
    samples = draw(pair, 1_500)
    ratio = CTSMRatio(num_folds=3, steps=40).fit(*samples)
    estimate = ratio.estimate_
    exact = pair.log_ratio(samples[1]).mean().item()
    assert estimate.mean_log_ratio == pytest.approx(exact, rel=0.1)
    assert correlation(pair, ratio) > 0.97
    truth = pair.log_ratio(pair.p1.sample(50_000, generator(5))).mean().item()
    assert estimate.interval[0] < truth < estimate.interval[1]
    assert abs(estimate.value - truth) < 4 * estimate.stderr
    assert abs(estimate.normaliser - 1) < 0.15


def test_log_ratio_of_mixtures():
    """Two Gaussians alone have a correlation of 0.8 here."""
    samples = draw(MIXTURES, 1_500)
    ratio = CTSMRatio(num_folds=3, steps=400).fit(*samples)
    assert correlation(MIXTURES, ratio) > 0.93
    assert ratio.estimate_.interval is not None


def test_distant_samples_have_the_mean_log_ratio():
    pair = DensityPair(standard_normal(10), GaussianMixture([[4.0] * 10], 1.0))
    samples = draw(pair, 600)
    ratio, same = (CTSMRatio(num_folds=3, steps=20).fit(*samples) for _ in range(2))
    estimate = ratio.estimate_
    assert "not a bound" in estimate.warnings[0]
    assert estimate.value == estimate.mean_log_ratio == pytest.approx(80, rel=0.1)  # KL
    assert correlation(pair, ratio) > 0.97
    assert np.array_equal(estimate.log_ratio0, same.estimate_.log_ratio0)


def test_ratio_script_writes_tables_and_a_record(script, tmp_path):
    for name, x in zip(("x0", "x1"), draw(gaussians(2), 200), strict=True):
        np.save(tmp_path / f"{name}.npy", x)
    files = ["--x0", tmp_path / "x0.npy", "--x1", tmp_path / "x1.npy", "--at", tmp_path / "x0.npy"]
    flags = ["--method", "ctsm_v", "--iterations", 20, "--output_dir", tmp_path / "out"]
    metrics = figures_of(script("evaluate/ratio.py"), *files, *flags)
    assert metrics["interval"][0] <= metrics["value"] <= metrics["interval"][1]
    assert json.loads((tmp_path / "out/ratio.json").read_text())["figures"] == metrics
    for name in ("x0", "x1", "at"):
        table = np.genfromtxt(tmp_path / f"out/{name}.csv", delimiter=",", names=True)
        assert table["log_ratio"].shape == (200,)

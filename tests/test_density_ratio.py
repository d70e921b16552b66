"""The log density ratio of two samples: normals, its normaliser and divergence, mistakes."""

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import error_of
from exact import generator

from ebm_app import log_density_ratio
from ebm_app.ratios.data.two_samples import TwoSamples
from ebm_app.ratios.density_ratio import RatioSettings, RatioTraining, _warnings

SHORT = RatioSettings(training=RatioTraining(40, eval_every=20))


def normals(num=1_500, shift=0.7, scale=0.8, seed=0):
    numbers = np.random.default_rng(seed)
    x0 = numbers.standard_normal((num, 2)) * [1, 50] + [0, 1e3]
    x1 = (numbers.standard_normal((num, 2)) * scale + shift) * [1, 50] + [0, 1e3]
    return x0, x1


def exact(x, shift=0.7, scale=0.8):
    z = (x - [0, 1e3]) / [1, 50]
    return (0.5 * z**2 - 0.5 * ((z - shift) / scale) ** 2 - np.log(scale)).sum(1)


def test_the_ratio_and_the_divergence_of_normals():
    x0, x1 = normals()
    ratio = log_density_ratio(x0, x1, SHORT)
    points = normals(300, seed=1)[1]
    values, errors = ratio.score_samples(points, return_std=True)
    assert np.abs(values - exact(points)).mean() < 0.3
    assert errors.shape == (300,) and (errors > 0).all() and errors.mean() < 0.3
    np.testing.assert_array_equal(ratio.score_samples(points), values)
    truth = 2 * (-np.log(0.8) + (0.8**2 + 0.7**2) / 2 - 0.5)
    assert abs(ratio.kl - truth) < 3.5 * ratio.kl_stderr < 0.5
    assert len(ratio.log_normalisers) == 3 and ratio.warnings == []
    assert 30 < ratio.effective_rows < 500


def test_equal_densities_have_the_ratio_one():
    x0, x1 = normals(shift=0.0, scale=1.0)
    ratio = log_density_ratio(pd.DataFrame(x0), pd.DataFrame(x1), SHORT)
    assert abs(ratio.kl) < 3.5 * ratio.kl_stderr < 0.1
    assert np.abs(ratio.score_samples(x0)).mean() < 0.15


def test_the_same_seed_gives_the_same_and_torch_keeps_its_generator():
    x0, x1 = (part[:, 0] for part in normals(200))
    before = torch.random.get_rng_state()
    tiny = RatioSettings(num_folds=2, training=RatioTraining(2, eval_every=1))
    first, again, other = (log_density_ratio(x0, x1, tiny, seed) for seed in (1, 1, 2))
    assert first.kl == again.kl != other.kl
    assert torch.equal(before, torch.random.get_rng_state())


def test_what_speaks_against_a_ratio():
    assert _warnings(31.0, [0.1, -0.2]) == []
    assert "rests on 29 rows" in _warnings(29.0, [0.0])[0]
    assert "normalised by -0.30 nats" in _warnings(50.0, [0.1, -0.3])[0]
    x0, x1 = normals(200, shift=6.0)
    assert "hardly overlap" in " ".join(log_density_ratio(x0, x1, SHORT).warnings)


def test_moments_of_two_samples():
    x0, x1 = (torch.from_numpy(part) for part in normals(50))
    pair = TwoSamples(x0, x1)
    every = (x1[:, None] - x0[None]).square().mean().item()
    assert pair.bridge_moment() == pytest.approx(every)
    assert pair.data_moment() == pytest.approx(x1.square().mean().item())
    drawn = pair.sample0(200, generator())
    assert drawn.shape == (200, 2) and all((row == x0).all(1).any() for row in drawn)


def test_mistakes_end_in_a_sentence():
    x0, x1 = normals(100)
    bad = x1.copy()
    bad[3, 0] = np.nan
    frame = pd.DataFrame({"a": x0[:, 0], "b": 1.0})
    for arguments, message in (
        ((x0, x1[:, :1]), "x0 has 2 columns and x1 has 1"),
        ((x0, x1[:50]), "x1 has 50 rows: give at least 60"),
        ((x0, bad), "x1 holds NaN"),
        ((frame, x1), "constant in x0 are 'b'"),
    ):
        assert message in error_of(lambda a: log_density_ratio(*a), arguments)
    tiny = RatioSettings(num_folds=2, training=RatioTraining(1, eval_every=1))
    ratio = log_density_ratio(x0, x1, tiny)
    assert "x has 1 columns: give 2" in error_of(ratio.score_samples, x0[:, 0])
    assert "there is 1 fold" in error_of(RatioSettings, 1)

"""Mutual information of data with heavy tails, few values, copies and odd scales, whose true value
is known: the table in docs/mutual_information.md, which this prints."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from ebm_app import mutual_information
from studies.mi_tasks import TASKS

#: draws by which a truth without a closed form is averaged
MANY = 400_000
MODES = np.array([[-2.0, -1.0], [0.0, 2.0], [2.0, -1.0]])
COVARIANCE = 0.6 * np.array([[1.0, 0.5], [0.5, 1.0]])


def normals(g, num, dim, rho):
    """Pairs of standard normals correlated by rho in each of ``dim`` columns, and the truth."""
    x = g.standard_normal((num, dim))
    y = rho * x + math.sqrt(1 - rho**2) * g.standard_normal((num, dim))
    return x, y, -dim / 2 * math.log1p(-(rho**2))


def cubes(g):
    x, y, truth = normals(g, 8000, 3, math.sqrt(1 - math.exp(-2 * 1.24 / 3)))
    rotation = np.linalg.qr(g.standard_normal((3, 3)))[0]
    return (x @ rotation) ** 3, np.cbrt(y @ rotation), truth


def student(df):
    def draw(g):
        shape = np.array([[1.0, 0.7], [0.7, 1.0]])
        v = stats.multivariate_t(shape=shape, df=df, seed=g).rvs(8000 + MANY)
        far = v[8000:]
        joint = stats.multivariate_t(shape=shape, df=df).logpdf(far)
        truth = (joint - stats.t.logpdf(far, df).sum(1)).mean()
        return v[:8000, :1], v[:8000, 1:], truth

    return draw


def four_values(g):
    k = g.integers(0, 4, 8000 + MANY)
    y = k + 0.8 * g.standard_normal(8000 + MANY)
    logs = np.stack([stats.norm.logpdf(y[8000:], mean, 0.8) for mean in range(4)])
    of_k = logs[k[8000:], np.arange(MANY)]
    truth = (of_k - np.logaddexp.reduce(logs, 0) + math.log(4)).mean()
    return k[:8000, None].astype(float), y[:8000, None], truth


def swiss_roll(g):
    task = TASKS["swiss_roll_2x1"]
    x, y = task.draw(8000, torch.Generator().manual_seed(int(g.integers(1000))))
    return x.numpy(), y.numpy(), task.mutual_information


def three_normals(g):
    root = np.linalg.cholesky(COVARIANCE)
    v = MODES[g.integers(0, 3, 8000 + MANY)] + g.standard_normal((8000 + MANY, 2)) @ root.T
    far = v[8000:]
    joint = [stats.multivariate_normal(mode, COVARIANCE).logpdf(far) for mode in MODES]
    truth = np.logaddexp.reduce(joint, 0) - math.log(3)
    for side in (0, 1):
        deviation = math.sqrt(COVARIANCE[side, side])
        logs = [stats.norm.logpdf(far[:, side], mode[side], deviation) for mode in MODES]
        truth = truth - np.logaddexp.reduce(logs, 0) + math.log(3)
    return v[:8000, :1], v[:8000, 1:], truth.mean()


def independent(g):
    return g.standard_normal((8000, 2)), g.standard_normal((8000, 2)), 0.0


def copies(g):
    x, y, truth = normals(g, 2000, 1, 0.8)
    return np.tile(x, (4, 1)), np.tile(y, (4, 1)), truth


def scales(g):
    x, y, truth = normals(g, 8000, 1, 0.768)
    return 1e-6 * x, 1e9 * y, truth


CASES = {
    "rotated normal, cubes and cube roots of it, 3 + 3": cubes,
    "normal, 10 + 10": lambda g: normals(g, 8000, 10, 0.5),
    "Student-t, 2 degrees of freedom": student(2),
    "Cauchy": student(1),
    "four values, and a number": four_values,
    "Swiss roll": swiss_roll,
    "mixture of three normals": three_normals,
    "normal, 500 rows": lambda g: normals(g, 500, 1, 0.8),
    "independent, 2 + 2": independent,
    "four copies of 2,000 rows": copies,
    "scales of 1e-6 and 1e9": scales,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_interval_holds_the_truth(name, capsys):
    x, y, truth = CASES[name](np.random.default_rng(0))
    found = mutual_information(x, y)
    beside = "" if found.neighbours is None else f"{found.neighbours:.3f}"
    with capsys.disabled():
        print(f"\n| {name} | {truth:.3f} | {found.value:.3f} ± {found.stderr:.3f} | {beside} |")
    # one in twenty intervals of 95 percent misses
    assert abs(found.value - truth) < 1.5 * (found.interval[1] - found.value)
    assert found.stderr < max(0.1 * truth, 0.02) and not found.warnings

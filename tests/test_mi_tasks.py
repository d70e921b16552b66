"""The named tasks of known mutual information, and maps of their coordinates."""

import numpy as np
import pytest
import torch
from conftest import error_of
from exact import F64, generator, z_score
from mi_helpers import PAIR, covariance_of, draws
from scipy import stats
from scipy.optimize.elementwise import find_root

from ebm_app.ratios.mi_discrete import DiscreteUniform
from ebm_app.ratios.mi_distributions import AdditiveUniform, StudentT
from ebm_app.ratios.mi_embeddings import Spiral, SwissRoll
from ebm_app.ratios.mi_gaussians import BlockGaussian, CorrelatedNormal, DenseNormal
from ebm_app.ratios.mi_tasks import (
    BMI_TASKS,
    MI_TASKS,
    TRANSFORMS,
    Transformed,
    mixture_quantile,
)

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize("name", MI_TASKS)
def test_every_task_draws_what_it_says(name):
    task = MI_TASKS[name]
    x, y = task.sample(7, generator())
    assert x.shape == (7, task.dim_x) and y.shape == (7, task.dim_y)
    assert x.dtype == y.dtype == F64 and x.isfinite().all() and y.isfinite().all()
    assert isinstance(task.mutual_information, float) and 0 < task.mutual_information < 100
    torch.set_default_dtype(torch.float32)
    rounded = task.sample(7, generator())
    assert torch.equal(rounded[0], x.float()) and torch.equal(rounded[1], y.float())
    assert not torch.equal(task.sample(7, generator(1))[0], rounded[0])
    assert task.sample(1, generator())[0].shape == (1, task.dim_x)


@pytest.mark.gpu
@pytest.mark.parametrize("name", MI_TASKS)
def test_draws_are_on_the_device_of_the_generator(name):
    x, y = MI_TASKS[name].sample(5, torch.Generator("cuda").manual_seed(0))
    assert x.device.type == y.device.type == "cuda" and x.isfinite().all()


def test_the_names_are_those_of_the_laws():
    assert MI_TASKS["dense_25x25"] == DenseNormal(0.5, 25, 25)
    assert MI_TASKS["student_5x5_df3"] == StudentT((), 3, 5, 5)
    assert MI_TASKS["additive_uniform_0.1"] == AdditiveUniform(0.1)
    assert MI_TASKS["half_cube_3x3"].base == MI_TASKS["sparse_3x3"]
    assert MI_TASKS["wiggly_1x1"] == Transformed(PAIR, "wiggly")
    assert MI_TASKS["swiss_roll_2x1"] == SwissRoll(Transformed(PAIR, "normal_cdf"))
    assert MI_TASKS["discrete_uniform_4"] == DiscreteUniform(4)
    for d in (3, 5, 25):
        for name, base in (("spiral", "sparse"), ("spiral_normal_cdf", "normal_cdf")):
            assert MI_TASKS[f"{name}_{d}x{d}"] == Spiral(MI_TASKS[f"{base}_{d}x{d}"])
    for dim in (40, 80, 160, 320):
        task = MI_TASKS[f"block_gaussian_{dim}"]
        assert task == BlockGaussian(dim) and task.dim_x == task.dim_y == dim // 2


def test_the_forty_tasks_of_the_benchmark():
    student = "2x2_df1 2x2_df2 3x3_df2 3x3_df3 5x5_df2 5x5_df3".split()
    names = [
        *(f"{name}_1x1" for name in ("normal", "normal_cdf", "bimodal", "wiggly", "half_cube")),
        *("student_1x1_df1", "asinh_student_1x1_df1", "swiss_roll_2x1"),
        *("additive_uniform_0.1", "additive_uniform_0.75"),
        *(f"dense_{d}x{d}" for d in (2, 3, 5, 25, 50)),
        *(f"sparse_{d}x{d}" for d in (2, 3, 5, 25)),
        *(f"student_{case}" for case in student),
        *(f"asinh_student_{case}" for case in ("2x2_df1", "3x3_df2", "5x5_df2")),
        *(f"half_cube_{d}x{d}" for d in (3, 5, 25)),
        *(f"normal_cdf_{d}x{d}" for d in (3, 5, 25)),
        *(f"spiral_{d}x{d}" for d in (3, 5, 25)),
        *(f"spiral_normal_cdf_{d}x{d}" for d in (3, 5, 25)),
    ]
    assert len(BMI_TASKS) == len(names) == 40 and set(BMI_TASKS) == set(names)
    others = {"discrete_uniform_4", *(f"block_gaussian_{dim}" for dim in (40, 80, 160, 320))}
    assert set(MI_TASKS) - set(BMI_TASKS) == others and set(BMI_TASKS) < set(MI_TASKS)


def root(v):
    return np.sign(v) * np.abs(v) ** (2 / 3)


def mixture(weight, low, high):
    def pdf(v):
        return weight * stats.norm.pdf(v, low) + (1 - weight) * stats.norm.pdf(v, high)

    def cdf(v):
        return weight * stats.norm.cdf(v, low) + (1 - weight) * stats.norm.cdf(v, high)

    return pdf, cdf


def sines(*terms):
    """The law of z + sum_i a_i sin(b_i z + c_i), z ~ N(0, 1), by inverting this increasing map."""
    a, b, c = np.array(terms).T

    def inverse(v):
        v = np.asarray(v, dtype=float)
        bound = np.abs(a).sum()  # no z is moved further
        found = find_root(
            lambda z, v: z + np.sin(np.multiply.outer(z, b) + c) @ a - v,
            (v - bound, v + bound),
            args=(v,),
        )
        assert found.success.all()
        return found.x

    def pdf(v):
        z = inverse(v)
        return stats.norm.pdf(z) / (1 + np.cos(np.multiply.outer(z, b) + c) @ (a * b))

    return pdf, lambda v: stats.norm.cdf(inverse(v))


#: (density, distribution function) of X and of Y when the base is N(0, 1)
MARGINALS = {
    "asinh": [
        (lambda v: stats.norm.pdf(np.sinh(v)) * np.cosh(v), lambda v: stats.norm.cdf(np.sinh(v)))
    ]
    * 2,
    "bimodal": [mixture(0.3, 0, 5), mixture(0.5, -1, 3)],
    "half_cube": [
        (
            lambda v: stats.norm.pdf(root(v)) * 2 / 3 * np.abs(v) ** (-1 / 3),
            lambda v: stats.norm.cdf(root(v)),
        )
    ]
    * 2,
    "normal_cdf": [(stats.uniform.pdf, stats.uniform.cdf)] * 2,
    "wiggly": [
        sines((0.4, 1, 0), (0.2, 1.7, 1), (0.03, 3.3, -2.5)),
        sines((-0.4, 0.4, 0), (0.17, 1.3, 3.5), (0.02, 4.3, -2.5)),
    ],
}


def log_slope(transform, x, step=1e-5):
    """log of the derivative by central differences."""
    x = torch.from_numpy(x)
    step = step * x.abs().clamp(max=1)  # half_cube has its kink at 0
    return torch.log((transform(x + step) - transform(x - step)) / (2 * step)).numpy()


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_keep_the_information(name):
    """log p'(x', y') / (p'(x') p'(y')) with the joint by the Jacobian of the map and marginals
    that are known otherwise: the ratio of the base, point by point, and its mean is I."""
    task = Transformed(PAIR, name)
    x, y = draws(PAIR)
    log_joint = stats.multivariate_normal.logpdf(np.hstack([x, y]), cov=covariance_of(PAIR))
    base = log_joint - (stats.norm.logpdf(x) + stats.norm.logpdf(y))[:, 0]
    logs = log_joint
    for z, mapped, transform, (pdf, cdf) in zip(
        (x, y), draws(task), TRANSFORMS[name], MARGINALS[name], strict=True
    ):
        logs = logs - (log_slope(transform, z) + np.log(pdf(mapped)))[:, 0]
        assert stats.kstest(mapped[:, 0], cdf).pvalue > 1e-3
    np.testing.assert_allclose(logs, base, atol=1e-4)
    assert z_score(torch.from_numpy(logs), task.mutual_information) < 4


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_increase_in_each_coordinate(name):
    base = StudentT((0.5,), 2, 3, 2) if name == "asinh" else CorrelatedNormal((0.5,), 3, 2)
    task = Transformed(base, name)
    assert (task.dim_x, task.dim_y) == (3, 2)
    assert task.mutual_information == base.mutual_information
    before, after = (np.concatenate(draws(t, 500), 1) for t in (base, task))
    assert np.array_equal(before.argsort(0), after.argsort(0))
    assert (np.diff(np.sort(after, 0), axis=0) > 0).all()


def test_a_transform_of_a_transform():
    twice = Transformed(Transformed(PAIR, "half_cube"), "asinh")
    x, _ = draws(PAIR, 50)
    np.testing.assert_allclose(draws(twice, 50)[0], np.arcsinh(x * np.sqrt(np.abs(x))))
    assert twice.mutual_information == PAIR.mutual_information


@pytest.mark.parametrize("weight, low, high", [(0.3, 0, 5), (0.5, -1, 3), (0.9, 0.0, 0.0)])
def test_mixture_quantile_in_both_tails(weight, low, high):
    z = torch.linspace(-12, 12, 97)
    q = mixture_quantile(z, weight, low, high).numpy()
    logs = np.log([[weight], [1 - weight]])
    for sign in (-1, 1):  # the nearer tail is compared by its logarithm
        tail = (sign * z < 0).numpy()
        parts = stats.norm.logcdf(sign * (q[tail] - np.array([[low], [high]])))
        expected = stats.norm.logcdf(sign * z.numpy()[tail])
        np.testing.assert_allclose(np.logaddexp(*(logs + parts)), expected, atol=1e-11)


@pytest.mark.parametrize(
    "make, reason",
    [
        (lambda: Transformed(PAIR, "cube"), "unknown transform 'cube'"),
        (lambda: PAIR.sample(0, generator()), "num is 0"),
        (lambda: PAIR.sample(2.5, generator()), "num is 2.5"),
    ],
)
def test_bad_arguments(make, reason):
    assert reason in error_of(make)

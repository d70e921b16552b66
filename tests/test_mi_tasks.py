"""Tasks of known mutual information: each against an independent computation, and the laws."""

import math

import numpy as np
import pytest
import torch
from conftest import error_of
from exact import F64, generator, normal, z_score
from scipy import stats
from torch.distributions import MultivariateNormal

from ebm_app.ratios.data.mi_distributions import AdditiveUniform, StudentT
from ebm_app.ratios.data.mi_gaussians import BlockGaussian, CorrelatedNormal, DenseNormal
from ebm_app.ratios.data.mi_tasks import MI_TASKS, TRANSFORMS, Transformed, mixture_quantile

NUM = 20_000
PAIR = CorrelatedNormal((0.75,), 1, 1)


@pytest.fixture(autouse=True)
def float64():
    torch.set_default_dtype(F64)
    yield
    torch.set_default_dtype(torch.float32)


def draws(task, num=NUM, seed=0):
    x, y = task.sample(num, generator(seed))
    return x.numpy(), y.numpy()


def covariance_of(task):
    """The covariance or dispersion of (X, Y), written out entry by entry."""
    m, n = task.dim_x, task.dim_y
    if isinstance(task, DenseNormal):
        return (1 - task.rho) * np.eye(m + n) + task.rho
    sigma = np.eye(m + n)
    for i, rho in enumerate(task.correlations):
        sigma[i, m + i] = sigma[m + i, i] = rho
    return sigma


# every task


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
    for dim in (40, 80, 160, 320):
        task = MI_TASKS[f"block_gaussian_{dim}"]
        assert task == BlockGaussian(dim) and task.dim_x == task.dim_y == dim // 2


# Gaussians


NORMALS = [
    PAIR,
    CorrelatedNormal((), 2, 3),
    CorrelatedNormal((0.9, -0.5), 2, 4),
    CorrelatedNormal((0.2, 0.999, 0.0), 5, 3),
    DenseNormal(0.5, 1, 1),
    DenseNormal(0.3, 2, 4),
    DenseNormal(0.0, 2, 2),
    DenseNormal(0.99, 25, 25),
    BlockGaussian(8),
    BlockGaussian(320),
]
NORMAL_CASES = pytest.mark.parametrize("task", NORMALS, ids=lambda task: repr(task)[:40])


@NORMAL_CASES
def test_normal_information_by_entropies(task):
    sigma, m = torch.from_numpy(covariance_of(task)), task.dim_x
    h_x, h_y, h_xy = (
        MultivariateNormal(torch.zeros(len(part)), part).entropy().item()
        for part in (sigma[:m, :m], sigma[m:, m:], sigma)
    )
    assert task.mutual_information == pytest.approx(h_x + h_y - h_xy, rel=1e-10, abs=1e-12)


@NORMAL_CASES
def test_normal_draws(task):
    """Means 0, the covariance, and every coordinate N(0, 1)."""
    z = np.concatenate(draws(task, 4000), 1)[:, : 2 * min(12, task.dim_x)]
    sigma = covariance_of(task)[: z.shape[1], : z.shape[1]]
    assert abs(z.mean(0) * math.sqrt(len(z))).max() < 4
    # of a product of two coordinates the variance is 1 + correlation^2
    error = (z.T @ z / len(z) - sigma) / np.sqrt((1 + sigma**2) / len(z))
    assert abs(error).max() < 4
    for column in z.T[:4]:
        assert stats.kstest(column, "norm").pvalue > 1e-3


def test_correlated_normal_near_its_ends():
    rho = 1 - 1e-12
    expected = -0.5 * (math.log(1e-12) + math.log1p(rho))
    assert CorrelatedNormal((rho,), 1, 1).mutual_information == pytest.approx(expected, rel=1e-5)
    assert CorrelatedNormal((1e-9,), 1, 1).mutual_information == pytest.approx(0.5e-18)
    x, y = draws(CorrelatedNormal((-rho,), 1, 1), 100)
    np.testing.assert_allclose(x, -y, atol=1e-5)


@pytest.mark.parametrize("dim", [40, 80, 160, 320])
def test_block_gaussian_is_the_task_of_the_paper(dim):
    task = BlockGaussian(dim)
    sigma = task.covariance()
    assert task.rho == pytest.approx(0.795, abs=1e-4)
    assert sigma.dtype == F64 and torch.equal(sigma, sigma.T)
    assert sigma.count_nonzero() == 2 * dim
    assert (sigma.diagonal() == 1).all() and (sigma.diagonal(1)[::2] == task.rho).all()
    assert task.mutual_information == pytest.approx(dim / 4, abs=1e-10)
    assert -0.5 * torch.logdet(sigma).item() == pytest.approx(dim / 4, abs=1e-10)


def test_block_gaussian_log_ratio():
    task = BlockGaussian(40)
    z = task.joint(NUM, generator())
    x, y = task.sample(NUM, generator())
    assert torch.equal(z[:, 0::2], x) and torch.equal(z[:, 1::2], y)
    ratio = task.log_ratio(z)
    data = MultivariateNormal(torch.zeros(40), task.covariance())
    reference = MultivariateNormal(torch.zeros(40), torch.eye(40))
    torch.testing.assert_close(ratio, data.log_prob(z) - reference.log_prob(z))
    assert ratio.shape == (NUM,)
    assert z_score(ratio, task.mutual_information) < 4
    # E_{N(0, I)} ratio = 1; few dimensions keep its spread small
    small = BlockGaussian(2)
    assert z_score(small.log_ratio(normal((NUM, 2))).exp(), 1.0) < 4
    assert task.log_ratio(z.float()).dtype == F64
    for shape in ((5, 39), (40,), (5, 1, 40)):
        with pytest.raises(ValueError, match="shape"):
            task.log_ratio(torch.zeros(shape))


# Student-t


STUDENTS = [
    StudentT((), 1, 1, 1),
    StudentT((0.6,), 3, 1, 1),
    StudentT((0.8, -0.3), 2.5, 2, 3),
    StudentT((0.5,), 7, 5, 2),
    StudentT((), 0.5, 2, 2),
    StudentT((0.9,) * 3, 40, 3, 3),
]
STUDENT_CASES = pytest.mark.parametrize("task", STUDENTS, ids=repr)


def student_logs(task, x, y):
    """log p(x, y) / (p(x) p(y)) by scipy's multivariate t."""
    sigma, m, z = covariance_of(task), task.dim_x, np.concatenate([x, y], 1)

    def log_density(points, shape):
        return stats.multivariate_t.logpdf(points, shape=shape, df=task.df)

    return log_density(z, sigma) - log_density(x, sigma[:m, :m]) - log_density(y, sigma[m:, m:])


@STUDENT_CASES
def test_student_information_by_entropies(task):
    sigma, m = covariance_of(task), task.dim_x
    h_x, h_y, h_xy = (
        stats.multivariate_t.entropy(shape=part, df=task.df)
        for part in (sigma[:m, :m], sigma[m:, m:], sigma)
    )
    assert task.mutual_information == pytest.approx(h_x + h_y - h_xy, rel=1e-8)


@STUDENT_CASES
def test_student_information_by_its_draws(task):
    """Both the law of the draws and the constant: the mean log density ratio is I."""
    logs = student_logs(task, *draws(task))
    assert z_score(torch.from_numpy(logs), task.mutual_information) < 4


@pytest.mark.parametrize("rho, df", [(0.0, 1), (0.6, 3), (-0.9, 2)])
def test_student_information_by_integration(rho, df):
    """The trapezium rule on s, t with x = sinh(s), where the integrand decays on both sides."""
    task = StudentT((rho,), df, 1, 1)
    s = np.linspace(-18, 18, 721)
    x, y = (part.reshape(-1, 1) for part in np.meshgrid(np.sinh(s), np.sinh(s)))
    density = stats.multivariate_t.pdf(np.concatenate([x, y], 1), shape=covariance_of(task), df=df)
    mass = density * (np.cosh(np.arcsinh(x)) * np.cosh(np.arcsinh(y)))[:, 0] * (s[1] - s[0]) ** 2
    assert mass.sum() == pytest.approx(1, abs=1e-6)
    information = (mass * student_logs(task, x, y)).sum()
    assert task.mutual_information == pytest.approx(information, abs=1e-5)


def test_student_of_one_degree_of_freedom_in_closed_form():
    assert StudentT((), 1, 1, 1).mutual_information == pytest.approx(math.log(8 * math.pi) - 3)


@pytest.mark.parametrize("dims", [(1, 1), (3, 2), (50, 50)])
def test_student_becomes_gaussian(dims):
    """c = m n / (2 df^2) (1 + O(1 / df)); far out it is 0 and never below."""
    for df in (1e3, 1e4):
        ratio = StudentT((), df, *dims).mutual_information / (math.prod(dims) / (2 * df**2))
        assert ratio == pytest.approx(1, abs=2 * sum(dims) / df + 1e-2)
    gaussian = CorrelatedNormal((0.5,), *dims).mutual_information
    for df in (1e5, 3e5, 1e6):
        excess = StudentT((0.5,), df, *dims).mutual_information - gaussian
        assert 0 <= excess < 1e-6


@STUDENT_CASES
def test_student_draws(task):
    x, y = draws(task)
    for column in (x[:, 0], y[:, -1]):
        assert stats.kstest(column, stats.t(task.df).cdf).pvalue > 1e-3
    z = np.concatenate([x, y], 1)
    quadratic = (z * np.linalg.solve(covariance_of(task), z.T).T).sum(1)
    radius = stats.f(z.shape[1], task.df)
    assert stats.kstest(quadratic / z.shape[1], radius.cdf).pvalue > 1e-3
    if task.correlations:  # Kendall's tau of an elliptical law, with the error of a Gaussian
        tau = stats.kendalltau(x[:, 0], y[:, 0]).statistic
        assert abs(tau - 2 / math.pi * math.asin(task.correlations[0])) < 0.02


# additive uniform noise


@pytest.mark.parametrize("noise", [0.01, 0.1, 0.49, 0.5, 0.51, 0.75, 4.0])
def test_additive_uniform_information_by_integration(noise):
    """E log p(y | x) / p(y) on midpoints of (x, n), p(y) being the length of an overlap."""
    middles = (np.arange(2000) + 0.5) / 2000
    y = middles[:, None] + noise * (2 * middles - 1)
    overlap = np.minimum(y + noise, 1) - np.maximum(y - noise, 0)
    task = AdditiveUniform(noise)
    assert task.mutual_information == pytest.approx(-np.log(overlap).mean(), abs=1e-5)


def test_additive_uniform_draws_and_limits():
    x, y = draws(AdditiveUniform(0.3))
    noise = (y - x) / 0.3
    assert stats.kstest(x[:, 0], "uniform").pvalue > 1e-3
    assert stats.kstest(noise[:, 0], stats.uniform(-1, 2).cdf).pvalue > 1e-3
    assert abs(np.corrcoef(x[:, 0], noise[:, 0])[0, 1]) < 4 / math.sqrt(NUM)
    below, above = (AdditiveUniform(0.5 + d).mutual_information for d in (-1e-9, 1e-9))
    assert below == pytest.approx(0.5, abs=1e-8) and above == pytest.approx(0.5, abs=1e-8)
    assert AdditiveUniform(1e6).mutual_information == pytest.approx(2.5e-7)


# transforms


def root(v):
    return np.sign(v) * np.abs(v) ** (2 / 3)


def mixture(weight, low, high):
    def pdf(v):
        return weight * stats.norm.pdf(v, low) + (1 - weight) * stats.norm.pdf(v, high)

    def cdf(v):
        return weight * stats.norm.cdf(v, low) + (1 - weight) * stats.norm.cdf(v, high)

    return pdf, cdf


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


# bad arguments


@pytest.mark.parametrize(
    "make, reason",
    [
        (lambda: CorrelatedNormal((0.5,), 0, 1), "dim_x is 0"),
        (lambda: CorrelatedNormal((0.5,), 1, 1.0), "dim_y is 1.0"),
        (lambda: CorrelatedNormal((1.0,), 1, 1), "correlation is 1.0"),
        (lambda: CorrelatedNormal((0.1, math.nan), 2, 2), "correlation is nan"),
        (lambda: CorrelatedNormal((0.1, 0.1), 3, 1), "2 canonical correlations for 3 and 1"),
        (lambda: DenseNormal(0.5, 1, -1), "dim_y is -1"),
        (lambda: DenseNormal(-0.1, 2, 2), "correlation is -0.1"),
        (lambda: DenseNormal(1.0, 2, 2), "correlation is 1.0"),
        (lambda: BlockGaussian(5), "dim is 5"),
        (lambda: BlockGaussian(0), "dim is 0"),
        (lambda: StudentT((), 0, 1, 1), "0 degrees"),
        (lambda: StudentT((), math.inf, 1, 1), "inf degrees"),
        (lambda: StudentT((2.0,), 3, 1, 1), "correlation is 2.0"),
        (lambda: AdditiveUniform(0.0), "noise is 0.0"),
        (lambda: AdditiveUniform(math.inf), "noise is inf"),
        (lambda: Transformed(PAIR, "cube"), "unknown transform 'cube'"),
        (lambda: PAIR.sample(0, generator()), "num is 0"),
        (lambda: PAIR.sample(2.5, generator()), "num is 2.5"),
        (lambda: BlockGaussian(4).joint(-1, generator()), "num is -1"),
    ],
)
def test_bad_arguments(make, reason):
    assert reason in error_of(make)

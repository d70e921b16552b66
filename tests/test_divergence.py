"""Divergences of fields whose Jacobian is known, and the probes that estimate them."""

import math

import pytest
import torch
from exact import F64, generator, normal, z_score

from ebm_app.paths.divergence import (
    ExactDivergence,
    Hutchinson,
    NoDivergence,
    jacobian,
    rademacher_probes,
)

SHAPES = [(3,), (2, 2, 3)]


def matrix(shape, seed=9):
    size = math.prod(shape)
    return normal((size, size), seed) / 2


def linear(shape):
    """x -> A x on flattened examples."""
    a = matrix(shape)
    return lambda x: (x.flatten(1) @ a.T.to(x.dtype)).reshape(x.shape)


def nonlinear(shape):
    """x -> tanh(A x) |x|^2, every component of which reads every other."""
    mix = linear(shape)
    return lambda x: (
        torch.tanh(mix(x)) * x.flatten(1).square().sum(1).reshape(-1, *(1,) * len(shape))
    )


def by_autograd(field, x):
    """df/dx (B, D, D), an example at a time."""
    size = x[0].numel()
    rows = [torch.func.jacrev(lambda y: field(y[None])[0])(example) for example in x]
    return torch.stack([row.reshape(size, size) for row in rows])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_nonlinear_field_has_the_jacobian_of_each_example_alone(shape):
    field, x = nonlinear(shape), normal((4, *shape))
    expected = by_autograd(field, x)
    for method in (jacobian, ExactDivergence(), NoDivergence()):
        assert torch.equal(method(field, x)[0], field(x))
    assert NoDivergence()(field, x)[1].shape == (0, 4)
    assert torch.allclose(jacobian(field, x)[1], expected, rtol=1e-12, atol=1e-12)
    traces = expected.diagonal(dim1=1, dim2=2).sum(1)
    assert torch.allclose(ExactDivergence()(field, x)[1], traces[None], rtol=1e-12)
    assert traces.std() > 0.1


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_probe_gives_its_quadratic_form(shape):
    field, x, probes = nonlinear(shape), normal((4, *shape)), normal((5, 4, *shape), 1)
    value, estimates = Hutchinson(probes)(field, x)
    z = probes.flatten(2)
    expected = torch.einsum("kbi,bij,kbj->kb", z, by_autograd(field, x), z)
    assert torch.equal(value, field(x))
    assert torch.allclose(estimates, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_probes_estimate_the_divergence_without_bias_and_with_their_variance(shape):
    """For probes of +1 and -1 the variance is that of the symmetric part off the diagonal:
    (1/2) |A + A^T|^2 there."""
    x = normal((3, *shape))
    _, estimates = Hutchinson(rademacher_probes(4000, x, 0))(linear(shape), x)
    a = matrix(shape)
    both = a + a.T
    variance = (both - both.diag().diag()).square().sum() / 2
    assert z_score(estimates, a.trace()) < 4
    assert z_score((estimates - a.trace()).square(), variance) < 4
    assert z_score(estimates) > 8  # the trace is not 0: the mean could have missed it


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_results_are_detached_and_divergences_float64(dtype):
    x = normal((4, 1, 2, 2)).to(dtype).requires_grad_()
    field = nonlinear((1, 2, 2))
    probes = rademacher_probes(2, x, 0)
    assert probes.dtype == dtype
    for method in (NoDivergence(), ExactDivergence(), jacobian, Hutchinson(probes)):
        with torch.no_grad():  # as a solver calls it
            value, other = method(field, x)
        assert value.dtype == dtype and other.dtype == F64
        assert not value.requires_grad and not other.requires_grad
    assert torch.allclose(
        ExactDivergence()(field, x)[1], ExactDivergence()(field, x.double())[1], atol=1e-5
    )


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_probes_are_plus_and_minus_one_equally_often(shape):
    probes = rademacher_probes(50, normal((100, *shape)), 0)
    assert probes.shape == (50, 100, *shape) and probes.dtype == F64
    assert torch.equal(probes.abs(), torch.ones_like(probes))
    assert z_score(probes.flatten()[:, None]) < 4


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_probes_of_an_example_do_not_depend_on_its_batch(shape):
    x = normal((6, *shape))
    before = torch.random.get_rng_state()
    whole = rademacher_probes(4, x, 3)
    order = torch.randperm(6, generator=generator(2))
    assert torch.equal(rademacher_probes(4, x[order], 3), whole[:, order])
    assert torch.equal(rademacher_probes(4, x[2:3], 3), whole[:, 2:3])
    assert torch.equal(
        rademacher_probes(4, x.transpose(0, -1).contiguous().transpose(0, -1), 3), whole
    )
    assert not torch.equal(rademacher_probes(4, x, 4), whole)
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize("seed", [0, 1, 2**40])
def test_probes_of_different_examples_are_uncorrelated(seed):
    """Of 200 examples and 64 numbers each: no two alike, and the mean and the mean square of the
    correlations of the pairs as for independent signs."""
    x = normal((200, 1, 4, 4))
    z = rademacher_probes(4, x, seed).transpose(0, 1).flatten(1)
    size = z.shape[1]
    pairs = torch.triu(torch.ones(200, 200, dtype=torch.bool), 1)
    correlations = (z @ z.T / size)[pairs]
    assert correlations.abs().max() < 6 / math.sqrt(size)
    assert abs(correlations.mean()) < 4.5 / math.sqrt(size * len(correlations))
    assert abs(correlations.square().mean() * size - 1) < 4.5 * math.sqrt(2 / len(correlations))


def test_probes_of_different_seeds_are_uncorrelated():
    x = normal((1, 8, 8))
    seeds = [*range(100), *(2**32 * k for k in range(1, 101))]
    z = torch.stack([rademacher_probes(1, x, seed).flatten() for seed in seeds])
    correlations = (z @ z.T / 64)[torch.triu(torch.ones(200, 200, dtype=torch.bool), 1)]
    assert correlations.abs().max() < 6 / 8
    assert abs(correlations.mean()) < 4.5 / math.sqrt(64 * len(correlations))


def test_an_example_that_differs_in_its_last_digit_has_other_probes():
    x = normal((1, 1, 4, 4))
    near = x.clone()
    near[0, 0, 0, 0] = torch.nextafter(x[0, 0, 0, 0], torch.tensor(9.0, dtype=F64))
    one, other = (rademacher_probes(8, y, 0).flatten() for y in (x, near))
    assert abs((one * other).mean()) < 5 / math.sqrt(one.numel())

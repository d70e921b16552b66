"""Tensor functions and random numbers against direct computations."""

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from exact import F64, normal

from ebm_app.utils.random import initial_weights
from ebm_app.utils.tensors import (
    derivative,
    expand_like,
    mean_except_batch,
    standard_error,
    standard_normal_log_density,
    sum_except_batch,
)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("shape", [(4, 3), (4, 2, 3, 5)], ids=["D", "CHW"])
def test_batch_functions_match_loops_over_examples(shape, dtype):
    x, coefficient = normal(shape).to(dtype), 1 - normal(shape[:1], 1).abs() / 1e9
    expanded = expand_like(coefficient, x)
    assert expanded.shape == (4,) + (1,) * (len(shape) - 1) and expanded.dtype == dtype
    assert torch.equal(expanded.flatten(), coefficient.to(dtype))
    assert expand_like(coefficient[0], x).shape == ()
    with pytest.raises(ValueError, match=r"\(4, 1\)"):
        expand_like(torch.ones(4, 1), x)
    for example, total, mean in zip(x, sum_except_batch(x), mean_except_batch(x), strict=True):
        values, rel = example.flatten().tolist(), 1e-13 if dtype == F64 else 1e-5
        assert total.item() == pytest.approx(math.fsum(values), rel=rel)
        assert mean.item() == pytest.approx(math.fsum(values) / len(values), rel=rel)
    expected = torch.distributions.Normal(0.0, 1.0).log_prob(x)
    torch.testing.assert_close(standard_normal_log_density(x), expected)


def test_standard_error_matches_repeated_means():
    values = normal((2000, 60)).exp()
    errors = torch.stack([standard_error(row) for row in values])
    squares = (values.mean(1) - math.exp(0.5)).square() - errors.square()
    assert abs(squares.mean() / squares.std() * math.sqrt(len(squares))) < 4
    assert standard_error(torch.tensor([1, 3])).item() == pytest.approx(1)


def test_derivatives_and_initial_weights_are_thread_safe():
    t = torch.linspace(0.1, 0.9, 50, dtype=F64)
    seeds = [0, 1] * 200

    def derivatives(_):
        return derivative(lambda time: time.square().sin(), t)

    def weights(seed):
        with initial_weights(seed):
            return torch.nn.Linear(8, 8).weight.detach()

    before = torch.get_rng_state()
    alone = [weights(0), weights(1)]
    with ThreadPoolExecutor(4) as pool:
        values, drawn = list(pool.map(derivatives, seeds)), list(pool.map(weights, seeds))
    for seed, value, weight in zip(seeds, values, drawn, strict=True):
        torch.testing.assert_close(value, 2 * t * t.square().cos(), rtol=1e-14, atol=1e-14)
        assert torch.equal(weight, alone[seed])
    assert not torch.equal(*alone) and torch.equal(torch.get_rng_state(), before)

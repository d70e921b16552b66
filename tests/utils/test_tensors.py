"""Shapes of coefficients; derivatives and initial weights in threads."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from exact import F64

from ebm_app.utils.random import initial_weights
from ebm_app.utils.tensors import derivative, expand_like


def test_coefficients_with_two_dimensions_are_refused():
    with pytest.raises(ValueError, match=r"\(4, 1\)"):
        expand_like(torch.ones(4, 1), torch.ones(4, 3))


def test_derivatives_and_initial_weights_are_thread_safe():
    t, seeds = torch.linspace(0.1, 0.9, 50, dtype=F64), [0, 1] * 200

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

"""Divergences of fields with a known Jacobian, and the probes that estimate them."""

import math

import pytest
import torch
from exact import F64, generator, normal, z_score

from ebm_app.paths.probability_flow import probes_for, with_divergence
from ebm_app.utils.random import normal_draws

SHAPE = (2, 2, 3)
MATRIX = normal((12, 12), 9) / 2


def field(x):
    """x -> tanh(A x) |x|^2, whose components depend on every component of x."""
    x, shape = x.flatten(1), x.shape
    return (torch.tanh(x @ MATRIX.T.to(x.dtype)) * x.square().sum(1, keepdim=True)).view(shape)


@pytest.mark.parametrize("dtype, tol", [(F64, 1e-10), (torch.float32, 1e-3)])
def test_probes_give_quadratic_forms_of_the_jacobian(dtype, tol):
    x, probes = normal((4, *SHAPE)).to(dtype), normal((5, 4, *SHAPE), 1)
    rows = [torch.func.jacrev(lambda y: field(y[None])[0])(example) for example in x]
    expected = torch.stack(rows).double().reshape(4, 12, 12)
    z = probes.flatten(2)
    value, forms = with_divergence(field, x, probes)
    assert torch.equal(value, field(x)) and value.dtype == dtype and forms.dtype == F64
    assert torch.allclose(forms, torch.einsum("kbi,bij,kbj->kb", z, expected, z), tol, tol)
    traces = expected.diagonal(dim1=1, dim2=2).sum(1)
    exact = with_divergence(field, x, probes_for(0, x, 0))[1].sum(0)
    assert torch.allclose(exact, traces, tol, tol) and traces.std() > 0.1
    assert with_divergence(field, x, probes[:0])[1].shape == (0, 4)


@pytest.mark.parametrize("draw", [probes_for, normal_draws])
def test_draws_of_a_point_do_not_depend_on_its_batch(draw):
    x, before = normal((60, 1, 4, 4)), torch.random.get_rng_state()
    whole = draw(8, x, 3)
    order = torch.randperm(60, generator=generator(2))
    assert torch.equal(draw(8, x[order], 3), whole[:, order])
    assert torch.equal(draw(8, x[2:3], 3), whole[:, 2:3])
    assert torch.equal(before, torch.random.get_rng_state())
    assert z_score(whole.flatten()[:, None]) < 4
    assert z_score(whole.flatten()[:, None].square() - 1) < 4 or draw is probes_for
    others = [draw(8, x[:1], seed)[:, 0] for seed in (4, 5, 3 + 2**32)]
    rows = torch.stack([*whole.transpose(0, 1), *others]).flatten(1)
    correlations = torch.corrcoef(rows)[torch.triu_indices(len(rows), len(rows), 1).unbind()]
    assert correlations.abs().max() < 6 / math.sqrt(rows.shape[1])

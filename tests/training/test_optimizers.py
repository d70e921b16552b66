"""Muon against the implementation of torch, and against Adam."""

import torch
from exact import normal
from torch import nn

from ebm_app.training.optimizers import NEWTON_SCHULZ, OPTIMIZERS, Muon, orthogonalise


def test_muon_matches_torch_on_matrices():
    """Torch computes in bfloat16. A convolution (out, in, h, w) is the matrix (out, in h w)."""
    ours, theirs = (nn.Parameter(normal((64, 48)).float()) for _ in range(2))
    before = ours.detach().clone()
    filters = nn.Parameter(before.view(64, 12, 2, 2).clone())
    own = Muon([ours, filters], lr=0.01, weight_decay=0.1)
    settings = {"momentum": 0.95, "adjust_lr_fn": "match_rms_adamw"}
    other = torch.optim.Muon([theirs], lr=0.01, weight_decay=0.1, **settings)
    for step in range(3):
        for weight in (ours, theirs, filters):
            weight.grad = normal((64, 48), step).float().view_as(weight)
        own.step()
        other.step()
    assert (ours - theirs).norm() < 0.02 * (ours - before).norm()
    assert torch.equal(filters.flatten(1), ours)


def test_newton_schulz_steps_act_on_singular_values():
    """Stacks of one shorter side are computed together, wide, tall and square ones."""
    a, b, c = NEWTON_SCHULZ
    stacks = [normal((2, 6, 9)), normal((3, 9, 6), 1), normal((1, 6, 6), 2), normal((1, 4, 6), 3)]
    for stack, result in zip(stacks, orthogonalise(stacks), strict=True):
        left, values, right = torch.linalg.svd(stack, full_matrices=False)
        values = values / values.norm(dim=1, keepdim=True)
        for _ in range(5):
            values = a * values + b * values**3 + c * values**5
        torch.testing.assert_close(result, left @ (values[..., None] * right))


def test_muon_is_adam_on_other_weights():
    runs = []
    for name in ("adam", "muon"):
        weights = [nn.Parameter(normal(shape).float()) for shape in [(32,), (2, 64, 3, 3)]]
        optimizer = OPTIMIZERS[name](weights, lr=0.01, weight_decay=0.1)
        for step in range(3):
            for weight in weights:
                weight.grad = normal(weight.shape, step).float()
            optimizer.step()
        runs.append(weights)
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))

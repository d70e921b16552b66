"""Muon against the implementation of torch, and against Adam."""

import torch
from exact import normal
from torch import nn

from ebm_app.training.optimizers import OPTIMIZERS, Muon


def test_muon_matches_torch_on_matrices():
    """Torch computes in bfloat16. A convolution (out, in, h, w) is the matrix (out, in h w)."""
    ours, theirs = (nn.Parameter(normal((64, 48)).float()) for _ in range(2))
    before = ours.detach().clone()
    filters = nn.Parameter(before.view(64, 12, 2, 2).clone())
    own = Muon([ours, filters], lr=0.01, weight_decay=0.1)
    other = torch.optim.Muon(
        [theirs], lr=0.01, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw"
    )
    for step in range(3):
        for weight in (ours, theirs, filters):
            weight.grad = normal((64, 48), step).float().view_as(weight)
        own.step()
        other.step()
    assert (ours - theirs).norm() < 0.02 * (ours - before).norm()
    assert torch.equal(filters.flatten(1), ours)


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

"""The step of Muon against torch's own and that of Adam, and the learning rate of a step."""

from dataclasses import replace

import torch
from exact import normal
from torch import nn

from ebm_app.config import LoopConfig
from ebm_app.training.optimizers import OPEN_ENDED, OPTIMIZERS, Muon, learning_rate


def test_a_matrix_steps_as_by_the_muon_of_torch():
    """Which computes in bfloat16; a convolution (out, in, h, w) steps as the matrix (out, in h
    w)."""
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


def test_other_weights_step_as_by_adam():
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


def test_an_open_ended_rate_rises_stays_and_falls():
    config = LoopConfig(
        learning_rate=1.0,
        lr_scheduler=OPEN_ENDED,
        lr_warmup_steps=4,
        lr_decay_steps=5,
        max_train_steps=20,
    )
    rates = [learning_rate(config, step) for step in range(21)]
    assert rates[:5] == [0.0, 0.25, 0.5, 0.75, 1.0] and set(rates[4:16]) == {1.0}
    assert rates[15:] == [1.0, 0.8, 0.6, 0.4, 0.2, 0.0]
    assert learning_rate(replace(config, lr_warmup_steps=0, lr_decay_steps=0), 0) == 1.0

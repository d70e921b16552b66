"""The small training loop."""

import pytest
import torch

from ebm_app.io.errors import NumericalError
from ebm_app.numerics.fitting import fit


def test_steps_are_those_of_adam():
    """With decay and a schedule, against torch's own objects."""
    data = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))

    def loss(weight: torch.Tensor, step: int) -> torch.Tensor:
        return (data[step % 20] @ weight - 1).square().mean()

    ours, theirs = (torch.ones(3, requires_grad=True) for _ in range(2))
    steps = list(fit([ours], lambda step: loss(ours, step), 30, 0.1, weight_decay=0.2))
    optimizer = torch.optim.AdamW([theirs], 0.1, weight_decay=0.2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=30)
    for step in range(30):
        optimizer.zero_grad()
        loss(theirs, step).backward()
        optimizer.step()
        schedule.step()
    assert steps == list(range(1, 31))
    torch.testing.assert_close(ours, theirs)


def test_a_loss_that_is_not_finite_ends_the_loop():
    weight = torch.ones(1, requires_grad=True)
    with pytest.raises(NumericalError, match="the loss of step 3 is nan"):
        list(fit([weight], lambda step: (weight * (step < 2) / (step < 2)).sum(), 5, 0.1))

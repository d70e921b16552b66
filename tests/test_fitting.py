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


def test_a_schedule_of_ones_own_shrinks_the_first_step():
    """The first step of Adam is the rate, whatever the gradient."""
    weight = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    steps = fit([weight], lambda step: 7 * weight.sum(), 2, 0.1, factor=lambda n: 0.5 / (1 + n))
    assert next(steps) == 1 and weight.item() == pytest.approx(-0.05)
    assert next(steps) == 2 and weight.item() == pytest.approx(-0.075)


def test_a_loss_that_is_not_finite_ends_the_loop():
    weight = torch.ones(1, requires_grad=True)
    with pytest.raises(NumericalError, match="the loss of step 3 is nan"):
        list(fit([weight], lambda step: (weight * (step < 2) / (step < 2)).sum(), 5, 0.1))

"""The small training loop."""

import pytest
import torch

from ebm_app.io.errors import NumericalError
from ebm_app.numerics.fitting import constant, cosine, fit, one_cycle


def test_steps_are_those_of_adam():
    """With decay and a schedule, against torch's own objects."""
    data = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))

    def loss(weight: torch.Tensor, step: int) -> torch.Tensor:
        return (data[step % 20] @ weight - 1).square().mean()

    ours, theirs = (torch.ones(3, requires_grad=True) for _ in range(2))
    steps = list(fit([ours], lambda step: loss(ours, step), 30, 0.1, cosine, weight_decay=0.2))
    optimizer = torch.optim.AdamW([theirs], 0.1, weight_decay=0.2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30)
    for step in range(30):
        optimizer.zero_grad()
        loss(theirs, step).backward()
        optimizer.step()
        schedule.step()
    assert steps == list(range(1, 31))
    torch.testing.assert_close(ours, theirs)


def test_schedules():
    assert [constant(0.0), constant(1.0)] == [1, 1]
    assert [cosine(0.0), cosine(0.5), cosine(1.0)] == pytest.approx([1, 0.5, 0])
    assert [one_cycle(x) for x in (0, 0.15, 0.3, 0.65, 1)] == pytest.approx(
        [0.04, 0.52, 1, 0.5, 0]
    )


def test_a_loss_that_is_not_finite_ends_the_loop():
    weight = torch.ones(1, requires_grad=True)
    with pytest.raises(NumericalError, match="the loss of step 3 is nan"):
        list(fit([weight], lambda step: (weight * (step < 2) / (step < 2)).sum(), 5, 0.1))

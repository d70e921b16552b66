"""The small training loop."""

import pytest
import torch

from ebm_app.utils.errors import NumericalError
from ebm_app.utils.fitting import fit, select_average


def test_factor_scales_the_steps_of_adam():
    """The first step of Adam is the learning rate, whatever the gradient."""
    weight = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    steps = fit([weight], lambda step: 7 * weight.sum(), 2, 0.1, factor=lambda n: 0.5 / (1 + n))
    assert next(steps) == 1 and weight.item() == pytest.approx(-0.05)
    assert next(steps) == 2 and weight.item() == pytest.approx(-0.075)


def test_loss_that_is_not_finite_raises():
    weight = torch.ones(1, requires_grad=True)
    with pytest.raises(NumericalError, match="step 3 is nan"):
        list(fit([weight], lambda step: (weight * (step < 2) / (step < 2)).sum(), 5, 0.1))


def test_best_average_has_the_smallest_validation_loss():
    module = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(module.weight)
    steps, seen = [], []

    def train(num_steps):
        for step in range(1, num_steps + 1):
            steps.append(step)
            module.weight.data += 1
            yield step

    def validate(average):
        seen.append(average.weight.item())
        return abs(seen[-1] - 2)

    best, last = select_average(module, train(100), 100, validate, 0.0, 2, patience=6)
    # without decay, the average is the current weight
    assert seen == [0, 2, 4, 6, 8] and steps[-1] == 8
    assert best.weight.item() == 2 and last.weight.item() == 8
    best, last = select_average(module, train(1), 1, validate, 0.5, 2)
    # the last step is validated too; the decay of step 1 is 1/11
    assert best.weight.item() == 8 and last.weight.item() == pytest.approx(8 + 10 / 11)

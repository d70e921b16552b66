"""The small training loop."""

import pytest
import torch

from ebm_app.utils.errors import NumericalError
from ebm_app.utils.fitting import fit


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

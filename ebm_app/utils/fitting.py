r"""A small training loop, for networks that train within seconds or minutes.

>>> weight = torch.zeros(1, requires_grad=True)
>>> for step in fit([weight], lambda step: (weight - 3).square().sum(), 200, 0.1):
...     pass
>>> step, round(weight.item(), 1)
(200, 3.0)
"""

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR

from ebm_app.utils.errors import NumericalError


def fit(
    parameters: Iterable[Tensor],
    loss_of_step: Callable[[int], Tensor],
    num_steps: int,
    learning_rate: float,
    weight_decay: float = 0.0,
    factor: Callable[[int], float] | None = None,
) -> Iterator[int]:
    """Minimise a loss by AdamW, and yield the number of completed steps after each step.

    The caller may validate, average weights or stop between the steps.

    Args:
        loss_of_step: completed steps -> loss (), with a graph to the ``parameters``.
        learning_rate: peak learning rate. weight_decay: decoupled weight decay.
        factor: completed steps -> factor of the learning rate; by default the one-cycle schedule
            of Smith and Topin 2017, arXiv:1708.07120, which rises over 30 % of the steps.

    Raises:
        NumericalError: if the loss is not finite.
    """
    optimizer = torch.optim.AdamW(parameters, learning_rate, weight_decay=weight_decay)
    if factor is None:
        schedule = OneCycleLR(optimizer, max_lr=learning_rate, total_steps=num_steps)
    else:
        schedule = LambdaLR(optimizer, factor)
    for step in range(num_steps):
        loss = loss_of_step(step)
        if not loss.isfinite():
            raise NumericalError(
                f"The loss of step {step + 1} is {loss.item()}. Use a smaller learning rate, or "
                "check the data."
            )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        yield step + 1

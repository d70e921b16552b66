r"""One small training loop, for networks that are trained within seconds or minutes.

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
    """Minimise a loss by AdamW; yields the number of steps done, 1 to ``num_steps``, after each.

    A caller validates, averages weights or stops between the steps: it is a plain ``for`` loop.

    Args:
        loss_of_step: (number of steps done) -> loss (), with a graph to the ``parameters``.
        learning_rate: its peak. weight_decay: decoupled; 0 is Adam.
        factor: (number of steps done) -> share of the learning rate; by default it rises over
            three tenths of the steps and falls to nothing.

    Raises:
        NumericalError: for a loss that is not finite.

    Source of the default schedule: Smith and Topin 2017, arXiv:1708.07120.
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
                f"the loss of step {step + 1} is {loss.item()}: take a smaller learning rate, or "
                "other data"
            )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        yield step + 1

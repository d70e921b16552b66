r"""One small training loop, for networks that are trained within seconds or minutes.

>>> weight = torch.zeros(1, requires_grad=True)
>>> for step in fit([weight], lambda step: (weight - 3).square().sum(), 200, 0.1):
...     pass
>>> step, round(weight.item(), 2)
(200, 3.0)
"""

import math
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from ebm_app.io.errors import NumericalError

#: share of the steps that are done -> share of the learning rate of the next one
Schedule = Callable[[float], float]


def constant(done: float) -> float:
    """1."""
    return 1.0


def cosine(done: float) -> float:
    """(1 + cos(pi done)) / 2, from 1 to 0."""
    return (1 + math.cos(math.pi * done)) / 2


def one_cycle(done: float) -> float:
    """Half a cosine from 1/25 up to 1 over three tenths of the steps, then ``cosine`` down to 0.

    Source: Smith and Topin 2017, arXiv:1708.07120.
    """
    rise = 0.3
    if done < rise:
        return 1 - 24 / 25 * cosine(done / rise)
    return cosine((done - rise) / (1 - rise))


def fit(
    parameters: Iterable[Tensor],
    loss_of_step: Callable[[int], Tensor],
    num_steps: int,
    learning_rate: float,
    schedule: Schedule = cosine,
    weight_decay: float = 0.0,
) -> Iterator[int]:
    """Minimise a loss by AdamW; yields the number of steps done, 1 to ``num_steps``, after each.

    A caller validates, averages weights or stops between the steps: it is a plain ``for`` loop.

    Args:
        loss_of_step: (number of steps done) -> loss (), with a graph to the ``parameters``.
        learning_rate: its peak. schedule: its course. weight_decay: decoupled; 0 is Adam.

    Raises:
        NumericalError: for a loss that is not finite.
    """
    optimizer = torch.optim.AdamW(parameters, learning_rate, weight_decay=weight_decay)
    for step in range(num_steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * schedule(step / num_steps)
        loss = loss_of_step(step)
        if not loss.isfinite():
            raise NumericalError(
                f"the loss of step {step + 1} is {loss.item()}: take a smaller learning rate, or "
                "other data"
            )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield step + 1

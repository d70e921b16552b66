r"""Small training loop for networks that train within minutes.

>>> weight = torch.zeros(1, requires_grad=True)
>>> for step in fit([weight], lambda step: (weight - 3).square().sum(), 200, 0.1):
...     pass
>>> step, round(weight.item(), 1)
(200, 3.0)
"""

import copy
import math
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR

from ebm_app.utils.errors import NumericalError

Module = TypeVar("Module", bound=nn.Module)


def fit(
    parameters: Iterable[Tensor],
    loss_of_step: Callable[[int], Tensor],
    num_steps: int,
    learning_rate: float,
    weight_decay: float = 0.0,
    factor: Callable[[int], float] | None = None,
) -> Iterator[int]:
    """Minimise a loss with AdamW; yield the number of completed steps after each step.

    The caller may validate, average weights or stop between steps.

    Args:
        loss_of_step: completed steps -> differentiable loss ().
        learning_rate: peak learning rate. weight_decay: decoupled weight decay.
        factor: completed steps -> factor of the learning rate. Default: the one-cycle schedule of
            Smith and Topin 2017, arXiv:1708.07120, with a warm-up of 30% of the steps.

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


def select_average(
    module: Module,
    steps: Iterator[int],
    num_steps: int,
    validate: Callable[[Module], float],
    decay: float,
    check_every: int,
    patience: float = math.inf,
) -> tuple[Module, Module]:
    """Train a module; return the best and the last moving average of its weights.

    The average is validated every ``check_every`` steps and after the last step. The best average
    has the smallest loss; if none improves on the untrained module, that module is returned.

    Args:
        steps: ``fit`` of the module for ``num_steps`` steps. validate: module -> held-out loss.
        decay: max decay of the average, which is min(decay, k / (k + 10)) after k steps.
        patience: steps without improvement after which training stops.
    """
    average, best, best_step = copy.deepcopy(module), copy.deepcopy(module), 0
    with torch.no_grad():
        best_loss = validate(average)
    for step in steps:
        with torch.no_grad():
            weight = 1 - min(decay, step / (step + 10))
            torch._foreach_lerp_(list(average.parameters()), list(module.parameters()), weight)
            if step % check_every and step < num_steps:
                continue
            loss = validate(average)
        if loss < best_loss:
            best, best_step, best_loss = copy.deepcopy(average), step, loss
        if step - best_step >= patience:
            break
    return best, average

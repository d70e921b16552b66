"""What estimates from rows share: an interval, the error of rows, and warnings in words."""

from collections.abc import Sequence

import torch
from torch import Tensor

#: standard errors in half an interval of 95 percent
HALF_WIDTH = 1.96


def interval_of(value: float, stderr: float) -> tuple[float, float]:
    """Of 95 percent."""
    return value - HALF_WIDTH * stderr, value + HALF_WIDTH * stderr


def error_of_rows(influence: Tensor, groups: Tensor) -> float:
    """The standard error of a mean over N rows, from what each of them moves it by, times N: (N,)
    float64 of mean 0. Rows of the same group (N,), copies of one another, are one.

    >>> influence = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64)
    >>> error_of_rows(influence, torch.arange(4)), error_of_rows(influence, torch.arange(4) % 2)
    (0.5, 0.7071067811865476)
    """
    by_group = torch.zeros(int(groups.max()) + 1, dtype=torch.float64)
    by_group.index_add_(0, groups, influence)
    return by_group.square().sum().sqrt().item() / len(influence)


def warned(warnings: Sequence[str], lines: Sequence[str]) -> str:
    """A summary, whose first lines are the warnings.

    >>> warned(["few rows", "no overlap"], ["0.3 nats"]).splitlines()
    ['Beware: few rows', 'And: no overlap', '0.3 nats']
    """
    first = [f"{'And' if number else 'Beware'}: {part}" for number, part in enumerate(warnings)]
    return "\n".join([*first, *lines])

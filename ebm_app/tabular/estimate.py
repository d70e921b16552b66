"""What estimates from rows share: an interval, warnings in words, and the error of rows."""

import torch
from torch import Tensor

#: standard errors in half an interval of 95 percent
HALF_WIDTH = 1.96


class Estimate:
    """A number from rows: its ``value`` and standard error ``stderr`` in nats; ``doubts``, by
    sentence whether it applies; and ``lines``, all of it in words."""

    @property
    def interval(self) -> tuple[float, float]:
        """Of 95 percent."""
        return self.value - HALF_WIDTH * self.stderr, self.value + HALF_WIDTH * self.stderr

    @property
    def warnings(self) -> list[str]:
        """Reasons to doubt it, a sentence each."""
        return [sentence for sentence, is_so in self.doubts().items() if is_so]

    def summary(self) -> str:
        """The estimate in words; reasons to doubt it come first."""
        first = [f"{'And' if n else 'Beware'}: {part}" for n, part in enumerate(self.warnings)]
        return "\n".join([*first, *self.lines()])


def error_of_rows(influence: Tensor, groups: Tensor) -> float:
    """The standard error of a mean over N rows, from what each of them moves it by, times N: (N,)
    float64 of mean 0. Rows of the same group (N,), copies of one another, are one.

    >>> influence = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64)
    >>> [round(error_of_rows(influence, torch.arange(4) % n), 6) for n in (4, 2)]
    [0.5, 0.707107]
    """
    by_group = torch.zeros(int(groups.max()) + 1, dtype=torch.float64)
    by_group.index_add_(0, groups, influence)
    return by_group.square().sum().sqrt().item() / len(influence)

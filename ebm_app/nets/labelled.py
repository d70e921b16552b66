"""Class labels of points."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import PositiveInt, check_argument
from ebm_app.utils.random import make_generator
from ebm_app.utils.registry import choose
from ebm_app.utils.tensors import as_tensor

#: Value of ``labels`` for random labels with equal class frequencies
RANDOM = "random"
Labels = int | str | Sequence[int] | Tensor


def class_labels(labels: Labels, num: int, num_classes: int, seed: int = 0) -> Tensor:
    """Return class labels (num,) int64 for ``num`` points.

    >>> class_labels([3, 5], 4, num_classes=10)
    tensor([3, 5, 3, 5])

    Args:
        labels: one label for all points, several used in turn, or "random" for the mixture of
            p(x | y) over all classes.
        seed: seed of random labels.

    Raises:
        UserError: for a model without classes, and labels outside 0..num_classes - 1.
    """
    num = check_argument(PositiveInt, "num", num)
    if not num_classes:
        raise UserError("This model was trained without labels. Leave out labels.")
    if isinstance(labels, str):
        choose("labels", labels, (RANDOM,))
        return torch.randint(num_classes, (num,), generator=make_generator("cpu", seed, num))
    values = torch.atleast_1d(as_tensor(labels, "labels"))
    is_integer = torch.can_cast(values.dtype, torch.long)
    if not is_integer or values.ndim != 1 or not 0 < len(values) <= num:
        raise UserError(
            f"Expected 1 to {num} integer labels, got {values.dtype} of shape "
            f"{tuple(values.shape)}."
        )
    if values.min() < 0 or values.max() >= num_classes:
        raise UserError(
            f"Expected labels from 0 to {num_classes - 1}, got {values.min()} to {values.max()}."
        )
    return values.long().repeat(-(-num // len(values)))[:num]

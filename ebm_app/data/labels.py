"""Class labels: from names or numbers to the index of a class in a model or data set."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ebm_app.utils.errors import UserError, shorten
from ebm_app.utils.fields import PositiveInt, check_argument, to_python
from ebm_app.utils.random import LABELS, ImageNoise
from ebm_app.utils.registry import choose

#: Value of ``labels`` for samples from the model without labels
NO_LABEL = "none"
Labels = int | str | Sequence[int | str] | Tensor


def class_numbers(names: Sequence[str]) -> list[int] | None:
    """Return the names as numbers, or None if they are not distinct non-negative integers.

    >>> class_numbers(["1", "2", "10"])
    [1, 2, 10]
    """
    numbers = [int(name) for name in names if name.isdecimal()]
    return numbers if len({*numbers}) == len(names) else None


def sort_classes(names: Iterable[str]) -> tuple[str, ...]:
    """Sort names of integers as numbers; return other names in their order."""
    names = tuple(names)
    return tuple(sorted(names, key=int)) if class_numbers(names) else names


def class_labels(labels: Labels, names: Sequence[str]) -> Tensor:
    """Return the index (K,) of each label in the names of the classes.

    An integer, or the text of one, is the class with this name. If no class has it, and not all
    names are integers, it is the index of the class.

    >>> class_labels(["dog", 0], names=["cat", "dog"])
    tensor([1, 0])
    >>> class_labels(10, names=["1", "2", "10"])
    tensor([2])

    Args:
        labels: one label, or several. A label is an integer or the name of a class.
        names: names of all classes.

    Raises:
        UserError: for a model without classes, and labels that are no classes.
    """
    if not names:
        raise UserError("This model was trained without labels. Leave out labels.")
    values = to_python(labels)  # of arrays and tensors
    is_one = isinstance(values, str) or not isinstance(values, Sequence)
    values = [to_python(value) for value in ([values] if is_one else values)]
    if not values or not {*map(type, values)} <= {int, str}:
        raise UserError(
            f"Expected integers or names of classes as labels, got {shorten(repr(labels))}. Pass "
            "one label or a list."
        )
    return torch.tensor([_index(str(value), names) for value in values])


def labels_of_images(labels: Labels, num: int, names: Sequence[str]) -> Tensor:
    """Return one class index per image, (num,), from one label for all images or one per image.

    Raises:
        UserError: for another number of labels, and as in ``class_labels``.
    """
    values = class_labels(labels, names)
    if len(values) not in (1, num):
        raise UserError(
            f"Expected one label, or one for each of {num} images, got {len(values)} labels."
        )
    return values.expand(num)


def labels_of_samples(
    labels: Labels | None, num: int, names: Sequence[str], frequencies: Sequence[float], seed: int
) -> Tensor | None:
    """Return one class index per sample, (num,), or None to sample without labels.

    >>> labels_of_samples([2, 0], 3, ["cat", "dog", "fly"], (), seed=0)
    tensor([2, 0, 2])

    Args:
        labels: labels that are used in turn; None for random ones; "none" for no labels, unless
            a class has this name.
        names: names of all classes; none for an unconditional model.
        frequencies: frequencies of the random labels (K,). Default: equal ones.

    Raises:
        UserError: for more labels than samples, and as in ``class_labels``.
    """
    num = check_argument(PositiveInt, "num", num)
    if labels is None and not names:
        return None
    if isinstance(labels, str) and labels == NO_LABEL and NO_LABEL not in names:
        return None
    if labels is None:
        u = ImageNoise(seed, range(num), LABELS).uniform().double()
        cumulative = torch.tensor(frequencies or [1.0] * len(names)).double().cumsum(0)
        return torch.searchsorted(cumulative / cumulative[-1], u, right=True)
    values = class_labels(labels, names)
    if len(values) > num:
        raise UserError(f"Expected at most {num} labels for {num} images, got {len(values)}.")
    return values.repeat(-(-num // len(values)))[:num]


def names_of(indices: Tensor, names: Sequence[str]) -> list[str | int]:
    """Return the name of each class index (K,), as labels of a model; other numbers, such as the
    unknown label -1, are unchanged."""
    known = range(len(names))
    return [names[index] if index in known else index for index in indices.tolist()]


def _index(label: str, names: Sequence[str]) -> int:
    """Return the index of the class with a name or number."""
    numbers = class_numbers(names) or range(len(names))
    if label not in names and label.isdecimal() and int(label) in numbers:
        return numbers.index(int(label))
    return names.index(choose("class", label, names))

"""A model told class labels: p_t(x | y) in place of p_t(x), and what guidance makes of both."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ebm_app.nets.time_score import ModelOutput, TimeScoreModel
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import NonNegative, PositiveInt, check_argument
from ebm_app.utils.random import make_generator
from ebm_app.utils.registry import choose
from ebm_app.utils.tensors import as_tensor


class LabelledModel(nn.Module):
    r"""The time score and the Stein score given labels, with classifier-free guidance:

        score = (1 - g) grad log p_t(x) + g grad log p_t(x | y).

    With guidance g = 1 it is the model of p(x | y); above, the classes are clearer and the images
    less varied, and the guided score is that of no density.

    Args:
        model: of which a network has classes. labels: (B,) int64. guidance: g.

    Raises:
        UserError: for guidance below 0.

    Source: Ho and Salimans 2022, arXiv:2207.12598.
    """

    def __init__(self, model: TimeScoreModel, labels: Tensor, guidance: float = 1.0) -> None:
        super().__init__()
        self.model, self.labels = model, labels
        self.guidance = check_argument(NonNegative, "guidance", guidance)
        self.path, self.interval = model.path, model.interval

    def forward(self, x: Tensor, t: Tensor) -> ModelOutput:
        """As ``TimeScoreModel``; x (n B, *) holds the B points of the labels n times over."""
        labels = self.labels.to(x.device).repeat(len(x) // len(self.labels))
        given = self.model(x, t, labels=labels)
        if self.guidance == 1 or not self.model.uses_labels(t):
            return given
        free = self.model(x, t)
        score = torch.lerp(free.score, given.score, self.guidance)
        return given._replace(score=score)


#: labels drawn for every point anew, all classes being equally frequent
RANDOM = "random"
Labels = int | str | Sequence[int] | Tensor


def class_labels(labels: Labels, num: int, num_classes: int, seed: int = 0) -> Tensor:
    """Labels (num,) int64 of as many points; a single one is of all, several take turns, and
    "random" draws them: the points are then of the mixture of p(x | y) over all classes.

    >>> class_labels([3, 5], 4, num_classes=10)
    tensor([3, 5, 3, 5])

    Raises:
        UserError: for a model without classes, and labels that are none of 0..num_classes - 1.
    """
    num = check_argument(PositiveInt, "num", num)
    if not num_classes:
        raise UserError("this model was trained without class labels: leave labels out")
    if isinstance(labels, str):
        choose("labels", labels, (RANDOM,))
        return torch.randint(num_classes, (num,), generator=make_generator("cpu", seed, num))
    given = torch.atleast_1d(as_tensor(labels, "labels"))
    if not torch.can_cast(given.dtype, torch.long) or given.ndim != 1 or not 0 < len(given) <= num:
        raise UserError(f"labels are one to {num} whole numbers, one for each image at most")
    if given.min() < 0 or given.max() >= num_classes:
        raise UserError(f"labels lie between 0 and {num_classes - 1}")
    return given.long().repeat(-(-num // len(given)))[:num]

"""A model told class labels: p_t(x | y) in place of p_t(x), and what guidance makes of both."""

import torch
from torch import Tensor, nn

from ebm_app.models.time_score import ModelOutput, TimeScoreModel
from ebm_app.numerics.tensors import sum_except_batch


class LabelledModel(nn.Module):
    r"""The time score and the Stein score given labels, with classifier-free guidance:

        score = (1 - g) grad log p_t(x) + g grad log p_t(x | y).

    With guidance g = 1 it is the model of p(x | y); above, the classes are clearer and the images
    less varied, and the guided score is that of no density.

    Args:
        model: of which a network has classes. labels: (B,) int64. guidance: g >= 0.

    Source: Ho and Salimans 2022, arXiv:2207.12598.
    """

    def __init__(self, model: TimeScoreModel, labels: Tensor, guidance: float = 1.0) -> None:
        super().__init__()
        self.model, self.labels, self.guidance = model, labels, guidance
        self.path, self.interval = model.path, model.interval
        self.stein_channels = model.stein_channels

    def forward(self, x: Tensor, t: Tensor) -> ModelOutput:
        """As ``TimeScoreModel``; x (n B, *) holds the B points of the labels n times over."""
        labels = self.labels.to(x.device).repeat(len(x) // len(self.labels))
        given = self.model(x, t, labels=labels)
        if self.guidance == 1 or not self.model.reads_labels(t):
            return given
        free = self.model(x, t)
        score = torch.lerp(free.score, given.score, self.guidance)
        return given._replace(score=score)

    def time_score(self, x: Tensor, t: Tensor) -> Tensor:
        """d/dt log p_t(x | y): (B,)."""
        return sum_except_batch(self(x, t).components)

"""The logit: from [0, 1] to the line, component by component."""

import math

import torch
from torch import Tensor

from ebm_app.io.errors import UserError
from ebm_app.numerics.tensors import sum_except_batch
from ebm_app.spaces.base import Space


class Logit(Space):
    r"""u = log p / (1 - p) with p = m + (1 - 2 m) x, and log du/dx = log (1 - 2 m) / (p (1 - p)).

    The margin m keeps black and white finite. Source: Dinh et al. 2017, arXiv:1605.08803, 4.1.

    Args:
        margin: m.

    Raises:
        UserError: for a margin outside (0, 1/2).
    """

    def __init__(self, margin: float = 1e-6) -> None:
        super().__init__()
        if not 0 < margin < 0.5:
            raise UserError(f"the margin of a logit must lie between 0 and 1/2, not {margin}")
        self.margin = margin

    def encode_with_log_abs_det(self, x: Tensor) -> tuple[Tensor, Tensor]:
        # p and 1 - p, each without cancellation
        share = (1 - 2 * self.margin) * x.double()
        low, high = (self.margin + share).log(), ((1 - self.margin) - share).log()
        slope = math.log1p(-2 * self.margin) - low - high
        return (low - high).to(x.dtype), sum_except_batch(slope)

    def decode(self, u: Tensor) -> Tensor:
        p = torch.sigmoid(u.double())
        return ((p - self.margin) / (1 - 2 * self.margin)).to(u.dtype)

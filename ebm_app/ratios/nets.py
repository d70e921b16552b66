"""Networks of one shape that train side by side: M members, all their weights in one tensor.

A stack takes a batch of M equal parts, part m for member m, so that whatever works example by
example (a path, an objective, a time integral) works on a stack unchanged. One matrix product
serves all members, and an optimiser sees a single tensor (M, P).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from ebm_app.ratios.mlp import MLP


class Stack(nn.Module, ABC):
    """M networks; ``weights`` (M, P) holds every parameter of member m in row m."""

    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        self.weights = nn.Parameter(weights)

    @property
    def num_members(self) -> int:
        """M."""
        return len(self.weights)

    @abstractmethod
    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """x (M B, D) and t (M B,), in M equal parts -> (M B, out)."""


class MLPStack(Stack):
    """M networks :class:`MLP` of one shape.

    Args:
        members: the networks; their weights are copied.
    """

    def __init__(self, members: Sequence[MLP]) -> None:
        layers = [layer for layer in members[0].layers if isinstance(layer, nn.Linear)]
        super().__init__(
            torch.stack(
                [nn.utils.parameters_to_vector(member.parameters()) for member in members]
            ).detach()
        )
        self.widths = [layers[0].in_features, *(layer.out_features for layer in layers)]

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h = torch.cat([x, t[:, None]], dim=1).unflatten(0, (self.num_members, -1)).mT
        sizes = [
            size for a, b in zip(self.widths, self.widths[1:], strict=False) for size in (a * b, b)
        ]
        parts = self.weights.split(sizes, dim=1)
        # features before rows: a weight's gradient then comes in the order of the weight
        for index, (weight, bias) in enumerate(zip(parts[::2], parts[1::2], strict=True)):
            h = functional.elu(h) if index else h
            weight = weight.unflatten(1, (self.widths[index + 1], -1))
            h = torch.baddbmm(bias[:, :, None], weight, h)
        return h.mT.flatten(0, 1)


class StackAdam:
    r"""Adam with a learning rate for every member, on the single tensor of a stack.

        m <- b1 m + (1 - b1) g,   v <- b2 v + (1 - b2) g^2,
        w <- w - lr (m / (1 - b1^n)) / (sqrt(v / (1 - b2^n)) + eps)

    Args:
        stack: what to optimise. lr: (M,).

    Source: Kingma and Ba 2015, arXiv:1412.6980.
    """

    betas, eps = (0.9, 0.999), 1e-8

    def __init__(self, stack: Stack, lr: Tensor) -> None:
        self.weights = stack.weights
        self.lr = lr.to(self.weights)[:, None]
        self.first, self.second = (torch.zeros_like(stack.weights) for _ in range(2))
        self.steps = 0

    @torch.no_grad()
    def step(self, factor: float = 1.0) -> None:
        """One update with learning rates ``factor * lr``; the gradient is cleared."""
        gradient, (b1, b2) = self.weights.grad, self.betas
        self.steps += 1
        self.first.lerp_(gradient, 1 - b1)
        self.second.mul_(b2).addcmul_(gradient, gradient, value=1 - b2)
        # both sides of the fraction times sqrt(1 - b2^n): one pass over the weights less
        correction = math.sqrt(1 - b2**self.steps)
        deviation = self.second.sqrt().add_(self.eps * correction)
        rate = self.lr * (-factor * correction / (1 - b1**self.steps))
        self.weights.addcdiv_(self.first * rate, deviation)
        self.weights.grad = None

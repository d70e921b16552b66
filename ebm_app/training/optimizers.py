"""How the gradients change the weights, by the name that ``--optimizer`` takes."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ebm_app.models.config import LoopConfig

#: of a x + b x^3 + c x^5, which repeated takes singular values between 0.002 and 1 to about 1
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
MOMENTUM = 0.95
#: with fewer rows or columns, as the outputs of a network, orthogonalising a matrix gains little
LEAST_SIDE = 16


def orthogonalised(matrix: Tensor, num_steps: int = 5) -> Tensor:
    r"""About U V^T for a matrix U S V^T (rows, columns): its singular values lie near 1, between
    0.65 and 1.25 where they were at least 0.01 of its Frobenius norm.

    X <- a X + (b A + c A^2) X with A = X X^T, from X of Frobenius norm 1.

    Source: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/.

    >>> values = torch.linalg.svdvals(orthogonalised(torch.diag(torch.tensor([5.0, 1.0, 0.3]))))
    >>> bool(((values > 0.65) & (values < 1.25)).all())
    True
    """
    a, b, c = NEWTON_SCHULZ
    is_tall = len(matrix) > matrix.shape[1]
    x = matrix.mT if is_tall else matrix
    x = x / (x.norm() + 1e-12)
    for _ in range(num_steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if is_tall else x


def is_matrix(weight: Tensor) -> bool:
    """Whether ``Muon`` takes a weight for a matrix: of a convolution (out, in, h, w), (out, in h
    w)."""
    return weight.ndim >= 2 and min(len(weight), weight[0].numel()) >= LEAST_SIDE


class Muon(torch.optim.AdamW):
    r"""Momentum whose step of a matrix is orthogonalised; AdamW for weights that are no matrices.

    With g the gradient and m <- mu m + (1 - mu) g its average, the step of a matrix is

        w <- (1 - rate decay) w - 0.2 rate sqrt(max(rows, columns)) orthogonalised(g + mu (m - g)),

    of which an entry is about 0.2 rate, as of an Adam step: one rate serves both.

    Sources: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/; Liu et al. 2025,
    arXiv:2502.16982, for the scale.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        """One step of every weight that has a gradient; the matrices' gradients are used up."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None and is_matrix(weight):
                    self._step_matrix(weight, group["lr"], group["weight_decay"])
                    weight.grad = None
        return super().step(closure)

    def _step_matrix(self, weight: Tensor, rate: float, decay: float) -> None:
        state = self.state[weight]
        if not state:
            state["step"] = torch.zeros((), device=weight.device)  # AdamW asks for it on a resume
            state["exp_avg"] = torch.zeros_like(weight)
        state["step"] += 1
        average = state["exp_avg"].lerp_(weight.grad, 1 - MOMENTUM)
        update = orthogonalised(weight.grad.lerp(average, MOMENTUM).flatten(1))
        scale = 0.2 * math.sqrt(max(update.shape))
        weight.mul_(1 - rate * decay).add_(update.view_as(weight), alpha=-rate * scale)


def _buffers_of_adam(weight: Tensor) -> dict[str, tuple[int, ...]]:
    shape = tuple(weight.shape)
    return {"step": (), "exp_avg": shape, "exp_avg_sq": shape}


def _buffers_of_muon(weight: Tensor) -> dict[str, tuple[int, ...]]:
    buffers = _buffers_of_adam(weight)
    if is_matrix(weight):
        del buffers["exp_avg_sq"]
    return buffers


class OptimizerKind(NamedTuple):
    """What an optimizer is in words, its class, and the shapes of what it remembers of a
    weight."""

    note: str
    kind: type[torch.optim.AdamW]
    buffers: Callable[[Tensor], dict[str, tuple[int, ...]]]

    def build(self, weights: Sequence[nn.Parameter], config: LoopConfig) -> torch.optim.AdamW:
        """The optimizer of a run."""
        decay = config.adam_weight_decay
        return self.kind(weights, lr=config.learning_rate, weight_decay=decay, fused=True)


OPTIMIZERS: dict[str, OptimizerKind] = {
    "adam": OptimizerKind("AdamW", torch.optim.AdamW, _buffers_of_adam),
    "muon": OptimizerKind(
        "orthogonalised momentum for matrices, AdamW for other weights", Muon, _buffers_of_muon
    ),
}

"""Optimizers: AdamW, and Muon for matrices."""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

#: Coefficients of a x + b x^3 + c x^5, whose iterates map singular values in [0.002, 1] near 1
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
MOMENTUM = 0.95
#: Min rows and columns of an orthogonalised matrix: smaller ones gain little
MIN_SIDE = 16


def orthogonalise(matrix: Tensor) -> Tensor:
    r"""Return an approximation of U V^T for matrices U S V^T (*, rows, columns).

    Five Newton-Schulz steps X <- a X + (b A + c A^2) X, A = X X^T, from X of Frobenius norm 1.
    Singular values of at least 0.01 of the Frobenius norm end between 0.65 and 1.25.

    Source: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/.

    >>> values = torch.linalg.svdvals(orthogonalise(torch.diag(torch.tensor([5.0, 1.0, 0.3]))))
    >>> bool(((values > 0.65) & (values < 1.25)).all())
    True
    """
    a, b, c = NEWTON_SCHULZ
    is_tall = matrix.shape[-2] > matrix.shape[-1]
    x = matrix.mT if is_tall else matrix
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-12)
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if is_tall else x


def is_matrix(weight: Tensor) -> bool:
    """Whether ``Muon`` orthogonalises a weight. A convolution (out, in, h, w) counts as the matrix
    (out, in h w)."""
    return weight.ndim >= 2 and min(len(weight), weight[0].numel()) >= MIN_SIDE


class Muon(torch.optim.AdamW):
    r"""Orthogonalised momentum for matrices, AdamW for all other weights.

    For a gradient g and its running average m <- mu m + (1 - mu) g, the update of a matrix is

        w <- (1 - rate decay) w - 0.2 rate sqrt(max(rows, columns)) orthogonalise(g + mu (m - g)).

    Its entries are about 0.2 rate, like those of an Adam step, so one learning rate serves both.

    Sources: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/; Liu et al. 2025,
    arXiv:2502.16982, for the scale.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        """Update every weight that has a gradient. The gradients of matrices are freed."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for weight in group["params"]:
                if weight.grad is not None and is_matrix(weight):
                    by_shape[weight.shape].append(weight)
            for weights in by_shape.values():
                self._step_matrices(weights, group["lr"], group["weight_decay"])
        return super().step(closure)

    def _step_matrices(self, weights: Sequence[Tensor], rate: float, decay: float) -> None:
        """Update matrices of one shape together, since a GPU is idle between small products."""
        averages = []
        for weight in weights:
            state = self.state[weight]
            if not state:
                state["step"] = torch.zeros((), device=weight.device)  # AdamW expects it on resume
                state["exp_avg"] = torch.zeros_like(weight)
            state["step"] += 1
            averages.append(state["exp_avg"])
        gradients = [weight.grad for weight in weights]
        torch._foreach_lerp_(averages, gradients, 1 - MOMENTUM)
        updates = torch.stack(torch._foreach_lerp(gradients, averages, MOMENTUM)).flatten(2)
        scale = 0.2 * math.sqrt(max(updates.shape[1:]))
        torch._foreach_mul_(weights, 1 - rate * decay)
        steps = [
            step.view_as(weight)
            for step, weight in zip(orthogonalise(updates), weights, strict=True)
        ]
        torch._foreach_add_(weights, steps, alpha=-rate * scale)
        for weight in weights:
            weight.grad = None


#: Optimizers by name
OPTIMIZERS: dict[str, type[torch.optim.AdamW]] = {"adam": torch.optim.AdamW, "muon": Muon}

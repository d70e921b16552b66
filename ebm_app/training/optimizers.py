"""Optimizers: AdamW and Muon."""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

#: Coefficients (a, b, c) of a x + b x^3 + c x^5; iterating it maps [0.002, 1] close to 1
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
MOMENTUM = 0.95
#: Min rows and columns of an orthogonalised matrix; smaller matrices gain little
MIN_SIDE = 16


def orthogonalise(stacks: Sequence[Tensor]) -> list[Tensor]:
    r"""Return approximations of U V^T for matrices U S V^T, in stacks (n, rows, columns).

    Runs five Newton-Schulz steps X <- P X with P = a I + b A + c A^2 and A = X X^T, from X of
    Frobenius norm 1. A step maps A to P A P, so the iteration only needs A, a square matrix of the
    shorter side of X, and X is multiplied once by the product of all P. Stacks with the same
    shorter side are concatenated to keep a GPU busy. Singular values of at least 0.01 times the
    Frobenius norm are mapped to [0.65, 1.25].

    Source: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/.

    >>> (result,) = orthogonalise([torch.diag(torch.tensor([5.0, 1.0, 0.3]))[None]])
    >>> values = torch.linalg.svdvals(result)
    >>> bool(((values > 0.65) & (values < 1.25)).all())
    True
    """
    wide = [x.mT if x.shape[1] > x.shape[2] else x for x in stacks]
    wide = [x / (x.norm(dim=(1, 2), keepdim=True) + 1e-12) for x in wide]
    by_side: dict[int, list[int]] = defaultdict(list)
    for index, x in enumerate(wide):
        by_side[x.shape[1]].append(index)
    results = list(stacks)
    for indices in by_side.values():
        product = _newton_schulz(torch.cat([wide[i] @ wide[i].mT for i in indices]))
        factors = product.split([len(wide[i]) for i in indices])
        for i, factor in zip(indices, factors, strict=True):
            result = factor @ wide[i]
            results[i] = result.mT if result.shape != stacks[i].shape else result
    return results


def _newton_schulz(gram: Tensor) -> Tensor:
    """Return the product of the five factors P, from A (n, side, side)."""
    a, b, c = NEWTON_SCHULZ
    identity = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    factor = product = identity.expand_as(gram)
    for step in range(5):
        gram = factor @ gram @ factor if step else gram
        factor = torch.baddbmm(b * gram, gram, gram, alpha=c) + a * identity
        product = factor @ product if step else factor
    return product


def is_matrix(weight: Tensor) -> bool:
    """Whether ``Muon`` orthogonalises a weight. A convolution (out, in, h, w) is treated as a
    matrix (out, in * h * w)."""
    return weight.ndim >= 2 and min(len(weight), weight[0].numel()) >= MIN_SIDE


class Muon(torch.optim.AdamW):
    r"""Muon: orthogonalised momentum for matrices, and AdamW for all other weights.

    With gradient g and momentum m <- mu m + (1 - mu) g, a matrix w is updated by

        w <- (1 - rate decay) w - 0.2 rate sqrt(max(rows, columns)) orthogonalise(g + mu (m - g)).

    The entries of the update are about 0.2 rate, as in an Adam step, so both share one learning
    rate.

    Sources: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/, and, for the scale,
    Liu et al. 2025, arXiv:2502.16982.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        """Update all weights that have a gradient, and free the gradients of matrices."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for weight in group["params"]:
                if weight.grad is not None and is_matrix(weight):
                    by_shape[weight.shape].append(weight)
            averages = [self._averaged(weights) for weights in by_shape.values()]
            updates = orthogonalise(averages)
            for weights, update in zip(by_shape.values(), updates, strict=True):
                torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
                scale = 0.2 * math.sqrt(max(update.shape[1:]))
                steps = [step.reshape(weights[0].shape) for step in update]
                torch._foreach_add_(weights, steps, alpha=-group["lr"] * scale)
                for weight in weights:
                    weight.grad = None
        return super().step(closure)

    def _averaged(self, weights: Sequence[Tensor]) -> Tensor:
        """Update the momentum of n weights of the same shape. Return the Nesterov momentum as
        matrices (n, rows, columns)."""
        states = [self.state[weight] for weight in weights]
        for weight, state in zip(weights, states, strict=True):
            if not state:
                state["step"] = torch.zeros((), device=weight.device)  # needed by AdamW on resume
                state["exp_avg"] = torch.zeros_like(weight)
        torch._foreach_add_([state["step"] for state in states], 1)
        averages = [state["exp_avg"] for state in states]
        gradients = [weight.grad for weight in weights]
        torch._foreach_lerp_(averages, gradients, 1 - MOMENTUM)
        return torch.stack(torch._foreach_lerp(gradients, averages, MOMENTUM)).flatten(2)


#: Optimizers by name
OPTIMIZERS: dict[str, type[torch.optim.AdamW]] = {"adam": torch.optim.AdamW, "muon": Muon}

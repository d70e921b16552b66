"""How the gradients change the weights: the optimizer, and the learning rate of a step."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ebm_app.config import LoopConfig

#: of a x + b x^3 + c x^5, which repeated takes singular values between 0.002 and 1 to about 1
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
MOMENTUM = 0.95
#: with fewer rows or columns, as the outputs of a network, orthogonalising a matrix gains little
LEAST_SIDE = 16


def orthogonalised(matrix: Tensor) -> Tensor:
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
    for _ in range(5):
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


#: by the name that ``--optimizer`` takes
OPTIMIZERS: dict[str, type[torch.optim.AdamW]] = {"adam": torch.optim.AdamW, "muon": Muon}


#: until it falls, this rate does not depend on where a run ends
OPEN_ENDED = "constant_with_warmup"
#: what ``--lr_scheduler`` takes
SCHEDULES = ("cosine", OPEN_ENDED)


def learning_rate(config: LoopConfig, step: int) -> float:
    """The rate of a step: it rises over the warm-up steps, and then follows half a cosine down to
    0 at the end, or is constant and falls linearly over the last ``lr_decay_steps``.

    Source: Hu et al. 2024, arXiv:2404.06395, for the constant one.

    >>> config = LoopConfig(learning_rate=1.0, lr_warmup_steps=4, max_train_steps=8)
    >>> learning_rate(config, 1), learning_rate(config, 4), round(learning_rate(config, 6), 3)
    (0.25, 1.0, 0.5)
    """
    warmup, total, last = config.lr_warmup_steps, config.max_train_steps, config.lr_decay_steps
    rise = step / warmup if step < warmup else 1.0
    if config.lr_scheduler == OPEN_ENDED:
        fall = min(1.0, (total - step) / last) if last else 1.0
    else:
        share = max(0, step - warmup) / max(1, total - warmup)
        fall = max(0.0, 0.5 * (1 + math.cos(math.pi * share)))
    return config.learning_rate * min(rise, fall)

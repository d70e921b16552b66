r"""Pairs of random vectors of known mutual information, on which the estimate can be tried.

    I(X; Y) = E log p(x, y) / (p(x) p(y)),  in nats.

Sources: Czyz et al., NeurIPS 2023, arXiv:2306.11078; of the discrete one Gao, Kannan, Oh and
Viswanath, NeurIPS 2017, arXiv:1709.06212.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Generator, Tensor

Pairs = tuple[Tensor, Tensor]


def normal(num: int, generator: Generator, rho: float, dim: int) -> Pairs:
    """X and Y (N, dim), normal: corr(X_i, Y_i) = rho for the first two i, and 0 elsewhere."""
    x, y = (torch.randn(num, dim, generator=generator, dtype=torch.float64) for _ in "xy")
    y[:, :2] = rho * x[:, :2] + math.sqrt(1 - rho**2) * y[:, :2]
    return x, y


def discrete_uniform(num: int, generator: Generator) -> Pairs:
    r"""X (N, 1) uniform on {0, 1, 2, 3}, Y | X ~ U(X, X + 2).

    A y in (k, k + 1) with k = 1, 2, 3 is as likely from x = k - 1 as from x = k, and each such
    interval has probability 1 / 4. A y outside them tells x, so that

        I = H(X) - H(X | Y) = log 4 - 3/4 log 2.
    """
    x = torch.randint(4, (num, 1), generator=generator).double()
    return x, x + 2 * torch.rand((num, 1), generator=generator, dtype=torch.float64)


#: by distribution and dimensions, I and (N, generator) -> N draws of X and Y, float64
EXAMPLES: dict[str, tuple[float, Callable[[int, Generator], Pairs]]] = {
    "normal_1x1": (-math.log(1 - 0.75**2) / 2, partial(normal, rho=0.75, dim=1)),
    "sparse_5x5": (-math.log(1 - 0.8**2), partial(normal, rho=0.8, dim=5)),
    "discrete_uniform_4": (math.log(4) - 0.75 * math.log(2), discrete_uniform),
}

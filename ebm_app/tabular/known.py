r"""Pairs of random vectors of known mutual information, on which the estimate can be tried.

    I(X; Y) = E log p(x, y) / (p(x) p(y)),  in nats,

which does not change under a bijection of X alone or of Y alone.

>>> task = EXAMPLES["normal_1x1"]
>>> x, y = task.draw(1_000, torch.Generator().manual_seed(0))
>>> x.shape, round(task.mutual_information, 4)
(torch.Size([1000, 1]), 0.4133)

Source: Czyz et al., NeurIPS 2023, arXiv:2306.11078, where nothing else is said.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

Pairs = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class KnownInformation:
    """A distribution of X and Y.

    Attributes:
        mutual_information: I(X; Y), in nats.
        draw: (N, generator) -> N independent x (N, dim_x) and y (N, dim_y), float64.
    """

    mutual_information: float
    draw: Callable[[int, Generator], Pairs]


def correlated_normal(correlations: Sequence[float], dim_x: int, dim_y: int) -> KnownInformation:
    r"""Gaussian in canonical form: all coordinates N(0, 1), corr(X_i, Y_i) = rho_i, 0 elsewhere.

        I = -1/2 sum_i log(1 - rho_i^2)

    Linear bijections of X and of Y bring every Gaussian to this form, with the rho_i its canonical
    correlations, of which there are at most min(dim_x, dim_y).
    """

    def draw(num: int, generator: Generator) -> Pairs:
        x, y = (
            torch.randn(num, dim, generator=generator, dtype=torch.float64)
            for dim in (dim_x, dim_y)
        )
        rho = torch.tensor(correlations, dtype=x.dtype)
        y[:, : len(rho)] *= (1 - rho.square()).sqrt()
        y[:, : len(rho)] += rho * x[:, : len(rho)]
        return x, y

    information = -0.5 * sum(math.log1p(-(rho**2)) for rho in correlations)
    return KnownInformation(information, draw)


def discrete_uniform(num_values: int) -> KnownInformation:
    r"""X uniform on {0, ..., m - 1}, Y | X ~ U(X, X + 2), one-dimensional, m = ``num_values``.

    A y in (k, k + 1) with k = 1, ..., m - 1 is as likely from x = k - 1 as from x = k, and each
    such interval has probability 1 / m. A y outside them tells x, so that

        I = H(X) - H(X | Y) = log m - (m - 1) / m log 2

    (Gao, Kannan, Oh and Viswanath, NeurIPS 2017, arXiv:1709.06212).
    """

    def draw(num: int, generator: Generator) -> Pairs:
        x = torch.randint(num_values, (num, 1), generator=generator).double()
        u = torch.rand((num, 1), generator=generator, dtype=torch.float64)
        return x, x + 2 * u

    information = math.log(num_values) - (num_values - 1) / num_values * math.log(2)
    return KnownInformation(information, draw)


#: by distribution and dimensions
EXAMPLES: dict[str, KnownInformation] = {
    "normal_1x1": correlated_normal((0.75,), 1, 1),
    **{f"sparse_{dim}x{dim}": correlated_normal((0.8, 0.8), dim, dim) for dim in (2, 5, 25)},
    "discrete_uniform_4": discrete_uniform(4),
}

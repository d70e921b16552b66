r"""The divergence div f(x) = sum_i df_i/dx_i of a field, exactly or by random probes.

Hutchinson's estimate z^T (df/dx) z has the divergence as its mean for any probe z with
E[z z^T] = I. A probe is drawn once and frozen: drawn afresh at every step of an ODE solve it would
make the integrand a random function of time, which no adaptive solver can follow.

Sources: Hutchinson 1989; Grathwohl et al. 2019, FFJORD, arXiv:1810.01367, section 3.1.
"""

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ebm_app.numerics.tensors import seeded

Field = Callable[[Tensor], Tensor]


class Divergence(ABC):
    """A way to find a field's divergence: ``num_estimates`` K estimates for every example."""

    num_estimates: int

    @abstractmethod
    def __call__(self, field: Field, x: Tensor) -> tuple[Tensor, Tensor]:
        """f(x) (B, *) at ``x`` (B, *) and estimates of its divergence (K, B) float64, both
        detached."""


class NoDivergence(Divergence):
    """The field alone: K = 0."""

    num_estimates = 0

    def __call__(self, field: Field, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            return field(x), torch.zeros(0, len(x), dtype=torch.float64, device=x.device)


class ExactDivergence(Divergence):
    """K = 1, exact: the trace of ``jacobian``, by D backward passes."""

    num_estimates = 1

    def __call__(self, field: Field, x: Tensor) -> tuple[Tensor, Tensor]:
        value, matrix = jacobian(field, x)
        return value, matrix.diagonal(dim1=1, dim2=2).sum(1)[None]


class Hutchinson(Divergence):
    """Estimates by frozen ``probes`` (K, B, *), one backward pass each."""

    def __init__(self, probes: Tensor) -> None:
        self.probes, self.num_estimates = probes, len(probes)

    def __call__(self, field: Field, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            point = x.detach().requires_grad_()
            value = field(point)
            products = [
                (torch.autograd.grad(value, point, z, retain_graph=True)[0] * z).flatten(1).sum(1)
                for z in self.probes.to(x.dtype)
            ]
        return value.detach(), torch.stack(products).double()


def jacobian(field: Field, x: Tensor) -> tuple[Tensor, Tensor]:
    """f(x) (B, *) and df/dx (B, D, D) float64 of a field that treats its examples
    independently."""
    with torch.enable_grad():
        point = x.detach().requires_grad_()
        value = field(point)
        rows = [
            torch.autograd.grad(output, point, retain_graph=True)[0].flatten(1)
            for output in value.flatten(1).sum(0)
        ]
    return value.detach(), torch.stack(rows, 1).double()


def rademacher_probes(num: int, like: Tensor, seed: int) -> Tensor:
    """Probes (num, B, *) of +1 and -1 for points ``like`` (B, *).

    Those of an example are drawn from a seed mixed with the bytes of that example, so that its
    estimate is the same in every batch and on every process.
    """
    rows = [
        torch.randint(2, (num, *example.shape), generator=generator) * 2 - 1
        for example, generator in with_generators(like, seed)
    ]
    return torch.stack(rows, 1).to(like)


def normal_draws(num: int, like: Tensor, seed: int) -> Tensor:
    """Standard normal draws (num, B, *) for points ``like`` (B, *), seeded as the probes are, by
    the points in single precision."""
    rows = [
        torch.randn((num, *example.shape), generator=generator)
        for example, generator in with_generators(like.float(), seed)
    ]
    return torch.stack(rows, 1).to(like)


def with_generators(points: Tensor, seed: int) -> Iterator[tuple[Tensor, torch.Generator]]:
    """Every example of ``points`` (B, *) with a generator of its own, on the CPU."""
    for example in points.detach().cpu():
        checksum = zlib.crc32(example.contiguous().numpy().tobytes())
        yield example, seeded("cpu", seed, checksum)

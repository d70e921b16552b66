r"""The divergence div f(x) = sum_i df_i/dx_i of a field, exactly or by random probes.

Hutchinson's estimate z^T (df/dx) z has the divergence as its mean for any probe z with
E[z z^T] = I; over the unit vectors its sum is the divergence. A probe is drawn once and frozen:
drawn afresh at every step of an ODE solve it would make the integrand a random function of time.

Sources: Hutchinson 1989; Grathwohl et al. 2019, FFJORD, arXiv:1810.01367, section 3.1.
"""

import zlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ebm_app.utils.random import make_generator
from ebm_app.utils.tensors import leaves

Field = Callable[[Tensor], Tensor]


def with_products(field: Field, x: Tensor, probes: Tensor) -> tuple[Tensor, Tensor]:
    """f(x) (B, *) at ``x`` (B, *) and z^T df/dx (K, B, *) for probes z (K, B, *), by a backward
    pass for each, both detached; the field treats its examples independently."""
    with leaves(x.detach()) as (point,):
        value = field(point)
        rows = [
            torch.autograd.grad(value, point, z, retain_graph=True)[0]
            for z in probes.to(value.dtype)
        ]
    return value.detach(), torch.stack(rows)


def with_divergence(field: Field, x: Tensor, probes: Tensor) -> tuple[Tensor, Tensor]:
    """f(x) and the estimates z^T (df/dx) z (K, B) float64 of its divergence; without probes, f(x)
    alone, for less."""
    if not len(probes):
        with torch.no_grad():
            return field(x), torch.zeros(0, len(x), dtype=torch.float64, device=x.device)
    value, rows = with_products(field, x, probes)
    return value, (rows * probes.to(x.dtype)).flatten(2).sum(2).double()


def jacobian(field: Field, x: Tensor) -> Tensor:
    """df/dx (B, D, D) float64, by D backward passes."""
    _, rows = with_products(field, x, unit_probes(x))
    return rows.flatten(2).movedim(0, 1).double()


def unit_probes(like: Tensor) -> Tensor:
    """The D unit vectors for points ``like`` (B, *), (D, B, *)."""
    shape, size = like.shape[1:], like[0].numel()
    unit = torch.eye(size, dtype=like.dtype, device=like.device)
    return unit.reshape(size, 1, *shape).expand(size, *like.shape)


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
        yield example, make_generator("cpu", seed, checksum)

r"""The divergence div f(x) = sum_i df_i/dx_i of a field, exactly or by random probes.

Hutchinson's estimate z^T (df/dx) z has the divergence as its mean for any probe z with
E[z z^T] = I; summed over the unit vectors it is the divergence. The probes of an ODE solve are
drawn once, because fresh probes at every step would make the integrand a random function of time.

Sources: Hutchinson 1989; Grathwohl et al. 2019, FFJORD, arXiv:1810.01367, section 3.1.
"""

import zlib
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from ebm_app.utils.random import make_generator
from ebm_app.utils.tensors import leaves

Field = Callable[[Tensor], Tensor]


def with_divergence(field: Field, x: Tensor, probes: Tensor) -> tuple[Tensor, Tensor]:
    """Return f(x) (B, *) and an estimate z^T (df/dx) z of its divergence per probe, (K, B)
    float64, both without gradients.

    Each probe costs one backward pass. The field must treat the examples independently.

    Args:
        probes: z, (K, B, *); K = 0 evaluates the field only.
    """
    if not len(probes):
        with torch.no_grad():
            return field(x), torch.zeros(0, len(x), dtype=torch.float64, device=x.device)
    with leaves(x.detach()) as (point,):
        value = field(point)
        forms = [
            (torch.autograd.grad(value, point, z, retain_graph=True)[0] * z).flatten(1).sum(1)
            for z in probes.to(value.dtype)
        ]
    return value.detach(), torch.stack(forms).double()


def probes_for(num: int, like: Tensor, seed: int) -> Tensor:
    """Return ``num`` probes (num, B, *) of +1 and -1 for points ``like`` (B, *), see
    ``draws_by_point``; for 0 the D unit vectors (D, B, *), over which the estimates sum to the
    exact divergence."""
    if num:
        signs = partial(torch.randint, 2)
        return 2 * draws_by_point(signs, num, like, seed) - 1
    size = like[0].numel()
    unit = torch.eye(size, dtype=like.dtype, device=like.device)
    return unit.reshape(size, 1, *like.shape[1:]).expand(size, *like.shape)


def normal_draws(num: int, like: Tensor, seed: int) -> Tensor:
    """Draw standard normal noise (num, B, *) for points ``like``, see ``draws_by_point``."""
    return draws_by_point(torch.randn, num, like, seed)


def draws_by_point(draw: Callable[..., Tensor], num: int, like: Tensor, seed: int) -> Tensor:
    """Return ``num`` draws for each point of ``like`` (B, *): (num, B, *), where ``draw`` takes a
    shape and a generator.

    The generator of a point is seeded by ``seed`` and the bytes of the point in single precision,
    so its draws are the same in every batch and on every process.
    """
    rows = []
    for point in like.detach().float().cpu():
        checksum = zlib.crc32(point.contiguous().numpy().tobytes())
        generator = make_generator("cpu", seed, checksum)
        rows.append(draw((num, *point.shape), generator=generator))
    return torch.stack(rows, 1).to(like)

"""Small tensor functions that every layer uses. No module of the package is below this one."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

import numpy as np
import torch
from torch import Tensor

_GLOBAL_GENERATOR = Lock()


def expand_like(coefficient: Tensor, x: Tensor) -> Tensor:
    """Reshape a per-example coefficient (B,) to (B, 1, ..., 1), in the dtype and on the device of
    ``x``.

    Times and coefficients are kept in float64, because 1 - t loses its digits in float32 near t =
    1; this is the one place where they are rounded to the precision of the data.
    """
    if coefficient.ndim > 1:
        raise ValueError(f"a coefficient has shape (B,) or (), not {tuple(coefficient.shape)}")
    shape = (-1,) + (1,) * (x.ndim - 1) if coefficient.ndim else ()
    return coefficient.to(dtype=x.dtype, device=x.device).reshape(shape)


def sum_except_batch(x: Tensor) -> Tensor:
    """Sum over all but the first dimension: (B, *) -> (B,)."""
    return x.flatten(1).sum(1)


def mean_except_batch(x: Tensor) -> Tensor:
    """Mean over all but the first dimension: (B, *) -> (B,)."""
    return x.flatten(1).mean(1)


def standard_normal_log_density(x: Tensor) -> Tensor:
    """log N(x; 0, I) per component, in nats: (B, *) -> (B, *)."""
    return -0.5 * (x.square() + math.log(2 * math.pi))


def find_time(function: Callable[[Tensor], Tensor], low: float, high: float) -> float:
    """The time in [low, high] at which a function of a float64 scalar is 0, by Brent's method.

    Raises:
        ValueError: unless the function has different signs at the two ends.

    >>> round(find_time(lambda t: t.square() - 0.25, 0.0, 1.0), 12)
    0.5
    """

    from scipy.optimize import brentq  # half a second to import

    def value(t: float) -> float:
        return function(torch.tensor(t, dtype=torch.float64, device="cpu")).item()

    return brentq(value, low, high, xtol=1e-16, rtol=1e-15)


def slope(function: Callable[[Tensor], Tensor], t: Tensor) -> Tensor:
    """df/dt of a function that takes every component of ``t`` by itself, at ``t``; of its shape.

    In reverse mode: torch's forward mode is one for the whole process, and fails in two threads.

    >>> slope(torch.square, torch.tensor([1.0, 2.0]))
    tensor([2., 4.])
    """
    return torch.func.vjp(function, t)[1](torch.ones_like(t))[0]


@contextmanager
def leaves(*tensors: Tensor) -> Iterator[list[Tensor]]:
    """Tensors whose gradients may be taken within, in an inference mode too: copies, but for those
    of which gradients are taken already.

    >>> with torch.inference_mode(), leaves(torch.ones(2)) as (x,):
    ...     torch.autograd.grad(x.square().sum(), x)
    (tensor([2., 2.]),)
    """
    is_outer = torch.is_grad_enabled()
    with torch.inference_mode(False), torch.enable_grad():
        yield [
            x if is_outer and x.requires_grad else x.detach().clone().requires_grad_()
            for x in tensors
        ]


def log_mean_exp(log_weight: Tensor) -> Tensor:
    """log of the mean of exp(log_weight) over the first dimension, in nats: ``(N, *) -> (*)``."""
    return torch.logsumexp(log_weight, 0) - math.log(log_weight.shape[0])


def effective_sample_size(log_weight: Tensor) -> Tensor:
    """(sum w)^2 / sum w^2 for log-weights (N,): between 1 and N."""
    return torch.exp(2 * torch.logsumexp(log_weight, 0) - torch.logsumexp(2 * log_weight, 0))


def standard_error(values: Tensor) -> Tensor:
    """Standard error of the mean of independent values (N,), N >= 2."""
    return values.double().std(unbiased=True) / math.sqrt(values.numel())


def mixed_seed(*parts: int) -> int:
    """One 63-bit seed from several whole numbers, by numpy's SeedSequence."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> np.uint64(1))


def seeded(device: str | torch.device, *parts: int) -> torch.Generator:
    """A generator whose stream is a function of these whole numbers."""
    return torch.Generator(device).manual_seed(mixed_seed(*parts))


@contextmanager
def initial_weights(seed: int) -> Iterator[None]:
    """Let networks that are built inside get weights that are a function of the seed. torch draws
    them from the generator of the whole process: other threads wait, and it is left as it was.

    >>> with initial_weights(0):
    ...     first = torch.nn.Linear(2, 2).weight
    >>> with initial_weights(0):
    ...     bool((torch.nn.Linear(2, 2).weight == first).all())
    True
    """
    with _GLOBAL_GENERATOR, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield

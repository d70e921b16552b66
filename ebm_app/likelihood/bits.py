r"""Log-likelihood of quantised images and bits per dim, the only place where bits appear.

An image of levels k is dequantised to a point y of the path's space by a density q(y | k) on its
cells, and Jensen's inequality bounds its log probability by that of the continuous model,

    log P(k) >= E_{y ~ q}[log p_t(y) - log q(y | k)];

the expectation is averaged over K draws. The dequantiser chooses q and t, the estimator finds
log p_t(y). A uniform density on L levels costs log2(L) bits per dim.
"""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ebm_app.data.levels import to_levels
from ebm_app.likelihood.dequantisation import Dequantiser
from ebm_app.likelihood.discrete import DiscreteBound
from ebm_app.likelihood.estimator import Estimator
from ebm_app.nets.energy import TimeScoreEnergy
from ebm_app.spaces import Space
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import PositiveInt, check_argument
from ebm_app.utils.tensors import as_tensor, sum_except_batch

#: numbers of the images that are scored together: an estimator holds tens of copies of them
SCORED_TOGETHER = 2**17


class Likelihood(NamedTuple):
    """Of B images: log probability in nats (B,), bits per dim (B,), the integration error in nats
    (B,), the parts of the log probability by component (B, C, H, W) or None, the network
    evaluations for one image, and the bits per dim (B,) by what they are spent on, which only
    "discrete" tells apart.

    >>> from ebm_app import EBM
    >>> ebm = EBM.from_pretrained("digits")
    >>> found = ebm.likelihood(torch.zeros(2, 1, 8, 8))
    >>> found.log_prob.shape, found.components.shape, found.nfe
    (torch.Size([2]), torch.Size([2, 1, 8, 8]), 64)
    """

    log_prob: Tensor
    bits_per_dim: Tensor
    error: Tensor
    components: Tensor | None
    nfe: int
    parts: Mapping[str, Tensor] = MappingProxyType({})


def joined(parts: Sequence[Likelihood]) -> Likelihood:
    """One of all images, from those of batches; ``nfe`` is the largest."""
    *columns, nfe, spent = zip(*parts, strict=True)
    columns = [None if c[0] is None else torch.cat(c) for c in columns]
    spent = {name: torch.cat([part[name] for part in spent]) for name in spent[0]}
    return Likelihood(*columns, max(nfe), spent)


def batches(num: int, batch_size: int | None, default: int) -> list[slice]:
    """The rows of consecutive batches of ``num``, of ``default`` rows each if no size is given.

    >>> batches(5, None, 2)
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    size = max(1, default) if batch_size is None else batch_size
    size = check_argument(PositiveInt, "batch_size", size)
    return [slice(begin, min(begin + size, num)) for begin in range(0, num, size)]


def to_bits_per_dim(log_prob: Tensor, num_dims: int) -> Tensor:
    """-log P / (D log 2): nats (B,) -> bits per dim (B,).

    >>> to_bits_per_dim(torch.tensor([-64 * math.log(256)]), num_dims=64)
    tensor([8.])
    """
    return -log_prob / (num_dims * math.log(2))


def check_finite(log_prob: Tensor) -> None:
    """Raise a UserError for log-likelihoods (B,) that are not finite."""
    if bad := int((~log_prob.isfinite()).sum()):
        raise UserError(
            f"the log-likelihood of {bad} of {len(log_prob)} images is not finite: the training "
            "of the model has diverged, or the settings of the evaluation are out of range"
        )


def checked_levels(images: Any, image_shape: tuple[int, ...], num_levels: int) -> Tensor:
    """The levels, uint8 (B, C, H, W), of images for a model of this shape and these levels.

    Args:
        images: (B, C, H, W), floats in [0, 1] on the grid of the levels, or uint8 levels; a
            tensor, an array or lists.

    Raises:
        UserError: for images of another shape, or none, values off the grid, and levels out of
            range.
    """
    images = as_tensor(images, "images")
    if not images.numel():
        raise UserError(f"images of shape {tuple(images.shape)} are none: give at least one")
    if tuple(images.shape[1:]) != tuple(image_shape):
        raise UserError(
            f"the model takes images of shape {tuple(image_shape)} (channels, height, width), not "
            f"{tuple(images.shape[1:])}: reshape them"
        )
    return to_levels(images, num_levels)


def checked_noise(noise: Any, levels: Tensor, dtype: torch.dtype) -> Tensor:
    """Noise (K, B, C, H, W) in [0, 1) for the levels (B, C, H, W), in a model's ``dtype``.

    Raises:
        UserError: for noise of another shape, or that is no floats in [0, 1).
    """
    noise = as_tensor(noise, "noise")
    if noise.shape[1:] != levels.shape or not len(noise):
        raise UserError(
            f"noise of shape {tuple(noise.shape)} does not fit images of shape "
            f"{tuple(levels.shape)}: give (repeats, *images.shape)"
        )
    if not (noise.is_floating_point() and ((noise >= 0) & (noise < 1)).all()):
        raise UserError("noise is floats in [0, 1): draw it uniformly")
    # what rounds up to 1 belongs below it
    return noise.to(dtype).clamp(max=1 - torch.finfo(dtype).eps / 2)


def log_likelihood(
    energy: TimeScoreEnergy,
    space: Space,
    levels: Tensor,
    num_levels: int,
    noise: Tensor,
    dequantiser: Dequantiser,
    estimator: Estimator,
) -> Likelihood:
    """The bound above for images; ``ebm_app.ebm.EBM.likelihood`` calls it for a model.

    Args:
        levels: (B, C, H, W) integers in 0..num_levels - 1.
        noise: (K, B, C, H, W) uniform numbers, one set for every repeat.
        dequantiser: q; the one that the model was trained for is tight.
        estimator: of log p_t.

    Raises:
        UserError: for a likelihood that is not finite.
    """
    num_dims = levels[0].numel()
    if isinstance(estimator, DiscreteBound):  # of levels: it draws no points of a dequantiser
        (value, *others), parts = estimator.of_levels(energy, space, levels, num_levels)
        check_finite(value)
        bits = {
            name: to_bits_per_dim(sum_except_batch(part), num_dims) for name, part in parts.items()
        }
        return Likelihood(value, to_bits_per_dim(value, num_dims), *others, bits)
    values, errors, parts, nfe = [], [], [], 0
    for u in noise:
        point = dequantiser.points(levels, num_levels, space, u, energy)
        density = estimator(energy, point.y, point.t)
        values.append(density.value + sum_except_batch(point.negative_log_q))
        errors.append(density.error)
        nfe += density.nfe
        if density.components is not None:
            parts.append(density.components + point.negative_log_q)
    log_prob = torch.stack(values).mean(0)
    check_finite(log_prob)
    return Likelihood(
        log_prob,
        to_bits_per_dim(log_prob, num_dims),
        torch.stack(errors).mean(0),
        torch.stack(parts).mean(0) if parts else None,
        nfe,
    )

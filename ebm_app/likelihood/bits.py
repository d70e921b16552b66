r"""Log-likelihood and bits per dim of quantised images.

Dequantisation maps an image of grey levels k to a point y of the path's space, drawn from a
density q(y | k) on its cells. By Jensen's inequality,

    log P(k) >= E_{y ~ q}[log p_t(y) - log q(y | k)],

where the expectation is a mean over ``repeats`` draws. The dequantiser determines q and t, and
the estimator computes log p_t(y). A uniform distribution over L levels has log2(L) bits per dim.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ebm_app.likelihood.dequantisation import Dequantised
from ebm_app.likelihood.estimator import MANY_DRAWS, error_over_draws
from ebm_app.nets.model import LogDensityEstimate
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import Draws, PositiveInt, Seed, check_argument
from ebm_app.utils.output import MAX_DISAGREEMENT, progress
from ebm_app.utils.random import LIKELIHOODS, ImageNoise
from ebm_app.utils.tensors import standard_error, sum_except_batch

if TYPE_CHECKING:
    from pandas import DataFrame

#: Max image elements per batch: an estimator holds tens of copies of the batch. On a CPU, larger
#: batches are not faster, and smaller ones show more progress.
MAX_BATCH_ELEMENTS, MAX_ON_CPU = 2**17, 2**14
#: Images by which an estimator is compared with "elbo"
NUM_COMPARED = 4


class Likelihood(NamedTuple):
    """Log-likelihood of B images.

    Attributes:
        log_prob: (B,), estimate of log P in nats; a lower bound by the estimator "elbo".
        bits_per_dim: (B,), -log P / (D log 2).
        error: (B,), error of ``log_prob`` in nats, see ``mean_over_draws``; NaN if unknown.
        components: (B, C, H, W), per-dimension terms that sum to ``log_prob``, or None.
        nfe: forward and backward passes of the network per image; a backward pass to the input
            costs about as much as a forward pass.
        estimator: name of the estimator.

    >>> from ebm_app import EBM
    >>> result = EBM.from_pretrained("digits").likelihood(torch.zeros(2, 1, 8, 8))
    >>> result.log_prob.shape, result.components.shape, result.nfe
    (torch.Size([2]), torch.Size([2, 1, 8, 8]), 16)
    >>> result.to_frame().columns.tolist()
    ['log_prob', 'bits_per_dim', 'error']
    """

    log_prob: Tensor
    bits_per_dim: Tensor
    error: Tensor
    components: Tensor | None
    nfe: int
    estimator: str

    def __repr__(self) -> str:
        bits, error = self.bits_per_dim, self.error.square().mean().sqrt()
        spread = f" ± {standard_error(bits):.4g}" if len(bits) > 1 else ""
        return (
            f"Likelihood of {len(bits)} images: {bits.mean():.4g}{spread} bits per dim by "
            f"{self.estimator}, error {error:.3g} nats per image, {self.nfe} network evaluations "
            "per image"
        )

    def to_frame(self) -> "DataFrame":
        """Return a data frame of log_prob, bits_per_dim and error, with a row per image. Needs the
        extra ``tables``."""
        from pandas import DataFrame  # takes half a second to import

        names = ("log_prob", "bits_per_dim", "error")
        return DataFrame({name: getattr(self, name).detach().cpu().numpy() for name in names})


def checked_indices(indices: Sequence[int] | None, num: int) -> Sequence[int]:
    """Return the indices of ``num`` images, by default their positions.

    Raises:
        UserError: for an index out of range, or another number of indices.
    """
    if indices is None:
        return range(num)
    values = [*indices] if isinstance(indices, Iterable) else indices
    indices = check_argument(list[Seed], "indices", values)
    if len(indices) != num:
        raise UserError(f"Expected an index for each of {num} images, got {len(indices)} indices.")
    return indices


def mean_likelihood(
    draw: Callable[[slice, ImageNoise], LogDensityEstimate],
    rows: Sequence[slice],
    seed: int,
    indices: Sequence[int],
    repeats: int,
    error_is_drawn: bool,
    num_dims: int,
    estimator: str,
) -> Likelihood:
    """Return the likelihood of images, the mean over ``repeats`` draws.

    Args:
        draw: rows of the images, and their noise -> log P from one draw of the dequantiser and of
            the estimator.
        rows: rows of each batch.
        indices: (B,), index of each image. The noise of an image depends on the seed, its index
            and the number of the draw.
        error_is_drawn: as for ``mean_over_draws``.
        num_dims: number of dimensions of an image.
        estimator: name of the estimator.
    """
    seed, repeats = check_argument(Seed, "seed", seed), check_argument(Draws, "repeats", repeats)
    estimates = []
    with progress("likelihood", len(indices)) as bar:
        for batch in rows:
            noises = (ImageNoise(seed, indices[batch], LIKELIHOODS, k) for k in range(repeats))
            draws = [draw(batch, noise) for noise in noises]
            estimates.append(mean_over_draws(draws, error_is_drawn))
            bar.update(len(indices[batch]))
    return likelihood_of(estimates, num_dims, estimator)


def add_cells(estimate: LogDensityEstimate, point: Dequantised) -> LogDensityEstimate:
    """Return log p_t(y) - log q(y | k), given the estimate of log p_t(y) at a point y ~ q. The
    error is that of log p_t(y)."""
    components = estimate.components
    return estimate._replace(
        value=estimate.value + sum_except_batch(point.negative_log_q),
        components=None if components is None else components + point.negative_log_q,
    )


def mean_over_draws(
    draws: Sequence[LogDensityEstimate], error_is_drawn: bool
) -> LogDensityEstimate:
    """Return the mean of K draws of an estimate for B images, with its error.

    If the errors of the draws are drawn, the error of the mean is their root mean square over
    sqrt(K), or from ``MANY_DRAWS`` draws on the spread of the draws. Other errors do not average
    out, and exclude the dequantiser: with several draws, the spread is added.
    """
    repeats = len(draws)
    values, errors = (torch.stack([each[field] for each in draws]) for field in (0, 1))
    error = errors.square().mean(0).sqrt()
    if error_is_drawn:
        few = repeats < MANY_DRAWS
        error = error / math.sqrt(repeats) if few else error_over_draws(values)
    elif repeats > 1:
        error = error.hypot(error_over_draws(values))
    components = None
    if draws[0].components is not None:
        components = sum(each.components for each in draws) / repeats
    return LogDensityEstimate(values.mean(0), error, components, sum(each.nfe for each in draws))


def likelihood_of(
    estimates: Sequence[LogDensityEstimate], num_dims: int, estimator: str
) -> Likelihood:
    """Concatenate estimates of batches into the likelihood of all images; ``nfe`` is the maximum.

    Raises:
        UserError: if a log-likelihood is not finite.
    """
    log_prob, error = (torch.cat([e[i] for e in estimates]) for i in (0, 1))
    if bad := int((~log_prob.isfinite()).sum()):
        raise UserError(
            f"The log-likelihood of {bad} of {len(log_prob)} images is not finite. Training has "
            "diverged, or the settings of the evaluation are out of range."
        )
    components = [e.components for e in estimates]
    return Likelihood(
        log_prob,
        to_bits_per_dim(log_prob, num_dims),
        error,
        None if components[0] is None else torch.cat(components),
        max(e.nfe for e in estimates),
        estimator,
    )


def batches(num: int, batch_size: int | None, default: int) -> list[slice]:
    """Split ``num`` rows into slices of ``batch_size`` rows, or ``default`` rows if it is None.

    >>> batches(5, None, 2)
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    size = max(1, default) if batch_size is None else batch_size
    size = check_argument(PositiveInt, "batch_size", size)
    return [slice(begin, min(begin + size, num)) for begin in range(0, num, size)]


def images_per_batch(num_dims: int, device: torch.device) -> int:
    """Return the default number of images of ``num_dims`` dimensions per batch.

    >>> images_per_batch(3072, torch.device("cpu")), images_per_batch(3072, torch.device("cuda"))
    (5, 42)
    """
    most = MAX_ON_CPU if device.type == "cpu" else MAX_BATCH_ELEMENTS
    return max(1, most // num_dims)


def warn_of_disagreement(name: str, found: Likelihood, bound: Likelihood, num_dims: int) -> None:
    """Warn if the means of two estimators differ by more than ``MAX_DISAGREEMENT`` bits per dim,
    and by more than three times their error.

    Args:
        name: name of the estimator of ``found``.
        found: likelihood by that estimator.
        bound: likelihood of the first n of the images by "elbo".
    """
    num = len(bound.error)
    a, b = (each.bits_per_dim[:num].double().mean().item() for each in (found, bound))
    nats = torch.cat([found.error[:num], bound.error]).double()
    error = -to_bits_per_dim(nats[nats.isfinite()].norm(), num_dims).item() / num
    if abs(a - b) > max(MAX_DISAGREEMENT, 3 * error):
        warnings.warn(
            f"{name} gives {a:.3f} and elbo {b:.3f} bits per dim on the first {num} images, which "
            "is more than their errors. Use elbo, which is a bound for any network.",
            stacklevel=3,
        )


def to_bits_per_dim(log_prob: Tensor, num_dims: int) -> Tensor:
    """Return -log P / (D log 2): nats (B,) -> bits per dim (B,).

    >>> to_bits_per_dim(torch.tensor([-64 * math.log(256)]), num_dims=64)
    tensor([8.])
    """
    return -log_prob / (num_dims * math.log(2))

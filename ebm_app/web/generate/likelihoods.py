"""Log-likelihoods of the images that were drawn."""

from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor

from ebm_app.image_models.ebm import EBM
from ebm_app.numerics.tensors import mixed_seed

from ..shared import mean_of

REPEATS, BATCH_SIZE = 4, 8
HEADERS = ("Image", "Log p (nats)", "± (nats)", "Bits per dim")


class ImageLikelihood(NamedTuple):
    """Of one image: its number from 1 on, the mean log-likelihood over dequantisation draws with
    its error as in the Score tab, both in nats, and bits per dim."""

    number: int
    log_prob: float
    error: float
    bits_per_dim: float


def likelihood_batches(ebm: EBM, images: Tensor, seed: int) -> Iterator[list[ImageLikelihood]]:
    """Log-likelihoods of images (B, C, H, W) in their order, some at a time.

    Args:
        seed: of the dequantisation noise.
    """
    num_dims = images[0].numel()
    for start in range(0, len(images), BATCH_SIZE):
        batch = images[start : start + BATCH_SIZE].repeat_interleave(REPEATS, 0)
        found = ebm.log_prob(batch, seed=mixed_seed(seed, start))
        parts = zip(found.log_prob.split(REPEATS), found.error.split(REPEATS), strict=True)
        means = [
            mean_of(found._replace(log_prob=values, error=errors), ebm.default_estimator, num_dims)
            for values, errors in parts
        ]
        yield [
            ImageLikelihood(number, mean.log_prob, mean.log_prob_error, mean.bits_per_dim)
            for number, mean in enumerate(means, start + 1)
        ]


def table(likelihoods: tuple[ImageLikelihood, ...]) -> list[list[float]]:
    """Rows under ``HEADERS``, rounded for the eye."""
    return [
        [number, round(log_prob, 2), round(error, 2), round(bits, 4)]
        for number, log_prob, error, bits in likelihoods
    ]

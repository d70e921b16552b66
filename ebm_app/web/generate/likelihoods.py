"""Log-likelihoods of the images that were drawn."""

from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor

from ebm_app.ebm import EBM
from ebm_app.likelihood.bits import to_bits_per_dim
from ebm_app.numerics import mixed_seed, standard_error

REPEATS, BATCH_SIZE = 4, 8
HEADERS = ("Image", "Log p (nats)", "± (nats)", "Bits per dim")


class Score(NamedTuple):
    """Of one image: its number from 1 on, the mean log-likelihood over dequantisation draws with
    its standard error, both in nats, and bits per dim."""

    number: int
    log_prob: float
    error: float
    bits_per_dim: float


def score_batches(ebm: EBM, images: Tensor, seed: int) -> Iterator[list[Score]]:
    """Scores of images (B, C, H, W) in their order, some at a time.

    Args:
        seed: of the dequantisation noise.
    """
    for start in range(0, len(images), BATCH_SIZE):
        batch = images[start : start + BATCH_SIZE].repeat_interleave(REPEATS, 0)
        draws = ebm.log_prob(batch, seed=mixed_seed(seed, start)).log_prob.view(-1, REPEATS)
        bits = to_bits_per_dim(draws.mean(1), images[0].numel())
        yield [
            Score(number, row.mean().item(), standard_error(row).item(), of_dim)
            for number, (row, of_dim) in enumerate(
                zip(draws.cpu(), bits.tolist(), strict=True), start + 1
            )
        ]


def table(scores: tuple[Score, ...]) -> list[list[float]]:
    """Rows under ``HEADERS``, rounded for the eye."""
    return [
        [number, round(log_prob, 2), round(error, 2), round(bits, 4)]
        for number, log_prob, error, bits in scores
    ]

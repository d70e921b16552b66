"""Averages of log-likelihoods over draws of the dequantiser.

The number of draws is fixed, or chosen for each image: draws are added until the error of their
mean is below ``MAX_ERROR``. It then depends on the image and its noise alone, not on its batch.
"""

from collections.abc import Callable
from math import log
from typing import NamedTuple

import torch
from torch import Tensor
from tqdm.auto import tqdm

from ebm_app.likelihood.bits import Likelihood, batches, images_per_batch, likelihood_of
from ebm_app.likelihood.dequantisation import Cells, Dequantiser
from ebm_app.likelihood.estimator import Estimator, error_over_draws
from ebm_app.likelihood.noise import DequantisationNoise, GivenNoise, noise_for, seeded_noise
from ebm_app.nets.model import LogDensityEstimate, ScoreModel
from ebm_app.utils.fields import Draws, check_argument
from ebm_app.utils.output import progress
from ebm_app.utils.random import ImageNoise

#: Error of the mean over draws, in bits per dim, at which no more draws are added
MAX_ERROR = 0.02
#: Numbers of draws at which the error is compared with ``MAX_ERROR``; the last is the maximum.
#: The spread of fewer than 8 draws is too uncertain.
CHECKS = (8, 16, 32, 64, 128)


class DequantisationDraws(NamedTuple):
    """Draws of the dequantiser for some images.

    Attributes:
        noise: uniform numbers of the images.
        checks: increasing numbers of draws after which images with an error up to ``MAX_ERROR``
            are completed. After the last, all are.
    """

    noise: DequantisationNoise
    checks: tuple[int, ...] = CHECKS


def draws_of(
    levels: Tensor,
    dtype: torch.dtype,
    seed: int,
    repeats: int | None = None,
    noise: Tensor | ImageNoise | None = None,
) -> DequantisationDraws:
    """Return the draws for images of grey levels (B, C, H, W).

    Args:
        seed: seed of random draws.
        repeats: number of random draws; by default, it depends on the error.
        noise: numbers (K, B, C, H, W) for K draws, or a source of random numbers.

    Raises:
        UserError: for ``repeats`` or a seed out of range, and wrong numbers, see ``noise_for``.
    """
    if not (noise is None or isinstance(noise, ImageNoise)):
        numbers = noise_for(levels, dtype, seed, repeats, noise)
        return DequantisationDraws(GivenNoise(numbers), (len(numbers),))
    if noise is None:
        noise = seeded_noise(seed, range(len(levels)))
    checks = CHECKS if repeats is None else (check_argument(Draws, "repeats", repeats),)
    return DequantisationDraws(noise, checks)


class LevelsEvaluation(NamedTuple):
    """Evaluation of log P of grey levels by an estimator.

    Attributes:
        estimator: estimator of log p.
        cells, dequantiser: of the model.
        device, dtype: of the model.
    """

    estimator: Estimator
    cells: Cells
    dequantiser: Dequantiser
    device: torch.device
    dtype: torch.dtype

    def likelihood(
        self,
        model_of: Callable[[slice], ScoreModel],
        levels: Tensor,
        draws: DequantisationDraws,
        batch_size: int | None,
    ) -> Likelihood:
        """Return the likelihood of images of grey levels (B, C, H, W), averaged over draws.

        Args:
            model_of: rows of the images -> their model.
            batch_size: images per batch; None for the default of the device.
        """
        num_dims = levels[0].numel()
        estimates, default = [], images_per_batch(num_dims, self.device)
        with progress("likelihood", len(levels)) as bar:
            for rows in batches(len(levels), batch_size, default):
                own = draws._replace(noise=draws.noise[rows])
                batch = levels[rows].to(self.device)
                estimates.append(self.average(model_of(rows), batch, own, bar))
        return likelihood_of(estimates, num_dims)

    def average(
        self, model: ScoreModel, levels: Tensor, draws: DequantisationDraws, bar: tqdm
    ) -> LogDensityEstimate:
        """Return the mean of the estimator's log P over draws, for B images.

        With several draws, the error includes their spread. It is combined with the mean error of
        the estimator, unless that is drawn. With one draw, it is the error of the estimator.
        ``nfe`` is that of the image with the most draws.

        Args:
            levels: (B, C, H, W), on the device of the model.
            bar: progress bar of the completed images.
        """
        num, num_dims = len(levels), levels[0].numel()
        (noise, checks), rows = draws, torch.arange(num)
        counts, estimates = torch.zeros(num, dtype=torch.long), []
        while len(rows):
            u = noise.uniform_like(levels[rows].to(self.dtype))
            estimate = self.estimator.log_prob_of_levels(
                model.at(rows), levels[rows], self.cells, self.dequantiser, u
            )
            estimates.append(_expanded(estimate, rows, num))
            counts[rows] += 1
            is_open = torch.full((len(rows),), len(estimates) < checks[-1])
            if len(estimates) in checks[:-1]:
                error = error_over_draws(torch.stack([each.value[rows] for each in estimates]))
                is_open = (error > MAX_ERROR * num_dims * log(2)).cpu()
            bar.set_postfix_str(f"{len(estimates)} draws", refresh=False)
            bar.update(int((~is_open).sum()))
            if not is_open.all():
                noise, rows = noise[is_open.nonzero().flatten().tolist()], rows[is_open]
        return _mean(estimates, counts, self.estimator.error_is_drawn)


def _expanded(draw: LogDensityEstimate, rows: Tensor, num: int) -> LogDensityEstimate:
    """Return the estimate of ``num`` images from that of ``rows``, with zeros for the others."""
    if len(rows) == num:
        return draw

    def expand(x: Tensor) -> Tensor:
        return x.new_zeros(num, *x.shape[1:]).index_copy(0, rows.to(x.device), x)

    components = None if draw.components is None else expand(draw.components)
    return LogDensityEstimate(expand(draw.value), expand(draw.error), components, draw.nfe)


def _mean(
    draws: list[LogDensityEstimate], counts: Tensor, error_is_drawn: bool
) -> LogDensityEstimate:
    """Return the mean over the first ``counts`` draws of each image, with its error."""
    values, errors = (torch.stack([draw[field] for draw in draws]) for field in (0, 1))
    counts = counts.to(values.device)
    value, error = values.sum(0) / counts, errors.sum(0) / counts
    for count in counts.unique().tolist():
        rows = counts == count
        if count > 1:
            spread = error_over_draws(values[:count, rows])
            error[rows] = spread if error_is_drawn else torch.hypot(spread, error[rows])
    components = None
    if draws[0].components is not None:
        total = torch.stack([draw.components for draw in draws]).sum(0)
        components = total / counts.reshape(-1, *(1,) * (total.ndim - 1))
    return LogDensityEstimate(value, error, components, sum(draw.nfe for draw in draws))

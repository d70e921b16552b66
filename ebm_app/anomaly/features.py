r"""Features of an image for anomaly detection, from one network call per noise level.

At a noise level, x = alpha y + deviation e with e ~ N(0, I) is a noised copy of the image y. The
Stein score s predicts the noise e_s = -deviation s(x, t), with residual e - e_s. All images share
the same e, so that their features differ only by content. Noise levels are log signal-to-noise
ratios of x.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from ebm_app.ebm import EBM
from ebm_app.likelihood.bits import checked_levels
from ebm_app.likelihood.dequantisation import dequantisation_noise
from ebm_app.paths import require_one_sided
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import check_argument
from ebm_app.utils.tensors import sum_except_batch

#: Noise levels of the image with its rotated and mirrored copies, and of the image alone, for
#: 28 x 28 pixels. The noise variance grows in proportion to the number of pixels.
SYMMETRY_LEVELS, OTHER_LEVELS, PIXELS = (-1.0, -0.1), (-1.5, -1.0, -0.5, 2.5, 6.0), 784
#: Max images per network call, copies included.
BATCH_SIZE = 128
#: Max cells per side over which residuals are averaged.
CELLS = 7
#: Seed of the noise that all images share.
SEED = 0


class Features(NamedTuple):
    """Features of B images at n noise levels.

    Attributes:
        squares: mean squared residuals over channels (B, n, H, W).
        expected: variances of the residuals predicted by the model (B, n, H, W).
        time_scores: time scores (B, n), in nats per unit of t.
        losses: denoising losses (B, G) in nats of the image and its G - 1 rotated and mirrored
            copies, summed over ``SYMMETRY_LEVELS``: approximately -log p up to a constant.
    """

    squares: Tensor
    expected: Tensor
    time_scores: Tensor
    losses: Tensor

    def select(self, rows: Tensor) -> "Features":
        """Return the features of the images ``rows``, a mask (B,) or indices."""
        return Features(*(column[rows] for column in self))

    def normalised(self) -> Tensor:
        """Return squared residuals over their predicted variance (B, n, H, W): 1 on average."""
        return self.squares / (self.expected + 1e-3)

    def residuals(self) -> Tensor:
        """Return log normalised residuals by noise level and image cell (B, F), float64."""
        side = min(CELLS, *(max(1, n // 2) for n in self.squares.shape[-2:]))
        return (adaptive_avg_pool2d(self.normalised(), side).double() + 1e-3).log().flatten(1)

    def summary(self) -> Tensor:
        """Return time scores, log residual norms and variances, and losses (B, F), float64."""
        maps = (self.squares, self.expected)
        norms = [values.double().flatten(2).mean(2).log() for values in maps]
        return torch.cat([self.time_scores, *norms, self.losses], 1)


def symmetric_copies(images: Tensor) -> list[Tensor]:
    """Return images (*, H, W) and their rotated and mirrored copies of the same shape.

    There are 8 for square images and 4 for others.
    """
    turns = range(4) if images.shape[-1] == images.shape[-2] else (0, 2)
    return [x.rot90(k, (-2, -1)) for x in (images, images.flip(-1)) for k in turns]


def noise_times(ebm: EBM) -> list[float]:
    """Return the times t of ``SYMMETRY_LEVELS`` and ``OTHER_LEVELS`` on the path of a model.

    Raises:
        UserError: if the model has no Stein head, or its path does not start at noise.
    """
    if not ebm.config.stein_head:
        raise UserError("This model has no Stein head, which anomaly detection needs.")
    path = require_one_sided(ebm.density.path)
    shift = math.log(PIXELS / math.prod(ebm.config.image_shape[1:]))
    levels = torch.tensor((*SYMMETRY_LEVELS, *OTHER_LEVELS), dtype=torch.float64) + shift
    return path.log_snr_inverse(levels).tolist()


def to_model_levels(ebm: EBM, images: Any) -> Tensor:
    """Return images (B, C, H, W), in [0, 1] or uint8 levels, as grey levels of the model.

    Raises:
        UserError: if the shape or the values do not match the model.
    """
    config = check_argument(EBM, "model", ebm).config
    return checked_levels(images, config.image_shape, config.num_levels)


@torch.no_grad()
def extract_features(ebm: EBM, images: Any) -> Features:
    """Return the features of images (B, C, H, W), in [0, 1] or uint8 levels.

    >>> from ebm_app import EBM
    >>> extract_features(EBM.from_pretrained("digits"), torch.zeros(2, 1, 8, 8)).losses.shape
    torch.Size([2, 8])

    Raises:
        UserError: as ``to_model_levels`` and ``noise_times``.
    """
    levels, times = to_model_levels(ebm, images), noise_times(ebm)
    generator = torch.Generator().manual_seed(SEED)
    noises = torch.randn((len(times), *ebm.config.image_shape), generator=generator)
    cell_noise = dequantisation_noise(1, levels[:1], SEED)[0, 0].to(ebm.dtype)
    size = max(1, BATCH_SIZE // len(symmetric_copies(levels[:1])))
    batches = []
    for batch in levels.split(size):
        copies = torch.cat(symmetric_copies(batch))
        y = ebm.dequantise(copies, _repeat_for_copies(cell_noise, len(batch))).y
        batches.append(_features(ebm, y, len(batch), times, noises.to(ebm.dtype)))
    return Features(*(torch.cat(column).cpu() for column in zip(*batches, strict=True)))


def _features(ebm: EBM, y: Tensor, num: int, times: list[float], noises: Tensor) -> Features:
    """Return the features of ``num`` images, from the points y (num * copies, C, H, W)."""
    squares, expected, time_scores, losses = [], [], [], []
    for index, time in enumerate(times):
        with_copies = index < len(SYMMETRY_LEVELS)
        clean = y if with_copies else y[:num]
        noise = _repeat_for_copies(noises[index], num)[: len(clean)].to(y.device)
        t = torch.tensor(time, dtype=torch.float64)
        alpha, deviation = ebm.density.path.alpha(t).item(), ebm.density.path.variance(t).sqrt()
        output = ebm.density.output(alpha * clean + deviation.item() * noise, time)
        square = (noise + deviation.item() * output.score).square()
        if with_copies:
            losses.append(sum_except_batch(square.double()).view(-1, num).T / 2)
        squares.append(square[:num].mean(1))
        predicts_variance = output.variance is not None
        expected.append(
            output.variance[:num].mean(1) if predicts_variance else torch.ones_like(squares[-1])
        )
        time_scores.append(sum_except_batch(output.components[:num].double()))
    columns = [torch.stack(column, 1) for column in (squares, expected, time_scores)]
    return Features(*columns, torch.stack(losses).sum(0))


def _repeat_for_copies(noise: Tensor, num: int) -> Tensor:
    """Return the noise (C, H, W) rotated and mirrored like the images: (num * copies, C, H, W)."""
    return torch.stack(symmetric_copies(noise)).repeat_interleave(num, 0)

r"""Features of an image for anomaly detection: one network call per noise level, and statistics.

At a noise level, x = alpha y + deviation e with e ~ N(0, I) is a noised copy of the image y. The
Stein score s predicts the noise e_s = -deviation s(x, t), with residual e - e_s. All images share
the same e, so that their features differ only by content. Noise levels are log signal-to-noise
ratios of x.
"""

import io
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, avg_pool2d

from ebm_app.data.folder import is_image, list_files
from ebm_app.data.levels import to_display
from ebm_app.data.pictures import convert_image, read_image, to_pil, to_uint8
from ebm_app.ebm import EBM
from ebm_app.likelihood.bits import checked_levels
from ebm_app.likelihood.noise import dequantisation_noise
from ebm_app.nets.protocols import require
from ebm_app.nets.time_score import SteinScoreModel
from ebm_app.paths import require_one_sided
from ebm_app.utils.fields import check_argument
from ebm_app.utils.tensors import as_tensor, sum_except_batch

#: Scales in pixels at which the squared differences of neighbours are averaged
SCALES = (1, 2, 4)
#: Max images per network call, copies included.
BATCH_SIZE = 128
#: Max cells per side over which residuals are averaged.
CELLS = 7
#: Radius of the squares over which maps are smoothed, as a share of the shorter side.
SMOOTHING = 1 / 12
#: Seed of the noise that all images share.
SEED = 0
#: Types of the items of a list of pictures
PICTURES = (Image.Image, str, os.PathLike)


#: Noise levels for an image and its rotated and mirrored copies, noise levels for the image alone,
#: and the number of pixels per channel at which both apply. The noise variance is scaled in
#: proportion to the number of pixels.
NoiseLevels = tuple[tuple[float, ...], tuple[float, ...], int]
GREY: NoiseLevels = ((-1.0, -0.1), (-1.5, -1.0, -0.5, 2.5, 6.0), 784)
#: No copies of colour images: a mirrored photograph is not unusual, and 8 copies are too slow. At
#: the first level only the mean colour is visible.
COLOUR: NoiseLevels = ((-5.0, 0.0, 3.0, 7.5), (), 1024)


class Features(NamedTuple):
    """Features of B images at n noise levels.

    Attributes:
        statistics: see ``image_statistics``, (B, F).
        squares: mean squared residuals over channels (B, n, H, W).
        expected: variances of the residuals predicted by the model (B, n, H, W).
        time_scores: time scores (B, n), in nats per unit of t.
        losses: denoising losses (B, G) in nats of the image and its G - 1 rotated and mirrored
            copies, summed over noise levels: approximately -log p up to a constant.
    """

    statistics: Tensor
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

    def smoothed_residuals(self) -> Tensor:
        """Return normalised squared residuals averaged over squares, (B, n, H, W)."""
        values = self.normalised().float()
        radius = int(SMOOTHING * min(values.shape[-2:]))
        return avg_pool2d(values, 2 * radius + 1, 1, radius, count_include_pad=False)

    def residuals(self) -> Tensor:
        """Return log normalised residuals by noise level and image cell (B, F), float64."""
        side = min(CELLS, *(max(1, n // 2) for n in self.squares.shape[-2:]))
        return (adaptive_avg_pool2d(self.normalised(), side).double() + 1e-3).log().flatten(1)

    def summary(self) -> Tensor:
        """Return time scores, log residual norms and variances, and losses (B, F), float64."""
        maps = (self.squares, self.expected)
        norms = [values.double().flatten(2).mean(2).log() for values in maps]
        return torch.cat([self.time_scores, *norms, self.losses], 1)


def image_statistics(images: Tensor) -> Tensor:
    """Return statistics (B, F) of images (B, C, H, W) in [0, 1], float64.

    They are the mean and the log standard deviation of each channel, the log size of the image as
    lossless WebP, and for each of ``SCALES`` the log mean squared difference of neighbouring
    pixels after average pooling.

    Source: Serra et al. 2020, arXiv:1909.11480, for the size, which measures complexity.
    """
    sizes = [_webp_size(pixels) for pixels in to_uint8(images)]
    images, columns = images.double(), [torch.tensor(sizes, dtype=torch.float64).log()]
    for scale in SCALES:
        if 2 * scale <= min(images.shape[-2:]):
            means = avg_pool2d(images, scale)
            squares = [means.diff(dim=k).square().mean((1, 2, 3)) for k in (-2, -1)]
            columns.append((sum(squares) / 2 + 1e-5).log())
    contrasts = (images.std((2, 3)) + 0.01).log()
    return torch.cat([images.mean((2, 3)), contrasts, torch.stack(columns, 1)], 1)


def _webp_size(pixels: np.ndarray) -> int:
    """Return the size in bytes of pixels (H, W, C) uint8 as lossless WebP. Channels are placed
    side by side unless there are 1 or 3."""
    if pixels.shape[-1] not in (1, 3):
        pixels = pixels.swapaxes(1, 2).reshape(len(pixels), -1, 1)
    to_pil(pixels).save(buffer := io.BytesIO(), "WebP", lossless=True)
    return buffer.tell()


def noise_levels(image_shape: Sequence[int]) -> NoiseLevels:
    """Return the noise levels for images (C, H, W)."""
    return GREY if image_shape[0] == 1 else COLOUR


def symmetric_copies(images: Tensor) -> list[Tensor]:
    """Return images (*, C, H, W) and their rotated and mirrored copies of the same shape.

    There are 8 for square grey images, 4 for other grey images and 1 for colour images.
    """
    if images.shape[-3] > 1:
        return [images]
    turns = range(4) if images.shape[-1] == images.shape[-2] else (0, 2)
    return [x.rot90(k, (-2, -1)) for x in (images, images.flip(-1)) for k in turns]


def noise_times(ebm: EBM) -> list[float]:
    """Return the times t of the noise levels on the path of a model.

    Raises:
        UserError: if the model has no Stein head, or its path does not start from N(0, I).
    """
    density = require(ebm.model, SteinScoreModel, "Anomaly detection")
    path = require_one_sided(density.path)
    with_copies, alone, num_pixels = noise_levels(ebm.config.image_shape)
    shift = math.log(num_pixels / math.prod(ebm.config.image_shape[1:]))
    levels = torch.tensor(with_copies + alone, dtype=torch.float64) + shift
    return path.log_snr_inverse(levels).tolist()


def to_model_levels(ebm: EBM, images: Any) -> Tensor:
    """Convert images to grey levels of the model, uint8 (B, C, H, W).

    Args:
        images: (B, C, H, W), or rows (B, C H W) of one image each, in [0, 1] or uint8 levels; a
            list of Pillow images or paths; or the path of a folder.

    Raises:
        UserError: if the shape or the values do not match the model.
    """
    config = check_argument(EBM, "model", ebm).config
    if isinstance(images, str | os.PathLike):
        images = [Path(images, name) for name in list_files(Path(images)) if is_image(name)]
    if isinstance(images, list | tuple) and isinstance(next(iter(images), None), PICTURES):
        pictures = ((x if isinstance(x, Image.Image) else read_image(Path(x))) for x in images)
        levels = (convert_image(x, f"image {n}", config) for n, x in enumerate(pictures))
        return torch.stack([*levels])
    images = as_tensor(images, "images")
    if images.ndim == 2 and images.shape[1] == math.prod(config.image_shape):
        images = images.reshape(-1, *config.image_shape)
    return checked_levels(images, config.image_shape, config.num_levels)


@torch.no_grad()
def extract_features(ebm: EBM, images: Any) -> Features:
    """Return the features of images (B, C, H, W), in [0, 1] or uint8 levels. Raises as
    ``to_model_levels`` and ``noise_times``.

    >>> from ebm_app import EBM
    >>> extract_features(EBM.from_pretrained("digits"), torch.zeros(2, 1, 8, 8)).losses.shape
    torch.Size([2, 8])
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
        batches.append(_network_features(ebm, y, len(batch), times, noises.to(ebm.dtype)))
    columns = [torch.cat(column).cpu() for column in zip(*batches, strict=True)]
    return Features(image_statistics(to_display(levels.cpu(), ebm.config.num_levels)), *columns)


def _network_features(
    ebm: EBM, y: Tensor, num: int, times: list[float], noises: Tensor
) -> tuple[Tensor, ...]:
    """Return the features of ``num`` images except their statistics, from the points y
    (num * copies, C, H, W)."""
    num_with_copies = len(noise_levels(ebm.config.image_shape)[0])
    squares, expected, time_scores, losses = [], [], [], []
    for index, time in enumerate(times):
        with_copies = index < num_with_copies
        clean = y if with_copies else y[:num]
        noise = _repeat_for_copies(noises[index], num)[: len(clean)].to(y.device)
        t = torch.tensor(time, dtype=torch.float64)
        alpha, deviation = ebm.model.path.alpha(t).item(), ebm.model.path.variance(t).sqrt()
        output = ebm.model.output(alpha * clean + deviation.item() * noise, time)
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
    return *columns, torch.stack(losses).sum(0)


def _repeat_for_copies(noise: Tensor, num: int) -> Tensor:
    """Rotate and mirror noise (C, H, W) like the images: (num * copies, C, H, W)."""
    return torch.stack(symmetric_copies(noise)).repeat_interleave(num, 0)

r"""Features of an image: what a model predicts at a few noise levels, and image statistics.

At a noise level, x = alpha y + deviation e is a noised copy of an image y, with e ~ N(0, I). The
Stein score s predicts the noise as -deviation s(x, t), with residual e + deviation s(x, t). The
model also predicts a variance, and the time score. Noise levels are log
signal-to-noise ratios. All images share the same e, so that their features differ only by content.

Sources: Mahmood et al. 2021, arXiv:2010.13132, for norms of Stein scores at several noise levels;
Serra et al. 2020, arXiv:1909.11480, for the compressed size, which measures complexity.
"""

import io
import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, avg_pool2d

from ebm_app.data.levels import to_display
from ebm_app.data.pictures import to_pil, to_uint8
from ebm_app.ebm import EBM
from ebm_app.nets.model import TimeScoreModel
from ebm_app.paths import require_one_sided
from ebm_app.utils.errors import UserError
from ebm_app.utils.output import progress
from ebm_app.utils.tensors import sum_except_batch

#: Noise levels of grey images of 784 pixels, and of colour images of 1024 pixels. For other sizes
#: the noise variance is proportional to the number of pixels.
GREY, GREY_PIXELS = (-1.0, -0.5, 2.5, 6.0), 784
COLOUR, COLOUR_PIXELS = (0.0, 3.0, 5.0, 7.5), 1024
#: Max images per network call
BATCH_SIZE = 64
#: Seed of the noise that all images share
SEED = 0
#: Scales in pixels at which neighbouring pixels are compared
SCALES = (1, 2, 4)
#: Radius of the squares over which maps are smoothed, as a fraction of the shorter side
SMOOTHING = 1 / 12
#: Added to variances of pixels and to mean squared residuals, so that ratios and logs are finite
FLOOR = 1e-3
#: Added to mean variances and mean squared differences of pixels, so that their logs are finite
SMALL = 1e-5


class Features(NamedTuple):
    """Features of B images at n noise levels.

    Attributes:
        squares: squared residuals over predicted variances, each averaged over channels,
            (B, n, H, W).
        variances: predicted posterior variances of the target of the Stein head (see
            ``ModelOutput``), averaged over all pixels (B, n).
        time_scores: time scores in nats per unit of t, (B, n).
        statistics: see ``image_statistics``, (B, S).
    """

    squares: Tensor
    variances: Tensor
    time_scores: Tensor
    statistics: Tensor

    def vectors(self) -> Tensor:
        """Return feature vectors (B, F), float64: the log means of ``squares`` in the quarters of
        the image, the logs of ``variances``, ``time_scores``, and ``statistics``."""
        quarters = adaptive_avg_pool2d(self.squares.double(), 2)
        columns = [(quarters + FLOOR).log().flatten(1), (self.variances + SMALL).log()]
        return torch.cat([*columns, self.time_scores, self.statistics], 1)

    def smoothed(self) -> Tensor:
        """Return ``squares`` averaged over the square around each pixel, (B, n, H, W)."""
        radius = int(SMOOTHING * min(self.squares.shape[-2:]))
        return avg_pool2d(self.squares, 2 * radius + 1, 1, radius, count_include_pad=False)


def noise_levels(image_shape: tuple[int, ...]) -> list[float]:
    """Return the noise levels for images (C, H, W)."""
    levels, num_pixels = (GREY, GREY_PIXELS) if image_shape[0] == 1 else (COLOUR, COLOUR_PIXELS)
    shift = math.log(num_pixels / math.prod(image_shape[1:]))
    return [level + shift for level in levels]


def noise_times(ebm: EBM) -> list[float]:
    """Return the times t of the noise levels on the path of a model.

    Raises:
        UserError: if the model has no Stein head, or its path does not start from N(0, I).
    """
    model = ebm.model
    if not (isinstance(model, TimeScoreModel) and model.has_score):
        raise UserError("Anomaly detection needs a model with both scores. Train a Stein head.")
    levels = torch.tensor(noise_levels(ebm.config.image_shape), dtype=torch.float64)
    return require_one_sided(model.path).log_snr_inverse(levels).tolist()


@torch.no_grad()
def extract_features(ebm: EBM, levels: Tensor) -> Features:
    """Return the features of images of grey levels, uint8 (B, C, H, W), by one network evaluation
    per noise level. Raises as ``noise_times``.

    >>> ebm = EBM.from_pretrained("digits")
    >>> extract_features(ebm, torch.zeros(2, 1, 8, 8, dtype=torch.uint8)).squares.shape
    torch.Size([2, 4, 8, 8])
    """
    times, shape = noise_times(ebm), ebm.config.image_shape
    generator = torch.Generator().manual_seed(SEED)
    noises = torch.randn((len(times), *shape), generator=generator).to(ebm.device, ebm.dtype)
    seeded = torch.Generator().manual_seed(SEED)
    dequantisation = torch.rand(shape, generator=seeded, dtype=torch.float32).to(
        ebm.device, ebm.dtype
    )
    batches = []
    with progress("features", len(levels) * len(times)) as bar:
        for batch in levels.split(BATCH_SIZE):
            batch, uniform = batch.to(ebm.device), dequantisation.expand(len(batch), *shape)
            y = ebm.dequantiser.points(batch, ebm.cells, uniform, ebm.model).y
            columns = []
            for noise, t in zip(noises, times, strict=True):
                columns.append(_features_at(ebm, y, noise, t))
                bar.update(len(batch))
            batches.append([torch.stack(column, 1).cpu() for column in zip(*columns, strict=True)])
    squares, variances, time_scores = map(torch.cat, zip(*batches, strict=True))
    statistics = image_statistics(to_display(levels.cpu(), ebm.config.num_levels))
    features = Features(squares.float(), variances, time_scores, statistics)
    check_finite(features.vectors())
    return features


def _features_at(ebm: EBM, y: Tensor, noise: Tensor, time: float) -> tuple[Tensor, ...]:
    """Return squares (B, H, W), variances (B,) and time scores (B,) of points y (B, C, H, W) at
    time t."""
    t, path = torch.tensor(time, dtype=torch.float64), ebm.model.path
    alpha, deviation = path.alpha(t).item(), path.variance(t).sqrt().item()
    output = ebm.model.output(alpha * y + deviation * noise, time)
    squares = (noise + deviation * output.score).square().mean(1)
    if output.variance is None:
        variance = torch.ones_like(squares)
    else:
        variance = output.variance.mean(1)
    time_score = sum_except_batch(output.components.double())
    return squares / (variance + FLOOR), variance.double().mean((1, 2)), time_score


def image_statistics(images: Tensor) -> Tensor:
    """Return statistics (B, S) of images (B, C, H, W) in [0, 1], float64: the log bytes as
    lossless WebP, and for each of ``SCALES`` up to half a side the log mean squared difference of
    neighbouring pixels after average pooling."""
    columns = [torch.tensor([_webp_size(pixels) for pixels in to_uint8(images)]).double().log()]
    scales = [scale for scale in SCALES if 2 * scale <= min(images.shape[-2:])]
    for scale in scales:
        means = avg_pool2d(images.double(), scale)
        squares = [means.diff(dim=dim).square().mean((1, 2, 3)) for dim in (-2, -1)]
        columns.append((sum(squares) / 2 + SMALL).log())
    return torch.stack(columns, 1)


def _webp_size(pixels: np.ndarray) -> int:
    """Return the bytes of pixels (H, W, C) uint8 as lossless WebP. Channels are placed side by
    side unless there are 1 or 3."""
    if pixels.shape[-1] not in (1, 3):
        pixels = pixels.swapaxes(1, 2).reshape(len(pixels), -1, 1)
    to_pil(pixels).save(buffer := io.BytesIO(), "WebP", lossless=True)
    return buffer.tell()


def check_finite(vectors: Tensor) -> None:
    """Raise a UserError if feature vectors (B, F) are not finite."""
    is_bad = ~vectors.isfinite().all(1)
    if is_bad.any():
        raise UserError(
            f"The features of {int(is_bad.sum())} of {len(vectors)} images are not finite, the "
            f"first at index {int(is_bad.nonzero()[0])}. Use a model whose training has not "
            "diverged."
        )

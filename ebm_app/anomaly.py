r"""Detection of unusual images at a false-alarm rate, with maps of what is unusual.

The features of an image are what a model predicts at a few noise levels, and image statistics. At
a noise level, x = alpha y + deviation e is a noised copy of an image y, with e ~ N(0, I). The
Stein score s predicts the noise as -deviation s(x, t), with residual e + deviation s(x, t). The
model also predicts a variance, and the time score. Noise levels are log signal-to-noise ratios.
All images share the same e, so that their features differ only by content.

Sources: Mahmood et al. 2021, arXiv:2010.13132, for norms of Stein scores at several noise levels;
Serra et al. 2020, arXiv:1909.11480, for the compressed size, which measures complexity.
"""

import io
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, OutlierMixin
from sklearn.covariance import LedoitWolf
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import KFold
from sklearn.preprocessing import StandardScaler
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, avg_pool2d

from ebm_app.data.levels import checked_levels, to_display
from ebm_app.data.pictures import to_pil, to_uint8
from ebm_app.ebm import EBM
from ebm_app.nets.model import TimeScoreModel
from ebm_app.paths import require_one_sided
from ebm_app.pretrained import find_folder, fingerprint
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import Fraction, PathArgument, check_argument
from ebm_app.utils.files import read_json, read_tensors, report_damage, write_json, write_tensors
from ebm_app.utils.output import progress
from ebm_app.utils.tensors import sum_except_batch

FITTED_FILE, RECORD_FILE = "anomaly.safetensors", "anomaly.json"
#: Min distinct images to fit a detector
MIN_IMAGES = 80
#: Noise levels of grey images of 784 pixels, and of colour images of 1024 pixels. For other sizes
#: the noise variance is proportional to the number of pixels.
GREY, GREY_PIXELS = (-1.0, -0.5, 2.5, 6.0), 784
COLOUR, COLOUR_PIXELS = (0.0, 3.0, 5.0, 7.5), 1024
#: Max images per network call
BATCH_SIZE = 64
#: Seed of the noise that all images share
SEED = 0
#: Residuals are averaged over CELLS x CELLS rectangles. 2 x 2 hardly see a rotated digit
CELLS = 7
#: Scales in pixels at which neighbouring pixels are compared
SCALES = (1, 2, 4)
#: Radius of the squares over which maps are smoothed, as a fraction of the shorter side
SMOOTHING = 1 / 12
#: Added to variances of pixels and to mean squared residuals, so that ratios and logs are finite
FLOOR = 1e-3
#: Added to mean variances and mean squared differences of pixels, so that their logs are finite
SMALL = 1e-5
#: Number of folds of cross-conformal prediction
NUM_FOLDS = 5
#: Fraction of ordinary images whose maps are below 1 everywhere
MAP_QUANTILE = 0.9


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

    def blocks(self) -> tuple[Tensor, Tensor]:
        """Return two blocks of features, float64: the log means of ``squares`` in ``CELLS`` x
        ``CELLS`` rectangles (B, 49 n), and the logs of ``variances``, ``time_scores`` and
        ``statistics`` (B, 2 n + S)."""
        cells = (adaptive_avg_pool2d(self.squares.double(), CELLS) + FLOOR).log()
        others = [(self.variances + SMALL).log(), self.time_scores, self.statistics]
        return cells.flatten(1), torch.cat(others, 1)

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
    generators = (torch.Generator().manual_seed(SEED) for _ in range(2))
    noises = torch.randn((len(times), *shape), generator=next(generators))
    uniform = torch.rand(shape, generator=next(generators), dtype=torch.float32)
    noises, uniform = (each.to(ebm.device, ebm.dtype) for each in (noises, uniform))
    batches = []
    with progress("features", len(levels) * len(times)) as bar:
        for batch in levels.split(BATCH_SIZE):
            batch, shared = batch.to(ebm.device), uniform.expand(len(batch), *shape)
            y = ebm.dequantiser.points(batch, ebm.cells, shared, ebm.model).y
            columns = []
            for noise, t in zip(noises, times, strict=True):
                columns.append(_features_at(ebm, y, noise, t))
                bar.update(len(batch))
            batches.append([torch.stack(column, 1).cpu() for column in zip(*columns, strict=True)])
    squares, variances, time_scores = map(torch.cat, zip(*batches, strict=True))
    statistics = image_statistics(to_display(levels.cpu(), ebm.config.num_levels))
    features = Features(squares.float(), variances, time_scores, statistics)
    is_bad = ~torch.cat(features.blocks(), 1).isfinite().all(1)
    if is_bad.any():
        raise UserError(
            f"The features of {int(is_bad.sum())} of {len(levels)} images are not finite, the "
            f"first at index {int(is_bad.nonzero()[0])}. Use a model whose training has not "
            "diverged."
        )
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
    lossless WebP, and the log mean squared differences of neighbouring pixels after average
    pooling by ``scales_of`` the image."""
    columns = [torch.tensor([webp_size(pixels) for pixels in to_uint8(images)]).double().log()]
    for scale in scales_of(*images.shape[-2:]):
        means = avg_pool2d(images.double(), scale)
        squares = [means.diff(dim=dim).square().mean((1, 2, 3)) for dim in (-2, -1)]
        columns.append((sum(squares) / 2 + SMALL).log())
    return torch.stack(columns, 1)


def scales_of(height: int, width: int) -> list[int]:
    """Return the entries of ``SCALES`` up to half a side."""
    return [scale for scale in SCALES if 2 * scale <= min(height, width)]


def webp_size(pixels: np.ndarray) -> int:
    """Return the bytes of pixels (H, W, C) uint8 as lossless WebP. Channels are placed side by
    side unless there are 1 or 3."""
    if pixels.shape[-1] not in (1, 3):
        pixels = pixels.swapaxes(1, 2).reshape(len(pixels), -1, 1)
    to_pil(pixels).save(buffer := io.BytesIO(), "WebP", lossless=True)
    return buffer.tell()


class Fitted(NamedTuple):
    """What ``fit`` learns from n ordinary images with F features.

    Attributes:
        mean, precision: mean (F,) float64 of the features, and block-diagonal matrix P (F, F)
            float32 of their scores, see ``AnomalyDetector``.
        calibration: scores of the n images, each by the features of the other folds, (n,) float64.
        map_mean, map_scale: mean, and value of a map of 1 above the mean, of the smoothed
            residuals at each noise level, float32 (noise levels, H, W).
    """

    mean: Tensor
    precision: Tensor
    calibration: Tensor
    map_mean: Tensor
    map_scale: Tensor


def fit_scores(blocks: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean (F,), matrix P (F, F) and calibration scores (n,) of blocks of features
    (n, F_k), float64, see ``Fitted``."""
    means, matrices, total = [], [], torch.zeros(len(blocks[0]), dtype=torch.float64)
    for block in blocks:
        scores = torch.empty(len(block), dtype=torch.float64)
        for others, fold in KFold(NUM_FOLDS, shuffle=True, random_state=0).split(block):
            scores[fold] = mahalanobis_scores(block[fold], *fit_normal(block[others]))
        mean, precision = fit_normal(block)
        means.append(mean)
        matrices.append(precision / scores.std())
        total += scores / scores.std()
    return torch.cat(means), torch.block_diag(*matrices), total


def fit_normal(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean (F,) and inverse covariance (F, F) of vectors (n, F). The covariance is that
    of Ledoit and Wolf 2004 for entries of unit variance."""
    scaler = StandardScaler()
    covariance = LedoitWolf().fit(scaler.fit_transform(vectors.numpy()))
    precision = covariance.precision_ / np.outer(scaler.scale_, scaler.scale_)
    return torch.from_numpy(scaler.mean_), torch.from_numpy(precision)


def mahalanobis_scores(vectors: Tensor, mean: Tensor, precision: Tensor) -> Tensor:
    """Return minus the squared Mahalanobis distances of vectors (B, F), float64 (B,)."""
    centred = vectors - mean
    return -((centred @ precision.double()) * centred).sum(1)


def fit_maps(smoothed: Tensor) -> tuple[Tensor, ...]:
    """Return the mean and scale of maps, see ``Fitted``, of smoothed residuals (n, noise levels,
    H, W) of ordinary images."""
    mean, std = smoothed.mean(0), smoothed.std(0)
    std = std + 0.1 * std.mean()  # some pixels never vary, such as the corners of MNIST
    largest = ((smoothed - mean) / std).flatten(1).amax(1)
    return mean, std * largest.quantile(MAP_QUANTILE)


def conformal_p_values(scores: Tensor, calibration: Tensor) -> Tensor:
    r"""Return p = (1 + #{i: s_i <= s}) / (n + 1) for each score s (B,), float64.

    P(p <= a) <= a if s is exchangeable with the n calibration scores s_i.

    >>> conformal_p_values(torch.tensor([0.5, 9.0]), torch.tensor([1.0, 2.0, 3.0]))
    tensor([0.2500, 1.0000], dtype=torch.float64)

    Source: Bates et al. 2023, arXiv:2104.08279.
    """
    num_below = torch.searchsorted(calibration.sort().values, scores, right=True)
    return (1 + num_below).double() / (1 + len(calibration))


class UnfittedError(UserError, NotFittedError):
    """Error of a detector that is used before ``fit``."""


class Findings(NamedTuple):
    """Anomaly scores (B,), lower for more anomalous images, p-values (B,) and maps
    (B, H, W) of B images, see ``AnomalyDetector``."""

    score: np.ndarray
    p_value: np.ndarray
    maps: np.ndarray


class AnomalyDetector(OutlierMixin, BaseEstimator):
    r"""Detect images that are unusual under a model: an outlier detector of scikit-learn.

    The score of an image is minus a squared Mahalanobis distance of its features f,

        s = -(f - m)^T P (f - m),

    where m is their mean over ordinary images. f has two blocks: the errors of the model's noise
    prediction in parts of the image; and its predicted errors, time scores and statistics of the
    image (see ``Features.blocks``). P has the inverse covariance of each block (Ledoit and Wolf
    2004), divided by the standard deviation of its squared distances.
    ``fit`` computes the scores s_i of n ordinary images, each with m and P of the four fifths of
    the images that it is not in. An image with score s then has the p-value

        p = (1 + #{i: s_i <= s}) / (n + 1).

    For ordinary images P(p <= a) is about a, and at most a if leaving out a fifth of the images
    does not change m and P (cross-conformal prediction, Vovk 2015, arXiv:1208.0806).

    >>> detector = AnomalyDetector.from_pretrained("digits")
    >>> detector.predict(torch.zeros(1, 1, 8, 8))
    array([-1])

    Images are (N, C, H, W) or flattened to rows (N, C H W), in [0, 1] or uint8 levels.

    Args:
        model: an ``EBM`` with a Stein head, or its bundled name, folder or hub id, by which
            ``fit`` loads it.
        false_alarm_rate: fraction of ordinary images that ``predict`` flags, at least
            1 / (n + 1).
        device: device to load a model on.

    Attributes:
        ebm_: the model, after ``fit`` or ``load``.
        fitted_: what ``fit`` learned, see ``Fitted``.
    """

    def __init__(
        self,
        model: EBM | str | os.PathLike,
        false_alarm_rate: float = 0.05,
        device: str = "cpu",
    ) -> None:
        self.model, self.false_alarm_rate, self.device = model, false_alarm_rate, device

    @classmethod
    def from_pretrained(
        cls, model: str | os.PathLike, false_alarm_rate: float = 0.05, device: str = "cpu"
    ) -> Self:
        """Load a model, a bundled name, folder or hub id, and the fitted detector in its folder.
        All bundled models but the energy networks have one. Raises as ``load``."""
        return cls(model, false_alarm_rate, device).load(model)

    def fit(self, X: Any, y: None = None) -> Self:
        """Fit the detector to ordinary images, on which the model was not trained. Duplicates
        are used once, and ``y`` is ignored.

        Raises:
            UserError: if there are fewer than 80 distinct images, or they do not match the model.
        """
        ebm = self._open_model()
        levels = to_model_levels(ebm, X)
        first = np.unique(levels.flatten(1).cpu().numpy(), axis=0, return_index=True)[1]
        if len(first) < MIN_IMAGES:
            raise UserError(
                f"Expected at least {MIN_IMAGES} distinct images to fit a detector, got "
                f"{len(first)} among {len(levels)} images. Add images."
            )
        features = extract_features(ebm, levels[np.sort(first)])
        mean, precision, calibration = fit_scores(features.blocks())
        maps = fit_maps(features.smoothed())
        self.ebm_, self.fitted_ = ebm, Fitted(mean, precision.float(), calibration, *maps)
        return self

    def examine(self, X: Any) -> Findings:
        """Return scores, p-values and maps of B images.

        Raises:
            UserError: if the detector is not fitted, or the images do not match the model.
        """
        fitted = self._check_fitted()
        features = extract_features(self.ebm_, to_model_levels(self.ebm_, X))
        vectors = torch.cat(features.blocks(), 1)
        score = mahalanobis_scores(vectors, fitted.mean, fitted.precision)
        excess = (features.smoothed() - fitted.map_mean) / fitted.map_scale
        level = excess.flatten(2).amax(2).argmax(1)
        maps = excess[torch.arange(len(level)), level]
        p_value = conformal_p_values(score, fitted.calibration)
        return Findings(score.numpy(), p_value.numpy(), maps.numpy())

    def score_samples(self, X: Any) -> np.ndarray:
        """Return anomaly scores (B,) of B images; lower is more anomalous."""
        return self.examine(X).score

    def p_value(self, X: Any) -> np.ndarray:
        """Return p-values (B,): P(p <= a) is about a for an ordinary image."""
        return self.examine(X).p_value

    def decision_function(self, X: Any) -> np.ndarray:
        """Return scores (B,) minus ``offset_``, negative for unusual images."""
        return self.score_samples(X) - self.offset_

    def predict(self, X: Any) -> np.ndarray:
        """Return -1 for images with p <= ``false_alarm_rate`` and 1 for ordinary ones: (B,)."""
        return np.where(self.decision_function(X) < 0, -1, 1)

    def explain(self, X: Any) -> np.ndarray:
        """Return anomaly maps (B, H, W). Nine in ten ordinary images are below 1 everywhere.

        A map is the smoothed squared residual, minus its mean over ordinary images and divided by
        a multiple of its standard deviation at each pixel, at the noise level with the largest
        value.
        """
        return self.examine(X).maps

    @property
    def offset_(self) -> float:
        """Score below which p-values are at most ``false_alarm_rate``."""
        rate = check_argument(Fraction, "false_alarm_rate", self.false_alarm_rate)
        calibration = self._check_fitted().calibration
        index = int(rate * (len(calibration) + 1) + 1e-9)
        if index < 1:
            raise UserError(
                f"A false-alarm rate of {rate:g} needs a detector fitted to at least "
                f"{math.ceil(1 / rate) - 1} images, got {len(calibration)}. Raise the rate, or "
                "fit to more images."
            )
        return calibration.sort().values[index - 1].item()

    def save(self, folder: str | os.PathLike, **about: Any) -> None:
        """Save the fitted detector to the model's folder, as anomaly.safetensors, and as
        anomaly.json with the values ``about`` that describe the images."""
        fitted = self._check_fitted()
        folder = Path(check_argument(PathArgument, "folder", folder))
        folder.mkdir(parents=True, exist_ok=True)
        write_tensors(folder / FITTED_FILE, fitted._asdict())
        about["num_images"] = len(fitted.calibration)
        write_json(folder / RECORD_FILE, about | provenance(self.ebm_))

    def load(self, folder: str | os.PathLike) -> Self:
        """Load the fitted detector of a model folder.

        Raises:
            UnfittedError: if there is none, or it was fitted to other weights or features.
            UserError: if the files are damaged.
        """
        folder = find_folder(folder)
        path, record = folder / FITTED_FILE, folder / RECORD_FILE
        if not (path.exists() and record.exists()):
            raise UnfittedError(
                f"{folder} has no anomaly detector. Fit one with `AnomalyDetector.fit`."
            )
        ebm = self._open_model()
        if not provenance(ebm).items() <= read_json(record).items():
            raise UnfittedError(
                f"The anomaly detector in {folder} was fitted to another version of the model. "
                "Fit it again."
            )
        with report_damage(path):
            fitted = Fitted(**read_tensors(path))
            expected = shapes(fitted, ebm.config.image_shape)
            for name, values, shape in zip(fitted._fields, fitted, expected, strict=True):
                if values.shape != shape or not values.numel():
                    raise ValueError(f"{name} has shape {tuple(values.shape)}, expected {shape}")
                if not values.isfinite().all():
                    raise ValueError(f"{name} has non-finite values")
        self.ebm_, self.fitted_ = ebm, fitted
        return self

    def _open_model(self) -> EBM:
        """Return the model, loaded if it is given by name."""
        is_loaded = isinstance(self.model, EBM)
        ebm = self.model if is_loaded else EBM.from_pretrained(self.model, self.device)
        noise_times(ebm)  # raises before images are read
        return ebm

    def _check_fitted(self) -> Fitted:
        """Return the fitted tensors; raise an ``UnfittedError`` without them."""
        if "fitted_" not in vars(self):
            raise UnfittedError("This detector is not fitted. Call `fit` with ordinary images.")
        return self.fitted_


def provenance(ebm: EBM) -> dict[str, Any]:
    """Return what the fitted tensors depend on, besides the images."""
    levels = noise_levels(ebm.config.image_shape)
    return {"weights": fingerprint(ebm), "noise_levels": levels, "cells": CELLS}


def shapes(fitted: Fitted, image_shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the shapes of fitted tensors for images (C, H, W)."""
    _, height, width = image_shape
    n = len(noise_levels(image_shape))
    num = n * (CELLS**2 + 2) + 1 + len(scales_of(height, width))
    maps = (n, height, width)
    return [(num,), (num, num), (fitted.calibration.numel(),), maps, maps]


def to_model_levels(ebm: EBM, images: Any) -> Tensor:
    """Convert images (B, C, H, W), or rows (B, C H W) of one image each, in [0, 1] or uint8
    levels, to grey levels of the model, uint8 (B, C, H, W)."""
    shape = ebm.config.image_shape
    if isinstance(images, Tensor | np.ndarray) and images.shape[1:] == (math.prod(shape),):
        images = images.reshape(-1, *shape)
    return checked_levels(images, shape, ebm.config.num_levels)

"""Detection of unusual images at a false-alarm rate, with maps of what is unusual."""

import math
import os
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, OutlierMixin
from sklearn.exceptions import NotFittedError
from torch import Tensor

from ebm_app.anomaly.features import (
    extract_features,
    image_statistics,
    noise_levels,
    noise_times,
)
from ebm_app.anomaly.scores import (
    Fitted,
    conformal_p_values,
    fit_maps,
    fit_scores,
    mahalanobis_scores,
)
from ebm_app.data.levels import checked_levels
from ebm_app.ebm import EBM
from ebm_app.pretrained import find_folder, fingerprint
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import Fraction, PathArgument, check_argument
from ebm_app.utils.files import read_json, read_tensors, report_damage, write_json, write_tensors

FITTED_FILE, RECORD_FILE = "anomaly.safetensors", "anomaly.json"
#: Min distinct images to fit a detector
MIN_IMAGES = 80


class UnfittedError(UserError, NotFittedError):
    """Error of a detector that is used before ``fit``."""


class Findings(NamedTuple):
    """Results of ``AnomalyDetector.examine`` for B images.

    Attributes:
        score: anomaly scores (B,); lower is more anomalous.
        p_value: p-values (B,).
        maps: anomaly maps (B, H, W), see ``AnomalyDetector.explain``.
    """

    score: np.ndarray
    p_value: np.ndarray
    maps: np.ndarray


class AnomalyDetector(OutlierMixin, BaseEstimator):
    r"""Detect images that are unusual under a model: an outlier detector of scikit-learn.

    The score of an image is minus the squared Mahalanobis distance of its feature vector f,

        s = -(f - m)^T P (f - m),

    where f has the errors of the model's noise prediction, its time scores and statistics of the
    image (see ``Features.vectors``), and m and P are the mean and inverse covariance of f over
    ordinary images (Ledoit and Wolf 2004).
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
        false_alarm_rate: fraction of ordinary images that ``predict`` flags.
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
        """Load a model and the fitted detector in its folder. All bundled models but the energy
        networks have one.

        Args:
            model: bundled name, folder or hub id.

        Raises:
            UnfittedError: if the folder has no detector that was fitted to these weights.
            UserError: if the model or the detector cannot be read.
        """
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
        self.ebm_ = ebm
        self.fitted_ = Fitted(*fit_scores(features.vectors()), *fit_maps(features.smoothed()))
        return self

    def examine(self, X: Any) -> Findings:
        """Return scores, p-values and maps of B images.

        Raises:
            UserError: if the detector is not fitted, or the images do not match the model.
        """
        fitted = self._check_fitted()
        features = extract_features(self.ebm_, to_model_levels(self.ebm_, X))
        score = mahalanobis_scores(features.vectors(), fitted.mean, fitted.precision)
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
        """Threshold of ``score_samples`` at ``false_alarm_rate``."""
        return self.threshold(self.false_alarm_rate)

    def threshold(self, false_alarm_rate: float) -> float:
        """Return the score below which p-values are at most a false-alarm rate in (0, 1).

        Raises:
            UserError: if the rate is not in (0, 1), or below 1 / (n + 1) for n ordinary images.
        """
        rate = check_argument(Fraction, "false_alarm_rate", false_alarm_rate)
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
        """Save the fitted detector to the model's folder, as anomaly.safetensors and anomaly.json.

        Args:
            folder: the model's folder.
            about: values that describe the images, stored in anomaly.json.
        """
        fitted = self._check_fitted()
        folder = Path(check_argument(PathArgument, "folder", folder))
        folder.mkdir(parents=True, exist_ok=True)
        write_tensors(folder / FITTED_FILE, fitted._asdict())
        num_images = len(fitted.calibration)
        write_json(
            folder / RECORD_FILE, {**about, "num_images": num_images, **provenance(self.ebm_)}
        )

    def load(self, folder: str | os.PathLike) -> Self:
        """Load the fitted detector of a model folder.

        Raises:
            UnfittedError: if there is none, or it was fitted to other weights or noise levels.
            UserError: if the files are damaged.
        """
        folder, ebm = find_folder(folder), self._open_model()
        path, record = folder / FITTED_FILE, folder / RECORD_FILE
        if not (path.exists() and record.exists()):
            raise UnfittedError(
                f"{folder} has no anomaly detector. Fit one with `AnomalyDetector.fit`."
            )
        if not provenance(ebm).items() <= read_json(record).items():
            raise UnfittedError(
                f"The anomaly detector in {folder} was fitted to another version of the model. "
                "Fit it again."
            )
        with report_damage(path):
            fitted = Fitted(**read_tensors(path))
            check_fitted(fitted, ebm.config.image_shape)
        self.ebm_, self.fitted_ = ebm, fitted
        return self

    def _open_model(self) -> EBM:
        """Return the model, loaded if it is given by name. Raise a UserError if it has no Stein
        head."""
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
    return {"weights": fingerprint(ebm), "noise_levels": levels}


def check_fitted(fitted: Fitted, image_shape: tuple[int, ...]) -> None:
    """Raise a ``ValueError`` if the fitted tensors are not finite, or not those of images
    (C, H, W)."""
    num_levels = len(noise_levels(image_shape))
    # per noise level four quarters, a variance and a time score
    num_features = 6 * num_levels + image_statistics(torch.zeros(1, *image_shape)).shape[1]
    maps = (num_levels, *image_shape[1:])
    shapes = (num_features,), (num_features, num_features), (fitted.calibration.numel(),), maps
    for name, values, shape in zip(fitted._fields, fitted, (*shapes, maps), strict=True):
        if values.shape != shape or not values.numel():
            raise ValueError(f"{name} has shape {tuple(values.shape)}, expected {shape}")
        if not values.isfinite().all():
            raise ValueError(f"{name} has non-finite values")


def to_model_levels(ebm: EBM, images: Any) -> Tensor:
    """Convert images (B, C, H, W), or rows (B, C H W) of one image each, in [0, 1] or uint8
    levels, to grey levels of the model, uint8 (B, C, H, W).

    Raises:
        UserError: if the shape or the values do not match the model.
    """
    config = ebm.config
    if (
        isinstance(images, Tensor | np.ndarray)
        and images.ndim == 2
        and images.shape[1] == math.prod(config.image_shape)
    ):
        images = images.reshape(-1, *config.image_shape)
    return checked_levels(images, config.image_shape, config.num_levels)

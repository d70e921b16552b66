"""Detection of unusual images at a false-alarm rate, with maps of what is unusual."""

import math
import os
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, OutlierMixin
from sklearn.exceptions import NotFittedError
from torch import Tensor

from ebm_app.anomaly.features import extract_features, noise_levels, noise_times, to_model_levels
from ebm_app.anomaly.p_values import Findings, conformal_p_values, conformal_threshold
from ebm_app.anomaly.scores import (
    NUM_FOLDS,
    RANKS,
    SCORES,
    cross_fitted_ranks,
    cross_fitted_scores,
    log_rank,
)
from ebm_app.ebm import EBM
from ebm_app.folders import find_folder
from ebm_app.pretrained import fingerprint
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import PositiveInt, check_argument
from ebm_app.utils.files import read_json, read_tensors, report_damage, write_json, write_tensors
from ebm_app.utils.registry import choose

FITTED_FILE, RECORD_FILE = "anomaly.safetensors", "anomaly.json"
#: Min distinct images to fit a detector.
MIN_IMAGES = 80
#: Max bytes of ordinary images that are stored for ``nearest``.
MAX_STORED = 200_000


class UnfittedError(UserError, NotFittedError):
    """Use of a detector before ``fit``."""


class AnomalyDetector(OutlierMixin, BaseEstimator):
    r"""Detect images that are unusual under a model: an outlier detector of scikit-learn.

    ``fit`` scores each of n ordinary images with statistics of the other four fifths of the
    images. New images are scored with statistics of all n images. If s_i are the scores of the n
    images, an image with score s has the p-value

        p = (1 + #{i: s_i <= s}) / (n + 1).

    For ordinary images P(p <= a) is about a, and at most a if leaving out a fifth of the images
    does not change the statistics (cross-conformal prediction, Vovk 2015, arXiv:1208.0806).

    >>> detector = AnomalyDetector("digits", false_alarm_rate=0.05)
    >>> detector.predict(torch.zeros(1, 1, 8, 8))
    array([-1])

    Images are (N, C, H, W) or flattened to rows (N, C H W), in [0, 1] or uint8 levels, or a list
    of Pillow images or paths, or a folder.

    Args:
        model: an ``EBM`` with a Stein head, or its name, folder or hub id, which is loaded at
            first use, with the fitted detector in its folder. All bundled models but the energy
            networks have one.
        anomaly_score: a key of ``SCORES``, or "ranks" for the sum of the log ranks of all scores.
        device: device to load a model on.
        false_alarm_rate: share of ordinary images that ``predict`` flags.

    Attributes:
        left_out_: indices of the images that ``fit`` did not use, because they are duplicates.
        offset_: threshold of ``score_samples`` at ``false_alarm_rate``.

    Raises (at first use):
        UserError: if the score is unknown, the model has no Stein head, or it cannot be loaded.
    """

    #: Loaded model with the parameters that it was loaded by, and fitted tensors, None until read
    _loaded: tuple[Any, ...] = ()
    _fitted: dict[str, Tensor] | None = None

    def __init__(
        self,
        model: EBM | str | os.PathLike,
        anomaly_score: str = RANKS,
        device: str = "cpu",
        false_alarm_rate: float = 0.05,
    ) -> None:
        self.model, self.device = model, device
        self.anomaly_score, self.false_alarm_rate = anomaly_score, false_alarm_rate

    @property
    def ebm(self) -> EBM:
        """The model, loaded at first use."""
        self._load()
        return self._loaded[0]

    @property
    def is_fitted(self) -> bool:
        """Whether the detector was fitted or loaded."""
        self._load()
        if self._fitted is None and not isinstance(self.model, EBM):
            self.read(self.model)
            self._fitted = self._fitted or {}
        return bool(self._fitted)

    def _load(self) -> None:
        """Load the model, unless it is loaded."""
        choose("anomaly score", self.anomaly_score, (*SCORES, RANKS))
        if self._loaded[1:] != (self.model, self.device):
            is_name = not isinstance(self.model, EBM)
            ebm = EBM.from_pretrained(self.model, self.device) if is_name else self.model
            noise_times(ebm)  # raises before the first use
            self._loaded, self._fitted = (ebm, self.model, self.device), None

    def __sklearn_is_fitted__(self) -> bool:
        return self.is_fitted

    @property
    def offset_(self) -> float:
        """Threshold of ``score_samples`` at ``false_alarm_rate``."""
        return self.threshold(self.false_alarm_rate)

    @property
    def ordinary(self) -> Tensor:
        """Stored ordinary images, uint8 levels (N, C, H, W), see ``nearest``."""
        return self._state()["kept"]

    def fit(self, images: Any, y: None = None) -> Self:
        """Fit the detector to ordinary images in random order, except duplicates. The model must
        not have been trained on them. ``y`` is ignored.

        Raises:
            UserError: if fewer than 80 images are left, or they do not match the model.
        """
        levels = to_model_levels(self.ebm, images)
        is_first = torch.zeros(len(levels), dtype=torch.bool)
        is_first[np.unique(levels.cpu().flatten(1), axis=0, return_index=True)[1]] = True
        images, self.left_out_ = levels[is_first], (~is_first).nonzero().flatten().tolist()
        if len(images) < MIN_IMAGES:
            raise UserError(
                f"Expected at least {MIN_IMAGES} distinct images to fit a detector, got "
                f"{len(images)} among {len(levels)} images. Add images."
            )
        features = extract_features(self.ebm, images)
        smooth = features.smoothed_residuals()
        num_stored = max(1, MAX_STORED // math.prod(self.ebm.config.image_shape))
        fitted = {
            "usual": torch.stack([smooth.mean(0), smooth.std(0)]),
            "kept": images[:num_stored].cpu().clone(),
        }
        for name, score in SCORES.items():
            state = score.fit(features) | {"calibration": cross_fitted_scores(score, features)}
            fitted |= {f"{name}.{key}": value for key, value in state.items()}
        calibration = [fitted[f"{name}.calibration"] for name in SCORES]
        fitted[f"{RANKS}.calibration"] = cross_fitted_ranks(calibration)
        self._fitted = fitted
        return self

    def score_samples(self, images: Any) -> np.ndarray:
        """Return anomaly scores (B,) of B images; lower is more anomalous."""
        return self.examine(images).score

    def p_value(self, images: Any) -> np.ndarray:
        """Return p-values (B,): P(p <= a) is about a for an ordinary image."""
        return self.examine(images).p_value

    def decision_function(self, images: Any) -> np.ndarray:
        """Return scores (B,) minus ``offset_``, negative for unusual images."""
        return self.score_samples(images) - self.offset_

    def predict(self, images: Any) -> np.ndarray:
        """Return -1 for images with p <= ``false_alarm_rate`` and 1 for ordinary ones: (B,)."""
        return np.where(self.decision_function(images) < 0, -1, 1)

    def explain(self, images: Any) -> np.ndarray:
        """Return anomaly maps (B, H, W), in standard deviations above ordinary images.

        A map is the smoothed squared residual, standardised pixel by pixel by its mean and
        standard deviation over ordinary images, at the noise level with the largest value.
        """
        return self.examine(images).maps

    def nearest(self, image: Any, num: int = 3) -> Tensor:
        """Return the stored ordinary images nearest to one image, a batch of 1, in pixel space.

        Returns uint8 levels (num, C, H, W), nearest first. Only the first 200,000 bytes of the
        images passed to ``fit`` are stored.
        """
        stored = self.ordinary
        levels = to_model_levels(self.ebm, image).cpu().float()
        if len(levels) != 1:
            raise UserError(f"Expected one image, got {len(levels)}.")
        distances = (stored.float() - levels).square().flatten(1).sum(1)
        return stored[distances.argsort()[: check_argument(PositiveInt, "num", num)]]

    @property
    def smallest_p_value(self) -> float:
        """Smallest p-value and false-alarm rate: 1 / (n + 1) for n calibration images."""
        return 1 / (1 + len(self._calibration()))

    def threshold(self, false_alarm_rate: float) -> float:
        """Return the score below which images are unusual at a false-alarm rate in (0, 1).

        Raises:
            UserError: if the rate is not in (0, 1), or too small for the calibration images.
        """
        return conformal_threshold(self._calibration(), false_alarm_rate)

    def examine(self, images: Any) -> Findings:
        """Return scores, p-values and maps of B images.

        Raises:
            UserError: if the detector is not fitted, or the images do not match the model.
        """
        calibration, levels = self._calibration(), to_model_levels(self.ebm, images)
        features = extract_features(self.ebm, levels)
        single = {name: score(features, self._state(name)) for name, score in SCORES.items()}
        p_values = {
            name: conformal_p_values(values, self._state(name)["calibration"])
            for name, values in single.items()
        }
        if self.anomaly_score == RANKS:
            calibrations = {name: self._state(name)["calibration"] for name in SCORES}
            score = sum(log_rank(single[name], calibrations[name]) for name in SCORES)
        else:
            score = single[self.anomaly_score]
        mean, std = self._fitted["usual"]
        excess = (features.smoothed_residuals() - mean) / (std + 1e-3 + 0.1 * std.mean())
        level = excess.flatten(2).amax(2).argmax(1)
        maps = excess[torch.arange(len(level)), level]
        p_value = conformal_p_values(score, calibration)
        return Findings(score.numpy(), p_value, p_values, maps.numpy())

    def save(self, folder: str | os.PathLike, **about: Any) -> None:
        """Save the fitted detector to a model folder, as anomaly.safetensors and anomaly.json.

        ``AnomalyDetector(folder)`` then loads it. The safetensors file includes some of the
        ordinary images, see ``nearest``.

        Args:
            folder: the model's folder.
            about: values that describe the images, stored in anomaly.json.
        """
        tensors = {
            key: value.float() if value.is_floating_point() else value
            for key, value in self._state().items()
        }
        folder = Path(check_argument(str | os.PathLike, "folder", folder))
        write_tensors(folder / FITTED_FILE, tensors)
        write_json(folder / RECORD_FILE, {**about, **self._provenance()})

    def read(self, folder: str | os.PathLike) -> None:
        """Load a saved detector, unless it was fitted with other weights or noise levels.

        Raises:
            UserError: if the files are damaged.
        """
        folder = find_folder(folder)
        path = folder / FITTED_FILE
        if not path.exists() or not (folder / RECORD_FILE).exists():
            return
        with report_damage(path):
            if self._provenance().items() <= read_json(folder / RECORD_FILE).items():
                fitted = read_tensors(path)
                keys = {"usual", "kept"} | {f"{name}.calibration" for name in (*SCORES, RANKS)}
                is_finite = all(values.isfinite().all() for values in fitted.values())
                if not (is_finite and keys <= fitted.keys()):
                    raise ValueError("values that are missing or not finite")
                self._fitted = fitted

    def _provenance(self) -> dict[str, Any]:
        with_copies, alone, _ = noise_levels(self.ebm.config.image_shape)
        method = {"levels": [*with_copies, *alone], "scores": list(SCORES), "folds": NUM_FOLDS}
        return {"weights": fingerprint(self.ebm), **method}

    def _calibration(self) -> Tensor:
        """Return the detector's scores (n,) of the calibration images."""
        return self._state(self.anomaly_score)["calibration"]

    def _state(self, name: str = "") -> dict[str, Tensor]:
        """Return the fitted tensors of one score by their short names, or those of all scores."""
        if not self.is_fitted:
            raise UnfittedError("This detector is not fitted. Call `fit` with ordinary images.")
        prefix = f"{name}." if name else ""
        return {
            key.removeprefix(prefix): value
            for key, value in self._fitted.items()
            if key.startswith(prefix)
        }

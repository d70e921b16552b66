r"""``AnomalyDetector``: whether images are odd for a model, at a false-alarm rate, and where."""

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from scipy.stats import false_discovery_control
from torch import Tensor
from torch.nn.functional import avg_pool2d

from ebm_app.anomaly.passes import (
    PLAIN_LEVELS,
    SHAPE_LEVELS,
    Passes,
    levels_of,
    noise_levels,
    passes,
)
from ebm_app.anomaly.scores import JOINED, RANKS, SCORES, log_rank
from ebm_app.ebm import EBM
from ebm_app.folders import find_folder
from ebm_app.pretrained import fingerprint
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import Fraction, PositiveInt, Probability, check_argument
from ebm_app.utils.files import read_json, read_tensors, report_damage, write_json, write_tensors
from ebm_app.utils.registry import choose

FITTED_FILE, RECORD_FILE = "anomaly.safetensors", "anomaly.json"
#: fewer images to fit do not tell the spread of residuals
MIN_IMAGES = 80
#: share of a side by which the squares reach over which residuals are averaged for a map
REACH = 1 / 12
#: bytes of the ordinary images that are kept to be shown beside others
KEPT = 200_000


class Findings(NamedTuple):
    """Of B images: scores (B,), higher is more ordinary; conformal p-values (B,); those of every
    single score, by name in ``SCORES``; and maps of where they are odd (B, H, W), see
    ``AnomalyDetector.explain``."""

    score: np.ndarray
    p_value: np.ndarray
    p_values: dict[str, np.ndarray]
    maps: np.ndarray


class AnomalyDetector:
    r"""Tell odd images by a model of ordinary ones, in the conventions of scikit-learn.

    The images given to ``fit`` are split: the first half fits the scores, the next quarter says
    how they rank and what maps look like, the last quarter calibrates. With n calibration scores
    s_i, the p-value of an image of score s is

        p = (1 + #{i: s_i <= s}) / (n + 1),

    for which P(p <= a) <= a whatever the score, where the image is drawn as those were (Bates et
    al. 2023, arXiv:2104.08279).

    >>> detector = AnomalyDetector("digits")
    >>> detector.predict(torch.zeros(1, 1, 8, 8), false_alarm_rate=0.05)
    array([-1])

    Args:
        model: an ``EBM`` with a Stein head, or its name, folder or hub id, whose folder may hold
            what was fitted; bundled models come fitted.
        score: a key of ``SCORES``, or "ranks": the sum of the log ranks of ``JOINED`` scores among
            images that fitted neither. device: of a model that is loaded.

    Raises:
        UserError: for an unknown score, and as ``noise_levels`` and ``EBM.from_pretrained``.
    """

    def __init__(
        self, model: EBM | str | os.PathLike, score: str = RANKS, device: str = "cpu"
    ) -> None:
        self.score = choose("score", score, (*SCORES, RANKS))
        self.model = model if isinstance(model, EBM) else EBM.from_pretrained(model, device)
        noise_levels(self.model)  # a mistake shows now
        self.scores = {name: kind() for name, kind in SCORES.items()}
        self.reference, self.calibration, self.usual, self.kept = {}, {}, None, None
        if not isinstance(model, EBM):
            self.read(model)

    @property
    def is_fitted(self) -> bool:
        """Whether it needs no ``fit``."""
        return self.usual is not None

    def fit(self, images: Any) -> Self:
        """Fit to ordinary images (N, C, H, W) that the model was not trained on, in [0, 1] or
        uint8 levels; they are taken in the order given, which should tell nothing.

        Raises:
            UserError: for fewer than 80 images, or images that are not of the model's form.
        """
        images = levels_of(self.model, images)
        if len(images) < MIN_IMAGES:
            raise UserError(
                f"{len(images)} images are too few to fit a detector: give at least {MIN_IMAGES}"
            )
        found = passes(self.model, images)
        ends = (len(images) // 2, 3 * len(images) // 4, len(images))
        first, second, third = (
            Passes(*(part[a:b] for part in found)) for a, b in zip((0, *ends), ends, strict=False)
        )
        self.scores = {name: kind().fit(first) for name, kind in SCORES.items()}
        self.reference = {name: score(second) for name, score in self.scores.items()}
        self.calibration = {name: score(third) for name, score in self.scores.items()}
        smooth = _smoothed(second)
        self.usual = torch.stack([smooth.mean(0), smooth.std(0)])
        num = max(1, KEPT // math.prod(self.model.config.image_shape))
        self.kept = images[:num].cpu().clone()
        return self

    def score_samples(self, images: Any) -> np.ndarray:
        """Scores (B,) of images (B, C, H, W), higher for more ordinary ones."""
        return self.examine(images).score

    def p_value(self, images: Any) -> np.ndarray:
        """Conformal p-values (B,) of images: the probability that an ordinary image scores no
        higher, at most."""
        return self.examine(images).p_value

    def decision_function(self, images: Any, false_alarm_rate: float = 0.05) -> np.ndarray:
        """Scores (B,) less the threshold of a false-alarm rate: negative for odd images; raises as
        ``threshold`` does."""
        return self.score_samples(images) - self.threshold(false_alarm_rate)

    def predict(self, images: Any, false_alarm_rate: float = 0.05) -> np.ndarray:
        """1 for images (B,) that are ordinary and -1 for odd ones, where ordinary images are
        called odd with a probability of ``false_alarm_rate`` at most: p <= rate."""
        threshold = self.threshold(false_alarm_rate)
        return np.where(self.score_samples(images) < threshold, -1, 1)

    def explain(self, images: Any) -> np.ndarray:
        """Maps (B, H, W) of where images are odd: the excess of the squared residual, averaged
        over squares, over its mean on ordinary images there, in standard deviations; each image
        at the noise level at which it is most."""
        return self.examine(images).maps

    def nearest(self, image: Any, num: int = 3) -> Tensor:
        """Of the first of the images that were fitted, those that are nearest to one (1, C, H, W)
        by their pixels, the nearest first: uint8 levels (num, C, H, W). There are as many
        to choose from as take 200,000 bytes."""
        self._calibrated()
        levels = levels_of(self.model, image).cpu().float()
        if len(levels) != 1:
            raise UserError(f"image: give one, not {len(levels)}")
        distances = (self.kept.float() - levels).square().flatten(1).sum(1)
        return self.kept[distances.argsort()[: check_argument(PositiveInt, "num", num)]]

    def threshold(self, false_alarm_rate: float) -> float:
        """The score below which images are odd at a false-alarm rate.

        Raises:
            UserError: for a rate outside (0, 1), or one that takes more images to calibrate.
        """
        rate = check_argument(Fraction, "false_alarm_rate", false_alarm_rate)
        scores = self._calibrated().sort().values
        index = int(rate * (len(scores) + 1) + 1e-9)
        if index < 1:
            raise UserError(
                f"a false-alarm rate of {rate:g} takes {np.ceil(1 / rate) - 1:.0f} images to "
                f"calibrate, a quarter of those fitted, and there are {len(scores)}: fit to more "
                "images, or raise the rate"
            )
        return scores[index - 1].item()

    def examine(self, images: Any) -> Findings:
        """All that is found of images (B, C, H, W) by one pass.

        Raises:
            UserError: before ``fit``, and for images that are not of the model's form.
        """
        calibration = self._calibrated()
        found = passes(self.model, images)
        single = {name: score(found) for name, score in self.scores.items()}
        score = self._joined(single)
        p_values = {name: conformal(s, self.calibration[name]) for name, s in single.items()}
        mean, std = self.usual
        excess = (_smoothed(found) - mean) / (std + 1e-3 + 0.1 * std.mean())
        worst = excess.flatten(2).amax(2).argmax(1)
        maps = excess[torch.arange(len(worst)), worst]
        return Findings(score.numpy(), conformal(score, calibration), p_values, maps.numpy())

    def save(self, folder: str | os.PathLike, **about: Any) -> None:
        """Write what was fitted into a model's folder, as anomaly.safetensors and anomaly.json,
        the latter with the digest of the model's weights, the noise levels, and what ``about``
        says of the images; ``AnomalyDetector(folder)`` then needs no fit. Some of the images are
        in the file, see ``nearest``."""
        self._calibrated()
        tensors = {"usual": self.usual}
        for name, score in self.scores.items():
            tensors |= {f"{name}.{key}": value for key, value in score.state.items()}
            tensors[f"{name}.reference"] = self.reference[name]
            tensors[f"{name}.calibration"] = self.calibration[name]
        ready = {name: tensor.float() for name, tensor in tensors.items()}
        folder = Path(check_argument(str | os.PathLike, "folder", folder))
        write_tensors(folder / FITTED_FILE, {**ready, "kept": self.kept})
        write_json(folder / RECORD_FILE, {**about, **self._made_of()})

    def read(self, folder: str | os.PathLike) -> None:
        """Take what ``save`` wrote into a folder, if that is of these weights and noise levels.

        Raises:
            UserError: for damaged files.
        """
        folder = find_folder(folder)
        path = folder / FITTED_FILE
        if not path.exists() or not (folder / RECORD_FILE).exists():
            return
        with report_damage(path):
            if not self._made_of().items() <= read_json(folder / RECORD_FILE).items():
                return
            tensors = read_tensors(path)
            self.usual, self.kept = tensors.pop("usual"), tensors.pop("kept")
            for name, score in self.scores.items():
                parts = {
                    key.removeprefix(f"{name}."): value
                    for key, value in tensors.items()
                    if key.startswith(f"{name}.")
                }
                self.reference[name] = parts.pop("reference")
                self.calibration[name] = parts.pop("calibration")
                score.state = parts

    def _made_of(self) -> dict[str, Any]:
        return {"weights": fingerprint(self.model), "levels": [*SHAPE_LEVELS, *PLAIN_LEVELS]}

    def _joined(self, single: dict[str, Tensor]) -> Tensor:
        """The detector's own score (B,) of single ones, by name."""
        if self.score != RANKS:
            return single[self.score]
        return sum(log_rank(single[name], self.reference[name]) for name in JOINED)

    def _calibrated(self) -> Tensor:
        if not self.is_fitted:
            raise UserError("this detector is not fitted: call fit with ordinary images first")
        return self._joined(self.calibration)


def conformal(scores: Tensor, calibration: Tensor) -> np.ndarray:
    """Conformal p-values (B,) float64 of scores (B,) by n calibration scores.

    >>> conformal(torch.tensor([0.5, 9.0]), torch.tensor([1.0, 2.0, 3.0]))
    array([0.25, 1.  ])
    """
    ordered = calibration.double().sort().values
    below = torch.searchsorted(ordered, scores.double(), right=True)
    return ((1 + below).double() / (1 + len(ordered))).numpy()


def benjamini_hochberg(p_values: Any, rate: float) -> np.ndarray:
    """Which of m images are odd, (m,) bool, where the expected share of ordinary ones among those
    called odd is ``rate`` at most: the k with the smallest p-values, k the largest for which the
    k-th is at most k rate / m.

    >>> benjamini_hochberg([0.01, 0.5, 0.03], 0.1)
    array([ True, False,  True])

    Raises:
        UserError: for a rate outside (0, 1), and what are no probabilities.

    Source: Benjamini and Hochberg 1995; for conformal p-values, arXiv:2104.08279.
    """
    p = np.array(check_argument(Sequence[Probability], "p_values", p_values))
    return false_discovery_control(p) <= check_argument(Fraction, "rate", rate)


def _smoothed(found: Passes) -> Tensor:
    """Normalised residuals averaged over squares, (B, n, H, W)."""
    values = found.normalised().float()
    reach = int(REACH * min(values.shape[-2:]))
    return avg_pool2d(values, 2 * reach + 1, 1, reach, count_include_pad=False)

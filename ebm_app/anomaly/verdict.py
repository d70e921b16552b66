"""Verdict on an image in words: usual, unusual or very unusual, with its p-value."""

from typing import Any

import numpy as np
from torch import Tensor

from ebm_app.anomaly.detector import AnomalyDetector

#: p-values up to which an image is called unusual and very unusual. A detector with n calibration
#: images gives no p below 1 / (n + 1), so it never calls an image very unusual if n < 49.
UNUSUAL, VERY_UNUSUAL = 0.1, 0.02
NO_DETECTOR = "No verdict: this model has no anomaly detector. Fit one and save it in its folder."
#: Names of the thirds of an image
ROWS, COLUMNS = ("upper", "", "lower"), ("left", "", "right")


def examine(detector: AnomalyDetector, image: Tensor) -> tuple[dict[str, Any], np.ndarray]:
    """Return a summary of an image (1, C, H, W) in [0, 1], and its anomaly map (H, W).

    The summary has the p-value, the percentile of the likelihood among held-out images, and the
    position of the maximum of the map (None for a blank image).
    """
    finding = detector.examine(image)
    is_blank = bool(image.min() == image.max())
    facts = {
        "p_value": finding.p_value.item(),
        "percentile": 100 * finding.p_values["likelihood"].item(),
        "most_unusual": None if is_blank else place_of(finding.maps[0]),
    }
    return facts, finding.maps[0]


def verdict(facts: dict[str, Any]) -> str:
    """Return the verdict on an image as text, with its p-value.

    >>> verdict({"p_value": 0.64, "percentile": 50.0, "most_unusual": "left", "class": "7"})
    'Usual 7: 64 percent of held-out images are at least as unusual (p = 0.64).'

    Args:
        facts: summary by ``examine``, and the name of the most probable class or None.
    """
    if (p := facts["p_value"]) is None:
        return NO_DETECTOR
    kind = "image" if facts["class"] is None else facts["class"]
    share = f"{100 * p:.2g} percent of held-out images are at least as unusual (p = {p:.2g})"
    if p > UNUSUAL:
        return f"Usual {kind}: {share}."
    word = "Very unusual" if p <= VERY_UNUSUAL else "Unusual"
    if (place := facts["most_unusual"]) is None:
        return f"{word}, a blank image: {share}."
    simple = ", and simpler than all of them" if facts["percentile"] == 100 else ""
    return f"{word}, mostly at the {place}: {share}{simple}."


def place_of(excess: np.ndarray) -> str:
    """Return the position of the maximum of a map (H, W) in words."""
    row, column = divmod(int(excess.argmax()), excess.shape[1])
    names = ROWS[3 * row // excess.shape[0]], COLUMNS[3 * column // excess.shape[1]]
    return " ".join(filter(None, names)) or "middle"

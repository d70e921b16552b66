"""From a density to a decision: whether an image is odd, how surely, and where."""

from ebm_app.anomaly.detector import AnomalyDetector, Findings, benjamini_hochberg
from ebm_app.anomaly.scores import SCORES

__all__ = ["SCORES", "AnomalyDetector", "Findings", "benjamini_hochberg"]

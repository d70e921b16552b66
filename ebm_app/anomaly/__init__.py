"""From a density to a decision: whether an image is odd, how surely, and where."""

from ebm_app.anomaly.detector import AnomalyDetector, Findings, benjamini_hochberg
from ebm_app.anomaly.scores import SCORES
from ebm_app.anomaly.shift import Shift, two_sample_test

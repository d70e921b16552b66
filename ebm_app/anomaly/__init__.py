"""Detection of unusual images: calibrated p-values, maps, and tests between two sets of images."""

from ebm_app.anomaly.detector import AnomalyDetector
from ebm_app.anomaly.p_values import (
    Findings,
    Shift,
    benjamini_hochberg,
    conformal_p_values,
    two_sample_test,
)
from ebm_app.anomaly.scores import SCORES

"""Detection of unusual images: calibrated p-values, and maps of what is unusual."""

from ebm_app.anomaly.detector import AnomalyDetector, Findings

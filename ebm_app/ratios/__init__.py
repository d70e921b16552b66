"""Log-ratio estimators that are trained side by side."""

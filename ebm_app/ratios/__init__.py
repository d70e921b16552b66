"""Estimators of log density ratios and of mutual information, trained on draws."""

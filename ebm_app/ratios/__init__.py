"""Log density ratios and mutual information, by the paper's estimators and by a classifier."""

"""The estimators of the paper, of log density ratios by time scores, and its problems."""

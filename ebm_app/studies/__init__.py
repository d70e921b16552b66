"""Tables of log-ratio estimators: problems by methods, beside the figures of the paper."""

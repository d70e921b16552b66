"""Studies: tables of estimators, trainings and costs, beside the figures of the paper."""

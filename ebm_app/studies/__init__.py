"""Studies: tables of estimators, of trainings and of what things cost, beside the paper's figures."""

"""Training objectives and samplers of training times."""

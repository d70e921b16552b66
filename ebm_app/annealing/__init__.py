"""Estimation of the normalising constant of a model."""

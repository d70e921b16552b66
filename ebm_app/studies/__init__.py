"""Costs and ablations of models of images."""

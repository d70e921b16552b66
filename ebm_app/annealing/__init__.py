"""The normalising constant of a model."""

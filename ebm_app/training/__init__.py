"""Training of image models."""

"""Training of models of images."""

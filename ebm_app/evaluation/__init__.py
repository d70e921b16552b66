"""Figures of a trained model: bits per dim, self-test, samples."""

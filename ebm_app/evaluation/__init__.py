"""Evaluation of trained models: bits per dim, self-test, and quality of samples."""

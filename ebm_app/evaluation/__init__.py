"""Evaluation of trained models: bits per dim, and quality of samples."""

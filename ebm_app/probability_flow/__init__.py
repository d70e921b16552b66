"""The probability-flow ODE of a score."""

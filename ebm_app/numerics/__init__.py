"""Tensors, quadrature rules and ODE solvers: mathematics without any model."""

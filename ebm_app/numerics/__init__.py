"""Tensors, quadrature rules and ODE solvers: mathematics that knows no model."""

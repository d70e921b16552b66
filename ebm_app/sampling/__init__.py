"""Markov chains, annealing and samplers."""

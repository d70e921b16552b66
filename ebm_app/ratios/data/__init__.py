"""Pairs of samples whose density ratio is learned."""

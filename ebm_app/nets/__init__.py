"""Networks, the densities they define, and the protocols of what a density provides."""

"""Networks, and the models of scores and densities that they define."""

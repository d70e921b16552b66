"""Networks, the densities that they define, and protocols of densities."""

"""Time-score models, their energy, and the folders that hold them."""

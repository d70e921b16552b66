"""Image data sets of integer grey levels, and maps between levels and continuous values."""

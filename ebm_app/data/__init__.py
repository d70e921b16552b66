"""Image data sets as integer levels, and the maps between levels and continuous values."""

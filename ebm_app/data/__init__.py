"""Image data sets as integer levels, and the maps between levels and continuous values."""

from ebm_app.data.images import DATASETS, ImageData, load_images
from ebm_app.data.levels import dequantise, quantise, to_levels

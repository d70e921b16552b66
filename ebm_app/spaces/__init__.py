"""Spaces in which a path lives, by the name that ``--space`` takes."""

from ebm_app.spaces.base import Space
from ebm_app.spaces.pixel import PixelSpace

SPACES: dict[str, type[Space]] = {"ambient": PixelSpace}

__all__ = ["SPACES", "PixelSpace", "Space"]

"""Spaces in which a path lives, by the name that ``--space`` takes."""

from ebm_app.spaces.base import Space
from ebm_app.spaces.copula import CopulaSpace
from ebm_app.spaces.gaussian import GaussianSpace
from ebm_app.spaces.pixel import PixelSpace

SPACES: dict[str, type[Space]] = {
    "ambient": PixelSpace,
    "gaussian": GaussianSpace,
    "copula": CopulaSpace,
}

__all__ = ["SPACES", "CopulaSpace", "GaussianSpace", "PixelSpace", "Space"]

"""Spaces of the path, by the names of ``--space``."""

from collections.abc import Sequence

from ebm_app.spaces.base import Space
from ebm_app.spaces.elementwise import DisplaySpace, PixelSpace
from ebm_app.spaces.gaussian import CopulaSpace, GaussianSpace
from ebm_app.spaces.spline import SplineSpace
from ebm_app.utils.registry import make

SPACES: dict[str, type[Space]] = {
    "ambient": PixelSpace,
    "display": DisplaySpace,
    "gaussian": GaussianSpace,
    "copula": CopulaSpace,
    "spline": SplineSpace,
}


def build_space(name: str, image_shape: Sequence[int], num_levels: int) -> Space:
    """Build a space by its name in ``SPACES``, unfitted and without gradients.

    Raises:
        UserError: for an unknown name, or images that are too large for the space.
    """
    settings = {"image_shape": image_shape, "num_levels": num_levels}
    return make(SPACES, Space, "space", name, settings).requires_grad_(False)

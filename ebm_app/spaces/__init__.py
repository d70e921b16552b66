"""Spaces in which a path lives, by the name that ``--space`` takes."""

import inspect
from collections.abc import Mapping, Sequence

from ebm_app.io.registry import choose
from ebm_app.spaces.base import Space
from ebm_app.spaces.elementwise import DisplaySpace, PixelSpace
from ebm_app.spaces.gaussian import CopulaSpace, GaussianSpace
from ebm_app.spaces.spline import SplineSpace

SPACES: dict[str, type[Space]] = {
    "ambient": PixelSpace,
    "display": DisplaySpace,
    "gaussian": GaussianSpace,
    "copula": CopulaSpace,
    "spline": SplineSpace,
}


def build_space(
    name: str, image_shape: Sequence[int], num_levels: int, arguments: Mapping[str, float]
) -> Space:
    """A space by its name in ``SPACES``, not fitted yet, and frozen.

    Raises:
        UserError: for an unknown name or argument.
    """
    build = SPACES[choose("space", name, SPACES)].build
    made_for = {"image_shape": image_shape, "num_levels": num_levels}
    for key in arguments:
        choose(f"setting of the space {name}", key, inspect.signature(build).parameters)
    return build(**made_for, **arguments).requires_grad_(False)


__all__ = ["SPACES", "PixelSpace", "Space", "SplineSpace", "build_space"]

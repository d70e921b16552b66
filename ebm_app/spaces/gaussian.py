"""Spaces in which the images are one multivariate normal: of their logits, or as a copula."""

from collections.abc import Sequence

from ebm_app.spaces.base import Composed
from ebm_app.spaces.elementwise import Logit
from ebm_app.spaces.marginals import Marginals
from ebm_app.spaces.whitening import Whitening


class GaussianSpace(Composed):
    """Logit, then whitening with the full covariance (paper, section 6.4)."""

    def __init__(self, image_shape: Sequence[int], num_levels: int) -> None:
        super().__init__(Logit(), Whitening(image_shape))


class CopulaSpace(Composed):
    """Every component to a standard normal, then whitening with the full correlation (paper,
    appendix F.5; Rhodes et al. 2020, arXiv:2006.12204)."""

    def __init__(self, image_shape: Sequence[int], num_levels: int) -> None:
        super().__init__(Marginals(image_shape, num_levels), Whitening(image_shape))

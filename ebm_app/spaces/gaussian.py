"""Spaces in which the images are one multivariate normal: of their logits, or as a copula."""

from collections.abc import Sequence

from ebm_app.spaces.base import Composed
from ebm_app.spaces.elementwise import Logit
from ebm_app.spaces.marginals import Marginals
from ebm_app.spaces.whitening import Whitening


class GaussianSpace(Composed):
    """Logit, then whitening with the full covariance (paper, section 6.4)."""

    note = "logits as one multivariate normal"

    @classmethod
    def build(
        cls, image_shape: Sequence[int], num_levels: int, margin: float = 1e-6
    ) -> "GaussianSpace":
        """See ``Logit`` for the margin."""
        return cls(Logit(margin), Whitening(image_shape))


class CopulaSpace(Composed):
    """Every component to a standard normal, then whitening with the full correlation (paper,
    appendix F.5; Rhodes et al. 2020, arXiv:2006.12204)."""

    note = "marginals to normal, then whitened"

    @classmethod
    def build(cls, image_shape: Sequence[int], num_levels: int) -> "CopulaSpace":
        return cls(Marginals(image_shape, num_levels), Whitening(image_shape))

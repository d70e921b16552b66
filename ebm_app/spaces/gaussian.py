"""The Gaussian flow: the images' logits as one multivariate normal."""

from collections.abc import Sequence

from ebm_app.spaces.base import Composed
from ebm_app.spaces.logit import Logit
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

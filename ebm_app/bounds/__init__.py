"""The error bounds of the paper, term by term (arXiv:2502.02300, section 5 and appendix D)."""

from ebm_app.bounds.proposition5 import TARGETS, Fits, GaussianFamily, Regression, ScoreErrors, fit
from ebm_app.bounds.theorem4 import (
    GaussianMixture,
    Ripple,
    first_order,
    kl_bound,
    lipschitz_constant,
)

__all__ = [
    "TARGETS",
    "Fits",
    "GaussianFamily",
    "GaussianMixture",
    "Regression",
    "Ripple",
    "ScoreErrors",
    "first_order",
    "fit",
    "kl_bound",
    "lipschitz_constant",
]

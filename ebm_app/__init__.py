"""Density ratios, likelihoods and samples from time scores.

``EBM`` is an energy-based model of images; the parts it is made of live in the modules of this
package, each of which states its equations.
"""

from ebm_app.ebm import EBM

__all__ = ["EBM"]

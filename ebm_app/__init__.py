"""Density ratios, likelihoods and samples from time scores.

``EBM`` is an energy-based model of images, ``Flow`` a normalising flow in whose latent space one
can live, and ``train`` makes an ``EBM`` from a tensor of images. ``PATHS``, ``OBJECTIVES``,
``ESTIMATORS`` and ``SAMPLERS`` name what can be chosen. The parts live in the modules of this
package, each of which states its equations.
"""

from ebm_app.ebm import EBM
from ebm_app.flow import Flow
from ebm_app.likelihood import ESTIMATORS
from ebm_app.objectives.regression import OBJECTIVES
from ebm_app.paths import PATHS
from ebm_app.sampling.samplers import SAMPLERS
from ebm_app.training.api import train

__all__ = ["ESTIMATORS", "OBJECTIVES", "PATHS", "SAMPLERS", "EBM", "Flow", "train"]

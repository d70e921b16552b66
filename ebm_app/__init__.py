"""Density ratios, likelihoods and samples from time scores.

``EBM`` is an energy-based model of images, ``Flow`` a normalising flow that can be its latent
space, and ``train`` trains an ``EBM`` on a tensor of images. ``mutual_information`` and
``conditional_mutual_information`` estimate the dependence of groups of columns, and
``log_density_ratio`` the difference of two samples; ``MutualInformation`` and ``DensityRatio`` are
the same in the API of scikit-learn. ``PATHS``, ``OBJECTIVES``, ``ESTIMATORS`` and ``SAMPLERS``
list the options by name. Each module states its equations.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ebm_app.completion import complete
    from ebm_app.compose import Mixture, Product, sample_composed
    from ebm_app.ebm import EBM
    from ebm_app.flow import Flow
    from ebm_app.likelihood import ESTIMATORS
    from ebm_app.objectives.regression import OBJECTIVES
    from ebm_app.paths import PATHS
    from ebm_app.sampling.samplers import SAMPLERS
    from ebm_app.tabular.conditional import conditional_mutual_information
    from ebm_app.tabular.estimators import DensityRatio, MutualInformation
    from ebm_app.tabular.mutual_information import mutual_information
    from ebm_app.tabular.two_samples import log_density_ratio
    from ebm_app.training.api import train

#: Public names and their modules, which are imported at first use because that takes seconds.
HOMES = {
    "DensityRatio": "tabular.estimators",
    "EBM": "ebm",
    "Flow": "flow",
    "ESTIMATORS": "likelihood",
    "MutualInformation": "tabular.estimators",
    "Mixture": "compose",
    "OBJECTIVES": "objectives.regression",
    "PATHS": "paths",
    "Product": "compose",
    "SAMPLERS": "sampling.samplers",
    "complete": "completion",
    "conditional_mutual_information": "tabular.conditional",
    "log_density_ratio": "tabular.two_samples",
    "mutual_information": "tabular.mutual_information",
    "sample_composed": "compose",
    "train": "training.api",
}

__all__ = [*HOMES]


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name not in HOMES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    value = globals()[name] = getattr(import_module(f"{__name__}.{HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *HOMES})

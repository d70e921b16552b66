"""Density ratios, likelihoods and samples from time scores.

``EBM`` is an energy-based model of images, and ``train`` trains it. ``Flow`` is a normalising flow
whose latent space an ``EBM`` can use. ``CTSMRatio`` and ``ClassifierRatio`` estimate the log
density ratio of two samples, and ``mutual_information`` the dependence of paired rows.
``read_images`` reads image files, and ``quantise`` rounds images to grey levels. ``UserError`` is
the error of invalid input. ``PATHS``, ``OBJECTIVES``, ``ESTIMATORS`` and ``SAMPLERS`` list the
options by name. Each module states its equations.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ebm_app.data.levels import quantise
    from ebm_app.data.pictures import read_images
    from ebm_app.ebm import EBM
    from ebm_app.flow import Flow
    from ebm_app.likelihood import ESTIMATORS
    from ebm_app.nets.denoisers import AlphasCumprod, AlphaSigma
    from ebm_app.objectives.regression import OBJECTIVES
    from ebm_app.paths import PATHS
    from ebm_app.ratios.classifier import ClassifierRatio
    from ebm_app.ratios.ctsm import CTSMRatio
    from ebm_app.ratios.information import mutual_information
    from ebm_app.sampling import SAMPLERS
    from ebm_app.training.build import train
    from ebm_app.utils.errors import UserError

#: Public names and their modules, imported at first use because importing takes seconds
HOMES = {
    "AlphaSigma": "nets.denoisers",
    "AlphasCumprod": "nets.denoisers",
    "CTSMRatio": "ratios.ctsm",
    "ClassifierRatio": "ratios.classifier",
    "EBM": "ebm",
    "Flow": "flow",
    "ESTIMATORS": "likelihood",
    "OBJECTIVES": "objectives.regression",
    "PATHS": "paths",
    "SAMPLERS": "sampling",
    "UserError": "utils.errors",
    "mutual_information": "ratios.information",
    "quantise": "data.levels",
    "read_images": "data.pictures",
    "train": "training.build",
}

__all__ = [*HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name == "__version__":
        return version(__name__)
    if name not in HOMES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    value = globals()[name] = getattr(import_module(f"{__name__}.{HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *HOMES})

"""Log density ratios and mutual information, by the paper's method and by classification."""

from ebm_app.ratios.classifier import ClassifierRatio
from ebm_app.ratios.ctsm import CTSMRatio
from ebm_app.ratios.information import mutual_information

__all__ = ["CTSMRatio", "ClassifierRatio", "mutual_information"]

"""Log density ratios and mutual information, by the paper's estimators and by a classifier."""

from ebm_app.ratios.ctsm import CTSMRatio
from ebm_app.ratios.information import mutual_information
from ebm_app.ratios.two_samples import log_density_ratio

__all__ = ["CTSMRatio", "log_density_ratio", "mutual_information"]

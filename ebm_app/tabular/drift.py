"""Which columns differ between two samples: a test for every column by itself.

Columns of numbers are compared by Kolmogorov and Smirnov's test, discrete ones by the chi-square
test of their counts. Of D tests some are small by chance, so that the p-values are Holm's: the
chance that any column of equal distributions is below a level is at most that level.

Source: Holm, Scand. J. Statist. 6, 1979.
"""

import numpy as np
from scipy import stats

from ebm_app.tabular.scores import is_discrete


def column_p_values(x0: np.ndarray, x1: np.ndarray) -> np.ndarray:
    """Holm's p-value (D,) of every column of independent rows (N0, D) and (N1, D)."""
    return holm(np.array([_p_value(*pair) for pair in zip(x0.T, x1.T, strict=True)]))


def holm(p_values: np.ndarray) -> np.ndarray:
    """p-values (D,) adjusted by Holm's method: the k-th smallest times D - k + 1, no smaller than
    those before it and at most 1.
    """
    order = np.argsort(p_values)
    factors = len(p_values) - np.arange(len(p_values))
    adjusted = np.empty_like(p_values)
    adjusted[order] = np.maximum.accumulate(factors * p_values[order]).clip(max=1)
    return adjusted


def _p_value(of0: np.ndarray, of1: np.ndarray) -> float:
    if not is_discrete(np.concatenate([of0, of1])):
        return float(stats.ks_2samp(of0, of1).pvalue)
    values = np.union1d(of0, of1)
    counts = [(part == values[:, None]).sum(1) for part in (of0, of1)]
    return float(stats.chi2_contingency(counts, correction=False).pvalue)

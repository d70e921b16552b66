"""The picture of a log density ratio, narrow enough for a phone."""

import numpy as np
from matplotlib.figure import Figure

from ebm_app.ratios.studies.information_plots import DPI, WIDTH


def plot_log_ratios(of0: np.ndarray, of1: np.ndarray) -> Figure:
    """Histograms of the log ratio, in nats, over the rows of both samples, (N0,) and (N1,)."""
    figure = Figure(figsize=(WIDTH, 3.0), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    edges = np.histogram_bin_edges(np.concatenate([of0, of1]), 40)
    for values, name in ((of0, "rows of p_0"), (of1, "rows of p_1")):
        axes.hist(values, edges, density=True, histtype="stepfilled", alpha=0.5, label=name)
    axes.axvline(0, color="black", lw=0.8)
    axes.set(xlabel="log p_1 / p_0, nats", ylabel="share a nat")
    axes.legend(fontsize="small")
    return figure

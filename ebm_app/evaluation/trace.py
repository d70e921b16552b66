"""log p(x) of an image as a running integral of the time score."""

from typing import NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.integrate import cumulative_simpson
from torch import Tensor

from ebm_app.data.levels import to_levels
from ebm_app.ebm import EBM
from ebm_app.likelihood.bits import to_bits_per_dim
from ebm_app.nets.model import TimeScoreModel
from ebm_app.paths import require_one_sided
from ebm_app.utils.random import LIKELIHOODS, ImageNoise
from ebm_app.utils.tensors import standard_normal_log_density

#: Number of times at which the time score is computed (odd)
NUM_TIMES = 41


class Trace(NamedTuple):
    """Time score of one image at ``NUM_TIMES`` times along the path.

    Attributes:
        rates: time scores in nats per arc length at times evenly spaced in arc length, (n,).
        totals: log p_t(x) in nats, (n,).
        bits: bits per dim of the image, from the last total.
    """

    rates: np.ndarray
    totals: np.ndarray
    bits: float


@torch.no_grad()
def trace(ebm: EBM, image: Tensor, seed: int = 0) -> Trace | None:
    r"""Return the time score of an image (1, C, H, W) in [0, 1] along the path of a model, and

        log p_t(x) = log N(x; 0, I) + \int_0^t d/ds log p_s(x) ds

    at the dequantised image x; None for a model without a time score.
    """
    model = ebm.model
    if not isinstance(model, TimeScoreModel):
        return None
    path = require_one_sided(model.path)
    levels = to_levels(image, ebm.config.num_levels)
    point = ebm.dequantise(levels, ImageNoise(seed, [0], LIKELIHOODS))
    ends = path.arc_length(torch.tensor([model.start, point.t], dtype=torch.float64))
    lengths = torch.linspace(*ends.tolist(), NUM_TIMES, dtype=torch.float64)
    times = path.arc_length_inverse(lengths)
    x = point.y.expand(NUM_TIMES, -1, -1, -1)
    rates = model.time_score(x, times) / path.time_score_variance(times).sqrt()
    start = standard_normal_log_density(point.y.double()).sum()
    totals = start.item() + cumulative_simpson(rates.numpy(), x=lengths.numpy(), initial=0)
    last = torch.tensor(totals[-1]) + point.negative_log_q.sum()
    return Trace(rates.numpy(), totals, to_bits_per_dim(last, image.numel()).item())


def plot_trace(traced: Trace) -> Figure:
    """Plot the time score and its running integral along the path."""
    figure = Figure(figsize=(7.5, 3.2), dpi=110, layout="constrained")
    left, right = figure.subplots(1, 2)
    fractions = np.linspace(0, 1, NUM_TIMES)
    left.fill_between(fractions, traced.rates, alpha=0.3)
    left.plot(fractions, traced.rates)
    left.set(ylabel="time score (nats per arc length)")
    right.plot(fractions, traced.totals)
    right.set(ylabel="log pₜ(x) (nats)", title=f"ends at {traced.bits:.3f} bits per dim")
    for axes in (left, right):
        axes.axhline(0, color="grey", lw=0.8)
        axes.set(xlabel="from noise (0) to the image (1), in arc length")
    return figure

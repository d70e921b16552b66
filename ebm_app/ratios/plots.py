"""Plot of estimates of mutual information beside the truth, narrow enough for a phone."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

STYLES = ("-", "--", ":")


def plot_approach(
    curves: Mapping[str, Sequence[dict[str, Any]]], truth: float, iterations: int
) -> Figure:
    """Estimates against the step beside the true value, and milliseconds a step below.

    Args:
        curves: method -> its evaluations, with "step", "divergence" (KL, in nats; None where it is
            not finite) and "step_ms".
    """
    figure = Figure(figsize=(4.2, 4.4), dpi=130, layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=[3, 1])
    above.axhline(truth, color="black", ls="--", lw=1, label=f"true value, {truth:g} nats")
    for index, (method, curve) in enumerate(curves.items()):
        points = [(at["step"], at["divergence"]) for at in curve if at["divergence"] is not None]
        style = {
            "color": f"C{index}",
            "ls": STYLES[index % len(STYLES)],
            "marker": "os^"[index % 3],
        }
        above.plot(*zip(*points or [([], [])], strict=True), ms=4, label=method, **style)
    above.set(xlabel="step", ylabel="mutual information, nats", xlim=(0, iterations))
    above.set_ylim(min(0.0, above.get_ylim()[0]), max(1.2 * truth, above.get_ylim()[1]))
    above.legend(fontsize="small", loc="lower right")
    times = [curve[-1]["step_ms"] or 0.0 for curve in curves.values() if curve]
    bars = below.barh(list(curves), times, color=[f"C{index}" for index in range(len(curves))])
    below.bar_label(bars, fmt="%.1f", padding=2, fontsize="small")
    below.set(xlabel="milliseconds a step", xlim=(0, 1.2 * max(times, default=0.0) or 1.0))
    below.invert_yaxis()
    return figure

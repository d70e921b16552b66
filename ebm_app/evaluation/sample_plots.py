"""What a study of samplers shows: a table in Markdown, and a figure as PNG."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

#: key of a row -> (label of its axis, its scale)
PANELS = {
    "frechet": ("Frechet distance of features to test images", "log"),
    "histogram_distance": ("total variation distance of class shares", "linear"),
}
#: keys of the last columns of the table
METRICS = (
    "frechet",
    "histogram_distance",
    "class_balance",
    "confidence",
    "clear_share",
    "outside",
)
HEAD = """\
| run | nfe | seconds | Frechet distance | histogram distance | balance | confidence | clear | \
outside |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
"""
NOTES = """
nfe: evaluations of the Stein score for an image, those of a pilot run included. By the integral,
one costs as many evaluations of the network as there are nodes, and their gradient; the energies
of accept steps are not counted, but are in the seconds.
Frechet distance: of the classifier's features to those of the test images. Histogram distance:
total variation between the classes seen and the training labels. Balance: the rarest class over
the most frequent one. Confidence: mean probability of the most likely class; clear: share of the
images where it is at least 0.9. Outside: share of the images whose mean level lies outside the
range of the training images', such as a white blob or an empty image. Held-out images, as many as
were drawn: what a perfect sampler would reach, the mean of several draws and the spread of one,
which is about the noise of the other rows too.

![samplers](samplers.png)
"""


def samplers_table(rows: Sequence[dict[str, Any]], floor: dict[str, Any]) -> str:
    """The table in Markdown: a line a run, and one of held-out images.

    Args:
        rows: each with ``run``, ``nfe``, ``seconds`` and the keys of ``METRICS``.
        floor: of held-out images, as ``ebm_app.evaluation.frechet.Reference.floor`` returns
            it.
    """
    lines = [
        f"| {row['run']} | {row['nfe']:.0f} | {row['seconds']:.1f} | "
        + " | ".join(f"{row[key]:.3f}" for key in METRICS)
        for row in rows
    ]
    last = " | ".join(f"{floor[key]:.3f} ± {floor['spread'][key]:.3f}" for key in METRICS)
    lines.append(f"| {floor['num_images']} held-out images | | | {last}")
    return HEAD + "".join(f"{line} |\n" for line in lines)


def plot_samplers(rows: Sequence[dict[str, Any]], floor: dict[str, Any], target: Path) -> None:
    """Two panels against the evaluations of the score: a line a sampler, the floor dashed.

    Args:
        rows: each with ``sampler``, ``nfe`` and the keys of ``PANELS``.
        floor: what as many held-out images reach, with the keys of ``PANELS``, and their
            ``spread``, which is shaded.
        target: the PNG to write.
    """
    # a second to import, only for this
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

    figure = Figure(figsize=(10, 4), layout="constrained")
    axes = figure.subplots(1, 2)
    for axis, (key, (label, scale)) in zip(axes, PANELS.items(), strict=True):
        for name in dict.fromkeys(row["sampler"] for row in rows):
            points = sorted((row["nfe"], row[key]) for row in rows if row["sampler"] == name)
            axis.plot(*zip(*points, strict=True), marker="o", label=name)
        axis.axhline(floor[key], color="grey", linestyle="--", label="held-out images")
        spread = floor["spread"][key]
        low = max(floor[key] - spread, floor[key] / 10)  # a logarithmic axis has no zero
        axis.axhspan(low, floor[key] + spread, color="grey", alpha=0.2)
        axis.set(xlabel="evaluations of the score per image", ylabel=label, xscale="log")
        axis.set_yscale(scale)
        if scale == "linear":
            axis.set_ylim(bottom=0)
        # a panel may hold no power of ten, which alone are labelled otherwise
        for logarithmic in (axis.xaxis, axis.yaxis) if scale == "log" else (axis.xaxis,):
            logarithmic.set_major_locator(LogLocator(subs=(1, 2, 5)))
            logarithmic.set_major_formatter(ScalarFormatter())
            logarithmic.set_minor_formatter(NullFormatter())
    axes[0].legend()
    figure.savefig(target, dpi=120)

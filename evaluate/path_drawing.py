"""Draw a probability path from noise to data in one dimension: docs/path.png.

    python evaluate/path_drawing.py --output docs/path.png

The data are a mixture of two normals, so that p_t is one as well and every curve is exact. Left:
p_t(x) and trajectories of its probability-flow ODE. Right: the time score at one point, whose
integral over t is the log density ratio of data and noise there.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.distributions import Normal

from ebm_app.io.command_line import parse
from ebm_app.io.fields import configuration, setting
from ebm_app.paths import LinearVPPath
from studies.bounds import GaussianMixture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PATH = LinearVPPath()
MEANS = torch.tensor([[-1.2], [0.9]], dtype=torch.float64)
DATA = GaussianMixture(PATH, MEANS, stds=(0.02**0.5,) * 2, weights=(0.35, 0.65))
TIMES = torch.linspace(0.001, 1.0, 400, dtype=torch.float64)


def score(x: Tensor, t: Tensor) -> Tensor:
    """d/dx log p_t(x): (B, 1)."""
    return torch.func.grad(lambda y: DATA.log_density(y, t).sum())(x)


def trajectories(starts: Tensor) -> Tensor:
    """Solutions of the probability-flow ODE at ``TIMES`` by Heun's rule: (400, B, 1)."""
    points = [starts]
    for t, after in zip(TIMES[:-1], TIMES[1:], strict=True):
        x, step = points[-1], after - t
        slope = PATH.velocity(x, score(x, t), t)
        ahead = x + step * slope
        points.append(x + step / 2 * (slope + PATH.velocity(ahead, score(ahead, after), after)))
    return torch.stack(points)


def draw_density(axes: "Axes") -> None:
    """p_t(x) in the plane of t and x, with trajectories."""
    x = torch.linspace(-3, 3, 400, dtype=torch.float64)
    density = torch.stack([DATA.log_density(x[:, None], t).exp() for t in TIMES], 1)
    axes.pcolormesh(TIMES, x, density.sqrt(), cmap="Blues", shading="gouraud", rasterized=True)
    starts = Normal(0.0, 1.0).icdf(torch.linspace(0.04, 0.96, 14)).double()
    axes.plot(TIMES, trajectories(starts[:, None]).squeeze(2), color="0.25", linewidth=0.8)
    axes.set(xlabel="t", ylabel="x", title="$p_t(x)$, and the probability-flow ODE")
    axes.text(0.02, -2.8, "noise")
    axes.text(0.98, -2.8, "data", ha="right")


def draw_time_score(axes: "Axes", x: float) -> None:
    """d/dt log p_t(x) at a point, and the area below it."""
    point = torch.tensor([[x]], dtype=torch.float64)
    time_score = torch.cat([DATA.time_score(point, t) for t in TIMES])
    ratio = (DATA.log_density(point, TIMES[-1]) - DATA.log_density(point, TIMES[0])).item()
    axes.plot(TIMES, time_score, color="tab:blue")
    axes.fill_between(TIMES, time_score, color="tab:blue", alpha=0.2)
    axes.axhline(0, color="0.25", linewidth=0.8)
    axes.set(
        xlabel="t",
        ylabel=f"time score at x = {x}",
        title=rf"its area is $\log\,p_1(x)/p_0(x) = {ratio:.2f}$",
    )


@configuration(kw_only=True)
class Arguments:
    """The command line."""

    output: Path = setting("the picture to write", Path("docs/path.png"))


def main(argv: Sequence[str] | None = None) -> None:
    """Write the drawing."""
    output = parse(Arguments, __doc__, argv).output
    from matplotlib.figure import Figure  # a second to import: --help does without

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    draw_density(left)
    draw_time_score(right, x=0.8)
    figure.savefig(output, dpi=110)


if __name__ == "__main__":
    main()

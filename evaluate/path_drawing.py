"""Draw a probability path from noise to data in one dimension: docs/path.png.

    python evaluate/path_drawing.py --output docs/path.png

The data are a mixture of two normals, so that p_t is one as well and every curve is exact. Left:
p_t(x) and trajectories of its probability-flow ODE. Right: the time score at one point, whose
integral over t is the log density ratio of data and noise there.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.distributions import Normal

from ebm_app.io.command_line import parse
from ebm_app.io.fields import configuration, setting
from ebm_app.io.writing import save_figure
from ebm_app.paths import LinearVPPath
from ebm_app.paths.probability_flow import ProbabilityFlow
from studies.bounds import GaussianMixture

MEANS = torch.tensor([[-1.2], [0.9]], dtype=torch.float64)
DATA = GaussianMixture(LinearVPPath(), MEANS, stds=(0.02**0.5,) * 2, weights=(0.35, 0.65))
TIMES = torch.linspace(0.001, 1.0, 400, dtype=torch.float64)
#: of the time score
POINT = 0.8


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
    x = torch.linspace(-3, 3, 400, dtype=torch.float64)
    density = torch.stack([DATA.log_density(x[:, None], t).exp() for t in TIMES], 1)
    left.pcolormesh(TIMES, x, density.sqrt(), cmap="Blues", shading="gouraud", rasterized=True)
    starts = Normal(0.0, 1.0).icdf(torch.linspace(0.04, 0.96, 14)).double()
    flow = ProbabilityFlow(score, DATA.path)
    states = list(flow.solve(starts[:, None], 0.001, 0.999, num_steps=100))
    ways = torch.stack([state.x.squeeze(1) for state in states])
    left.plot([state.t for state in states], ways, color="0.25", linewidth=0.8)
    left.set(xlabel="t", ylabel="x", title="$p_t(x)$, and the probability-flow ODE")
    left.text(0.02, -2.8, "noise")
    left.text(0.98, -2.8, "data", ha="right")
    point = torch.full((1, 1), POINT, dtype=torch.float64)
    time_score = torch.cat([DATA.time_score(point, t) for t in TIMES])
    ratio = (DATA.log_density(point, TIMES[-1]) - DATA.log_density(point, TIMES[0])).item()
    right.plot(TIMES, time_score, color="tab:blue")
    right.fill_between(TIMES, time_score, color="tab:blue", alpha=0.2)
    right.axhline(0, color="0.25", linewidth=0.8)
    title = rf"its area is $\log\,p_1(x)/p_0(x) = {ratio:.2f}$"
    right.set(xlabel="t", ylabel=f"time score at x = {POINT}", title=title)
    save_figure(figure, output)


def score(x: Tensor, t: float) -> Tensor:
    """d/dx log p_t(x): (B, 1)."""
    time = torch.tensor(t, dtype=x.dtype)
    return torch.func.grad(lambda y: DATA.log_density(y, time).sum())(x)


if __name__ == "__main__":
    main()

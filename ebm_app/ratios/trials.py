"""What a training of a log ratio can be tried on by eye, and how it is judged there.

Trainings of one problem see the same evaluation points, so that methods can be compared.
"""

import math
from typing import Any

from ebm_app.io.registry import choose
from ebm_app.numerics.tensors import seeded
from ebm_app.ratios.estimators import TimeScoreRatio
from ebm_app.ratios.methods import TimeScores, methods_of
from ebm_app.ratios.pairs import DensityPair, standard_normal
from ebm_app.ratios.points import DensityGrid, EvaluationPoints
from ebm_app.ratios.problems import TOY_PROBLEMS
from ebm_app.ratios.toy_2d import TOY_2D
from ebm_app.ratios.training import draw

#: small enough that an evaluation takes about as long as the steps between two of them
NUM_POINTS, NUM_LOSS_DRAWS, NUM_GRID_DRAWS = 600, 2_048, 40_000
PAIRS: dict[str, DensityPair] = {
    **{name: problem.pair for name, problem in TOY_PROBLEMS.items() if "sigma" not in name},
    **{name: DensityPair(standard_normal(2), data) for name, data in TOY_2D.items()},
}
#: in words, and the sigma of the Schrodinger bridge; None is the variance-preserving path
PATHS: dict[str, tuple[str, float | None]] = {
    "variance_preserving": ("variance preserving", None),
    "bridge_sigma1": ("Schrödinger bridge, σ = 1", 1.0),
    "bridge_sigma1.41": ("Schrödinger bridge, σ = √2", math.sqrt(2)),
}
METHODS = tuple(methods_of(None))


def paths_of(problem: str) -> list[str]:
    """The paths that suit a problem: the variance-preserving one starts at N(0, I)."""
    is_any = problem.startswith("mixtures")
    return [name for name, (_, sigma) in PATHS.items() if not (is_any and sigma is None)]


def chosen(problem: str, path: str, method: str) -> tuple[DensityPair, TimeScores]:
    """A key of ``PAIRS``, one of ``paths_of`` and one of ``METHODS``.

    Raises:
        UserError: for an unknown name, and a path that does not suit the problem.
    """
    pair = PAIRS[choose("problem", problem, PAIRS)]
    _, sigma = PATHS[choose(f"path of {problem}", path, paths_of(problem))]
    return pair, methods_of(sigma)[choose("method", method, METHODS)]


class Judge:
    """What is found of the estimators of a method, on draws that stay the same."""

    def __init__(self, pair: DensityPair, method: TimeScores, device: str, stream: int) -> None:
        generator, times = seeded(device, 0, stream), method.sampler.sample
        self.points = EvaluationPoints(pair, NUM_POINTS, generator)
        self.draw = draw(pair, times, NUM_LOSS_DRAWS, generator)
        self.grid = None
        if pair.dim == 2:
            rows = draw(pair, times, NUM_GRID_DRAWS, generator)
            self.grid = DensityGrid(pair, method.path, rows)

    def __call__(self, ratio: TimeScoreRatio) -> dict[str, Any]:
        """Numbers: "loss", the metrics of the points, and on the plane "mass", the integral of the
        learned p_1. Tensors: "truth" and "estimate" (N,), log ratios in nats. "planes": what a
        grid finds, or None."""
        points, planes = self.points, self.grid and self.grid.planes(ratio)
        estimate = ratio.log_ratio(points.x)
        found = {
            "loss": ratio.loss(self.draw).detach().double().mean().item(),
            **points.metrics(estimate),
            "divergence_truth": points.metrics(points.truth)["divergence"],
            "planes": planes,
            "truth": points.truth.cpu(),
            "estimate": estimate.cpu(),
        }
        return found if planes is None else {**found, "mass": planes.mass}

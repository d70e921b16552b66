"""What a training of a log ratio can be tried on by eye."""

import math

from ebm_app.io.registry import choose
from ebm_app.ratios.methods import TimeScores, methods_of
from ebm_app.ratios.pairs import DensityPair, standard_normal
from ebm_app.ratios.problems import TOY_PROBLEMS
from ebm_app.ratios.toy_2d import TOY_2D

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

"""What a likelihood costs by fixed nodes and by adaptive solves, at equal error."""

from collections.abc import Sequence
from math import log
from typing import NamedTuple

from torch import Tensor

from ebm_app.models.energy import LogRatio, TimeScoreEnergy

NODES = (8, 12, 16, 24, 32, 48, 64, 96, 128)
TOLERANCES = (1e-3, 1e-4, 1e-5, 1e-6)
#: nodes of the value that all others are compared with
REFERENCE = 192


class Integration(NamedTuple):
    """A way to integrate: its name, evaluations of the network, and the largest distance over
    images of the log ratio to that by ``REFERENCE`` nodes, in bits per dim."""

    name: str
    nfe: int
    error: float


def reference(energy: TimeScoreEnergy, x: Tensor) -> Tensor:
    """The log ratios (B,) of points x (B, *) that all others are compared with."""
    return energy.with_nodes(REFERENCE).log_ratio(x).value


def fixed_nodes(
    energy: TimeScoreEnergy, x: Tensor, truth: Tensor, nodes: Sequence[int] = NODES
) -> list[Integration]:
    """Log ratios of points x (B, *) by Gauss-Legendre rules; ``truth`` by ``reference``."""
    return [
        measured(f"{num} nodes", energy.with_nodes(num).log_ratio(x), truth, x) for num in nodes
    ]


def adaptive(
    energy: TimeScoreEnergy, x: Tensor, truth: Tensor, tolerances: Sequence[float] = TOLERANCES
) -> list[Integration]:
    """The same by SciPy's RK45, the paper's protocol, rtol and atol being equal."""
    return [
        measured(
            f"rk45 at {tolerance:g}",
            energy.log_ratio(x, integrator="rk45", rtol=tolerance, atol=tolerance),
            truth,
            x,
        )
        for tolerance in tolerances
    ]


def measured(name: str, found: LogRatio, truth: Tensor, x: Tensor) -> Integration:
    """Cost and error of one way to integrate."""
    error = (found.value - truth).abs().max().item() / (x[0].numel() * log(2))
    return Integration(name, found.nfe, error)


def at_equal_error(
    solves: Sequence[Integration], rules: Sequence[Integration]
) -> dict[Integration, Integration]:
    """Adaptive solve -> the smallest rule that is as exact; those that no rule reaches are left
    out."""
    pairs = {}
    for solve in solves:
        enough = [rule for rule in rules if rule.error <= solve.error]
        if enough:
            pairs[solve] = min(enough, key=lambda rule: rule.nfe)
    return pairs

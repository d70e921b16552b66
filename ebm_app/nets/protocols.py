r"""Protocols of densities: one for each quantity that a model may provide of its marginals p_t.

Estimators, samplers and annealing methods name the protocol that they need in their signature.
``require`` raises a UserError for a model that lacks it. All log densities are in nats; ``x``
has shape (B, *), and ``t`` is one time for all points or a float64 tensor (B,).
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, Self, TypeVar, runtime_checkable

from torch import Tensor

from ebm_app.paths import GaussianPath
from ebm_app.utils.errors import UserError

P = TypeVar("P")
Time = float | Tensor
Score = Callable[[Tensor, float], Tensor]


class LogDensityEstimate(NamedTuple):
    """Estimate of log p_t(x), or its difference between two times, for B points.

    Attributes:
        value: (B,) float64, in nats.
        error: (B,), estimate of the numerical error, in nats; NaN if unknown.
        components: (B, *), per-dimension terms that sum to ``value``, or None.
        nfe: network evaluations per point: forward and backward passes. A backward pass with
            respect to the input costs about as much as a forward pass.
    """

    value: Tensor
    error: Tensor
    components: Tensor | None
    nfe: int


class Marginals(Protocol):
    """Marginals p_t of a path, modelled for ``start`` <= t <= ``end``."""

    path: GaussianPath
    start: float
    end: float


@runtime_checkable
class TimeScore(Marginals, Protocol):
    """Density with a time score d/dt log p_t(x), in nats per unit of t.

    Attributes:
        passes: network evaluations of a call of ``time_score``, see ``LogDensityEstimate.nfe``.
    """

    passes: int

    def time_score(self, x: Tensor, t: Time) -> Tensor:
        """Return d/dt log p_t(x): (B,) float64."""

    def time_score_terms(self, x: Tensor, t: Time) -> Tensor:
        """Return terms that sum to the time score: (B, *) float64, one per dimension, or (B, 1)
        if the model only has the sum."""

    def log_ratio(self, x: Tensor, t0: float, t1: float) -> LogDensityEstimate:
        """Return log p_t1(x) - log p_t0(x), the integral of the time score, as a
        ``LogDensityEstimate`` of B points."""


@runtime_checkable
class SteinScore(Marginals, Protocol):
    """Density with a Stein score grad_x log p_t(x)."""

    def score(self, x: Tensor, t: Time) -> Tensor:
        """Return grad_x log p_t(x): (B, *). It is differentiable if autograd is enabled."""

    def score_cost(self, t: float) -> int:
        """Return the network evaluations (NFE) of a call of ``score``, see
        ``LogDensityEstimate.nfe``."""

    def at(self, rows: Tensor) -> Self:
        """Return the density for the points with indices ``rows`` (b,) in the batch."""


@runtime_checkable
class LogDensity(SteinScore, Protocol):
    """Density with a log density, up to a constant if unnormalised, and a Stein score."""

    def log_density(self, x: Tensor, t: Time) -> Tensor:
        """Return log p_t(x): (B,) float64. Values are infinite or NaN if the network
        overflows."""

    def log_density_cost(self, t: float) -> int:
        """Return the network evaluations (NFE) of a call of ``log_density``."""

    def log_density_gradient(self, x: Tensor, t: float) -> Tensor:
        """Return the gradient of ``log_density``: (B, *)."""

    def gradient_cost(self, t: float) -> int:
        """Return the network evaluations (NFE) of a call of ``log_density_gradient``."""

    def with_nodes(self, num_nodes: int) -> Self:
        """Return a copy with another number of quadrature nodes, if it uses any."""


@runtime_checkable
class LevelDecoder(Marginals, Protocol):
    """Density with a decoder of the grey levels of an image."""

    def level_log_prob(self, levels: Tensor, x: Tensor, t: float) -> Tensor:
        """Return log P(levels | x_t = x) in nats per dimension: (B, *) float64."""


class Counter:
    """Counts the network evaluations per point of the functions of a model.

    Attributes:
        nfe: evaluations so far.
    """

    def __init__(self) -> None:
        self.nfe = 0

    def count(self, function: Score, cost: Callable[[float], int]) -> Score:
        """Return a function of (x, t) whose calls are counted, with the cost of a call at t."""

        def counted(x: Tensor, t: float) -> Tensor:
            self.nfe += cost(t)
            return function(x, t)

        return counted


#: Protocol or class -> (quantity, models that provide it), for error messages
PROVIDERS: dict[type, tuple[str, str]] = {
    TimeScore: ("a time score", "models trained with this package"),
    SteinScore: ("a Stein score", "models trained with this package and denoisers"),
    LogDensity: ("a log density", "models trained with this package"),
    LevelDecoder: ("a decoder of grey levels", "models that predict posterior moments"),
}


def require(model: Any, protocol: type[P], user: str) -> P:
    """Return ``model`` if it implements ``protocol``.

    Args:
        protocol: a key of ``PROVIDERS``.
        user: what needs it, for the error message, such as "estimator elbo".

    Raises:
        UserError: if the model does not implement the protocol.
    """
    if isinstance(model, protocol):
        return model
    quantity, models = PROVIDERS[protocol]
    raise UserError(f"{user} needs {quantity}, which this model lacks. Available for {models}.")

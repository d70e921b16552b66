r"""Protocols of densities: one for each quantity of the marginals p_t that a model provides.

An estimator, a sampler or an annealing method names in its signature the protocol that it needs.
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
    """Estimate of log p_t(x), or of its difference between two times, for B points.

    Attributes:
        value: (B,) float64, in nats.
        error: (B,), estimate of the numerical error, in nats; NaN if unknown.
        components: (B, *), terms per dimension that sum to ``value``, or None.
        nfe: forward and backward passes of the network per point; a backward pass by the input
            has about as many operations as a forward pass.
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
    """The time score d/dt log p_t(x), in nats per unit of t.

    Attributes:
        passes: passes of the network, see ``LogDensityEstimate.nfe``, in one call of
            ``time_score``.
    """

    passes: int

    def time_score(self, x: Tensor, t: Time) -> Tensor:
        """Return d/dt log p_t(x): (B,) float64."""

    def time_score_terms(self, x: Tensor, t: Time) -> Tensor:
        """Return terms that sum to the time score: (B, *) float64, one per dimension, or (B, 1)
        where the model has only the sum."""

    def log_ratio(self, x: Tensor, t0: float, t1: float) -> LogDensityEstimate:
        """Return log p_t1(x) - log p_t0(x), the integral of the time score: (B,)."""


@runtime_checkable
class SteinScore(Marginals, Protocol):
    """The Stein score grad_x log p_t(x)."""

    def score(self, x: Tensor, t: Time) -> Tensor:
        """Return grad_x log p_t(x): (B, *). It can be differentiated where autograd is on."""

    def score_cost(self, t: float) -> int:
        """Return the passes of the network, see ``LogDensityEstimate.nfe``, in one call of
        ``score``."""

    def at(self, rows: Tensor) -> Self:
        """Return the density of the points with these indices (b,) in the batch."""


@runtime_checkable
class LogDensity(SteinScore, Protocol):
    """The log density, up to a constant where the model is unnormalised, and the Stein score."""

    def log_density(self, x: Tensor, t: float) -> Tensor:
        """Return log p_t(x): (B,) float64. Values may be infinite or NaN where the network
        overflows."""

    def log_density_gradient(self, x: Tensor, t: float) -> Tensor:
        """Return the gradient of ``log_density``: (B, *)."""

    def with_nodes(self, num_nodes: int) -> Self:
        """Return the same density with another number of quadrature nodes, if it uses any."""


@runtime_checkable
class NoiseModel(SteinScore, Protocol):
    """A diffusion model with discrete noise levels, whose network predicts the noise.

    Attributes:
        times: time of each level from noise to data, (T + 1,) float64.
    """

    times: Tensor

    def noise(self, x: Tensor, step: int) -> Tensor:
        """Return the noise predicted in ``x`` (B, *) at the level ``times[step]``: (B, *)."""


#: Protocol or class of densities -> (quantity, models that have it), for error messages
PROVIDERS: dict[type, tuple[str, str]] = {
    TimeScore: ("a time score", "models trained with this package"),
    SteinScore: ("a Stein score", "models trained with this package and diffusers pipelines"),
    LogDensity: ("a log density", "models trained with this package"),
    NoiseModel: ("discrete noise levels", "diffusers pipelines"),
}


def require(model: Any, protocol: type[P], user: str) -> P:
    """Return ``model`` if it implements ``protocol``.

    Args:
        protocol: a key of ``PROVIDERS``.
        user: what needs it, for the message: "estimator discrete".
    """
    if isinstance(model, protocol):
        return model
    quantity, models = PROVIDERS[protocol]
    raise UserError(f"{user} needs {quantity}, which this model lacks. Available for {models}.")

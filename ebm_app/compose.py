r"""Densities made of several models: products, powers, quotients and mixtures, at every time.

Annealed HMC draws from them, since all that it needs of a density is its score and, for an exact
accept step, its logarithm up to a constant; flows do not, as the composed p_t are not those of one
diffusion (Du et al. 2023, arXiv:2302.11552). A model of one energy (``digits-energy``) has both
from one network.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor

from ebm_app.ebm import EBM
from ebm_app.nets.protocols import LogDensity, SteinScore, require
from ebm_app.sampling.samplers import AnnealedHMC
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import Number, check_argument
from ebm_app.utils.registry import build
from ebm_app.utils.tensors import expand_like


class Composition(ABC):
    """What ``AnnealedHMC`` asks of an energy, from several.

    Args:
        energies: of one path and one shape, as ``ebm.density`` or ``ebm.density_for``.
        weights: w_k, a number for each.

    Raises:
        UserError: for no energies, energies of different paths, or another number of weights.
    """

    def __init__(self, energies: Sequence[SteinScore], weights: Sequence[float]) -> None:
        energies = check_argument(Sequence[SteinScore], "energies", energies)
        weights = check_argument(Sequence[Number], "weights", weights)
        if not energies or len(weights) != len(energies):
            raise UserError(f"give a weight for each energy, not {len(weights)}")
        self.energies, self.weights = tuple(energies), tuple(map(float, weights))
        self.path = energies[0].path
        if any(
            (type(path), vars(path)) != (type(self.path), vars(self.path))
            for path in (energy.path for energy in energies)
        ):
            raise UserError("the models to compose follow different paths: take one path's")
        self.start = max(energy.start for energy in energies)
        self.end = min(energy.end for energy in energies)

    def with_nodes(self, num_nodes: int) -> Self:
        """The same by quadrature rules of another size."""
        return type(self)([energy.with_nodes(num_nodes) for energy in self.energies], self.weights)

    def score_cost(self, t: float) -> int:
        """Return the number of network evaluations in one call of ``score``."""
        return sum(energy.score_cost(t) for energy in self.energies)

    def score(self, x: Tensor, t: float) -> Tensor:
        """Return grad_x log q_t(x) from the scores of the models: (B, *)."""
        return self.combine([energy.score(x, t) for energy in self.energies], x, t)

    def log_density_gradient(self, x: Tensor, t: float) -> Tensor:
        """Return the gradient of ``log_density``: (B, *)."""
        scores = [energy.log_density_gradient(x, t) for energy in self.with_density()]
        return self.combine(scores, x, t)

    def with_density(self) -> list[LogDensity]:
        """Return the energies, all of which must have a log density."""
        return [require(energy, LogDensity, type(self).__name__) for energy in self.energies]

    @abstractmethod
    def combine(self, scores: Sequence[Tensor], x: Tensor, t: float) -> Tensor:
        """Return grad_x log q_t(x) from grad_x log p_t^k(x) of all k."""

    @abstractmethod
    def log_density(self, x: Tensor, t: float) -> Tensor:
        """log q_t(x) up to a constant, (B, *) -> (B,), in nats."""


class Product(Composition):
    r"""q_t proportional to prod_k p_t^k(x)^w_k: with one energy a power, with a negative weight a
    quotient, "this and not that".

    >>> ebm = EBM.from_pretrained("digits-energy")
    >>> sharper = Product([ebm.density], [2.0])
    >>> x = torch.zeros(1, 1, 8, 8)
    >>> once, twice = (density.log_density(x, 0.5) for density in (ebm.density, sharper))
    >>> torch.equal(2 * once, twice)
    True

    Raises:
        UserError: besides, for weights whose sum is not above 0: noise is then no density.
    """

    def __init__(self, energies: Sequence[SteinScore], weights: Sequence[float]) -> None:
        super().__init__(energies, weights)
        if not sum(self.weights) > 0:
            raise UserError("the weights of a product must sum to more than 0")

    def combine(self, scores: Sequence[Tensor], x: Tensor, t: float) -> Tensor:
        return sum(w * score for w, score in zip(self.weights, scores, strict=True))

    def log_density(self, x: Tensor, t: float) -> Tensor:
        logs = (energy.log_density(x, t) for energy in self.with_density())
        return sum(w * log for w, log in zip(self.weights, logs, strict=True))


class Mixture(Composition):
    """q_t = sum_k w_k p_t^k(x), by the log densities of its parts.

    >>> ebm = EBM.from_pretrained("digits-energy")
    >>> half = Mixture([ebm.density, ebm.density], [0.5, 0.5])  # the model itself
    >>> x = torch.zeros(1, 1, 8, 8)
    >>> torch.equal(half.log_density(x, 0.5), ebm.density.log_density(x, 0.5))
    True

    Raises:
        UserError: besides, for weights that are not above 0.
    """

    def __init__(self, energies: Sequence[SteinScore], weights: Sequence[float]) -> None:
        super().__init__(energies, weights)
        if not min(self.weights) > 0:
            raise UserError("the weights of a mixture must be above 0")

    def _joint(self, x: Tensor, t: float) -> Tensor:
        """log w_k p_t^k(x): (K, B)."""
        logs = torch.stack([energy.log_density(x, t) for energy in self.with_density()])
        return logs + torch.tensor(self.weights).to(logs).log()[:, None]

    def combine(self, scores: Sequence[Tensor], x: Tensor, t: float) -> Tensor:
        shares = self._joint(x, t).softmax(0)
        return sum(expand_like(w, x) * score for w, score in zip(shares, scores, strict=True))

    def log_density(self, x: Tensor, t: float) -> Tensor:
        return self._joint(x, t).logsumexp(0)


def sample_composed(
    ebm: EBM, composition: Composition, num_images: int, seed: int = 0, **settings: Any
) -> Tensor:
    """Draw images (num_images, C, H, W) in [0, 1] from a composition of energies of ``ebm``, or of
    models in the same space, by annealed HMC.

    >>> ebm = EBM.from_pretrained("digits-energy")
    >>> sharper = Product([ebm.density], [2.0])
    >>> sample_composed(ebm, sharper, 2, num_temperatures=3).shape
    torch.Size([2, 1, 8, 8])

    Args:
        settings: of ``AnnealedHMC``.
    """
    composition = check_argument(Composition, "composition", composition)
    generator, x0 = check_argument(EBM, "ebm", ebm).start(num_images, seed)
    sampler = build(AnnealedHMC, "sampler", settings)
    *_, last = sampler.iterate(composition, x0, generator)
    return ebm.to_images(last.x)

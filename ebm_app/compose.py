r"""Compositions of densities: products, powers, quotients and mixtures.

Densities are composed at every time t. Annealed HMC can sample from them: it needs the score and,
for an exact accept step, the log density up to a constant. Flow samplers cannot, because the
composed densities are not the marginals of a diffusion (Du et al. 2023, arXiv:2302.11552).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor

from ebm_app.ebm import EBM
from ebm_app.nets.protocols import LogDensity
from ebm_app.sampling import AnnealedHMC
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import check_argument
from ebm_app.utils.registry import build
from ebm_app.utils.tensors import expand_like


class Composition(ABC):
    """Composition of densities with the same path and shape; implements ``LogDensity``.

    Args:
        densities: such as ``ebm.density`` or ``ebm.density_for(num, labels)``.
        weights: one number per density.

    Raises:
        UserError: for no densities, densities with different paths, or a wrong number of weights.
    """

    #: Power b such that the noise of q_t^(1/b) is that of the path
    power: float = 1.0

    def __init__(self, densities: Sequence[LogDensity], weights: Sequence[float]) -> None:
        densities = check_argument(Sequence[LogDensity], "densities", densities)
        if not densities or len(weights) != len(densities):
            raise UserError(
                f"Expected one weight per density, got {len(weights)} weights for "
                f"{len(densities)} densities."
            )
        self.densities, self.weights = tuple(densities), tuple(map(float, weights))
        self.path = densities[0].path
        if any(
            (type(density.path), vars(density.path)) != (type(self.path), vars(self.path))
            for density in densities
        ):
            raise UserError("The densities have different paths. Use models with the same path.")
        self.start = max(density.start for density in densities)
        self.end = min(density.end for density in densities)

    @abstractmethod
    def log_density(self, x: Tensor, t: float) -> Tensor:
        """Return log q_t(x) up to a constant, in nats: (B, *) -> (B,)."""

    @abstractmethod
    def coefficients(self, x: Tensor, t: float) -> Iterable[Tensor]:
        """Return the coefficient, () or (B,), of each grad log p_t^k in grad log q_t."""

    def score(self, x: Tensor, t: float) -> Tensor:
        """Return grad_x log q_t(x): (B, *)."""
        return self._combine(x, t, [density.score(x, t) for density in self.densities])

    def log_density_gradient(self, x: Tensor, t: float) -> Tensor:
        """Return the gradient of ``log_density``: (B, *)."""
        gradients = [density.log_density_gradient(x, t) for density in self.densities]
        return self._combine(x, t, gradients)

    def score_cost(self, t: float) -> int:
        """Return the number of network passes per call of ``score``."""
        return sum(density.score_cost(t) for density in self.densities)

    def at(self, rows: Tensor) -> Self:
        """Return the composition for the points with indices ``rows`` (b,) in the batch."""
        return type(self)([density.at(rows) for density in self.densities], self.weights)

    def with_nodes(self, num_nodes: int) -> Self:
        """Return the same composition with another number of quadrature nodes."""
        densities = [density.with_nodes(num_nodes) for density in self.densities]
        return type(self)(densities, self.weights)

    def _combine(self, x: Tensor, t: float, gradients: Sequence[Tensor]) -> Tensor:
        pairs = zip(self.coefficients(x, t), gradients, strict=True)
        return sum(expand_like(factor, x) * gradient for factor, gradient in pairs)


class Product(Composition):
    r"""Product q_t proportional to prod_k p_t^k(x)^w_k. A single density gives a power, a negative
    weight a quotient ("A and not B").

    Raises:
        UserError: as in ``Composition``, and for weights whose sum is not positive.

    >>> ebm = EBM.from_pretrained("digits-energy")
    >>> squared = Product([ebm.density], [2.0])
    >>> x = torch.zeros(1, 1, 8, 8)
    >>> torch.equal(squared.log_density(x, 0.5), 2 * ebm.density.log_density(x, 0.5))
    True
    """

    def __init__(self, densities: Sequence[LogDensity], weights: Sequence[float]) -> None:
        super().__init__(densities, weights)
        self.power = sum(self.weights)
        if not self.power > 0:
            raise UserError(f"Expected weights with a positive sum, got {self.power:g}.")

    def log_density(self, x: Tensor, t: float) -> Tensor:
        logs = (density.log_density(x, t) for density in self.densities)
        return sum(w * log for w, log in zip(self.weights, logs, strict=True))

    def coefficients(self, x: Tensor, t: float) -> Iterable[Tensor]:
        return torch.tensor(self.weights, dtype=torch.float64)


class Mixture(Composition):
    """Mixture q_t = sum_k w_k p_t^k(x).

    Raises:
        UserError: as in ``Composition``, and for weights that are not positive.

    >>> ebm = EBM.from_pretrained("digits-energy")
    >>> same = Mixture([ebm.density, ebm.density], [0.5, 0.5])
    >>> x = torch.zeros(1, 1, 8, 8)
    >>> torch.equal(same.log_density(x, 0.5), ebm.density.log_density(x, 0.5))
    True
    """

    def __init__(self, densities: Sequence[LogDensity], weights: Sequence[float]) -> None:
        super().__init__(densities, weights)
        if not min(self.weights) > 0:
            raise UserError(f"Expected positive weights, got {min(self.weights):g}.")

    def log_density(self, x: Tensor, t: float) -> Tensor:
        return self._joint(x, t).logsumexp(0)

    def coefficients(self, x: Tensor, t: float) -> Iterable[Tensor]:
        return self._joint(x, t).softmax(0)

    def _joint(self, x: Tensor, t: float) -> Tensor:
        """Return log w_k p_t^k(x): (K, B)."""
        logs = torch.stack([density.log_density(x, t) for density in self.densities])
        return logs + torch.tensor(self.weights).to(logs).log()[:, None]


def sample_composed(
    ebm: EBM, composition: Composition, num_images: int, seed: int = 0, **settings: Any
) -> Tensor:
    """Draw images (num_images, C, H, W) in [0, 1] from a composition by annealed HMC. ``ebm`` is
    one of the composed models, or a model in the same space.

    >>> ebm = EBM.from_pretrained("digits-energy")
    >>> squared = Product([ebm.density], [2.0])
    >>> sample_composed(ebm, squared, 2, num_temperatures=3).shape
    torch.Size([2, 1, 8, 8])

    Args:
        settings: settings of ``AnnealedHMC``.
    """
    composition = check_argument(Composition, "composition", composition)
    generator, x0 = check_argument(EBM, "ebm", ebm).start(num_images, seed)
    power = composition.power
    root = type(composition)(composition.densities, [w / power for w in composition.weights])
    sampler = build(AnnealedHMC, "sampler", settings)
    *_, last = replace(sampler, power=power * sampler.power).iterate(root, x0, generator)
    return ebm.to_images(last.x)

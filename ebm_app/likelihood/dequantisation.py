r"""Dequantisation: map grey levels to points of a density on R^D.

Each level k has a cell. For any density q(y | k) on that cell, Jensen's inequality bounds the
probability of the cells of an image under a normalised density p_t,

    log P(k) >= E_{y ~ q}[log p_t(y) - log q(y | k)],

with equality if p_t is proportional to q inside the cell. A model is therefore trained on points
for which the bound of its own dequantiser is tight, and evaluated with that dequantiser. All
values are in nats.
"""

import math
from abc import ABC, abstractmethod
from typing import Annotated, NamedTuple

import torch
from annotated_types import Gt, Le
from torch import Tensor

from ebm_app.data.levels import dequantise
from ebm_app.nets.energy import EnergyModel
from ebm_app.nets.model import ScoreModel
from ebm_app.paths import GaussianPath, require_one_sided
from ebm_app.spaces import Space
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import Float, configuration
from ebm_app.utils.tensors import expand_like

SQRT2 = math.sqrt(2)
#: Standard deviation of the noise of a learned decoder, in levels. With 1 instead of 0.7, the
#: bound on validation images falls from 0.992 to 0.987 bits for an energy network of MNIST, but
#: rises from 1.642 to 1.663 for ``digits``.
DECODER_NOISE = 0.7
#: Truncation in standard deviations; beyond 8 it has no effect in float64.
Tau = Annotated[Float, Gt(0), Le(8)]


class Cells(NamedTuple):
    """Cells of the grey levels 0..num_levels - 1 in the space that images are mapped to."""

    num_levels: int
    space: Space


class Dequantised(NamedTuple):
    """A draw of a dequantiser.

    Attributes:
        y: points (B, *) in the space of the path.
        t: time at which p_t(y) is evaluated.
        negative_log_q: -log q(y | k) per dimension, (B, *) float64, in nats.
    """

    y: Tensor
    t: float
    negative_log_q: Tensor


class Dequantiser(ABC):
    """Density q on the cells of grey levels. Subclasses are frozen dataclasses of settings."""

    def time(self, cells: Cells, path: GaussianPath, end: float = 1.0) -> float:
        """Return the time at which p_t is evaluated, by default ``end``, the model's last time."""
        return end

    @abstractmethod
    def training_points(self, levels: Tensor, cells: Cells, noise: Tensor) -> Tensor:
        """Return training data x1 (B, *) for levels (B, *), given uniform ``noise`` (B, *) in
        [0, 1)."""

    @abstractmethod
    def points(
        self, levels: Tensor, cells: Cells, noise: Tensor, model: ScoreModel
    ) -> Dequantised:
        """Draw from q for levels (B, *), with uniform ``noise`` (B, *) in [0, 1)."""


@configuration
class UniformDequantisation(Dequantiser):
    """Uniform noise on the cell: y = encode((k + u) / L), evaluated at the model's last time
    1 - t_margin. There p_1 is smoothed across cell edges, which costs bits that grow with it.

    Source: Theis et al. 2016, arXiv:1511.01844, section 3.1.
    """

    def training_points(self, levels: Tensor, cells: Cells, noise: Tensor) -> Tensor:
        return cells.space.encode(dequantise(levels, cells.num_levels, noise))

    def points(
        self, levels: Tensor, cells: Cells, noise: Tensor, model: ScoreModel
    ) -> Dequantised:
        x = dequantise(levels, cells.num_levels, noise)
        y, log_abs_det = cells.space.encode_with_log_abs_det(x)
        share = log_abs_det / x[0].numel() - math.log(cells.num_levels)
        return Dequantised(y, model.end, share.reshape(-1, *(1,) * (y.ndim - 1)).expand(y.shape))


class CentreDequantiser(Dequantiser):
    """Density q around the centre c_k of the cell. The centres are the training points."""

    def training_points(self, levels: Tensor, cells: Cells, noise: Tensor) -> Tensor:
        return cells.space.encode((levels.to(noise.dtype) + 0.5) / cells.num_levels)

    def around(
        self, centre: Tensor, e: Tensor, path: GaussianPath, t: float
    ) -> tuple[Tensor, float]:
        """Return y = alpha_t c + sqrt(v_t) e (B, *), and log sqrt(2 pi v_t)."""
        time = torch.tensor(t, dtype=torch.float64)
        alpha, sigma = path.alpha(time), path.variance(time).sqrt()
        y = expand_like(alpha, centre) * centre + expand_like(sigma, centre) * e.to(centre.dtype)
        return y, math.log(sigma.item()) + 0.5 * math.log(2 * math.pi)

    def normal_points(
        self, levels: Tensor, cells: Cells, noise: Tensor, model: ScoreModel
    ) -> tuple[Tensor, Tensor, float]:
        """Return e ~ N(0, I) and, at the last time, the values of ``around``."""
        centre = self.training_points(levels, cells, noise)
        e = torch.special.ndtri(noise.double().clamp_min(2**-26))
        return e, *self.around(centre, e, model.path, model.end)

    def scale_of(self, space: Space, path: GaussianPath) -> float:
        """Return the total width of all cells at t = 1, for a space that only scales pixels."""
        if space.scale is None:
            raise UserError(
                f"{type(space).__name__} stretches cells unequally. Use uniform dequantisation."
            )
        require_one_sided(path)
        return space.scale


@configuration
class TruncatedNormal(CentreDequantiser):
    r"""Truncated normal noise: y = alpha_t c_k + sqrt(v_t) e, where c_k is the centre of the cell
    and e a standard normal truncated to [-tau, tau].

    It is evaluated at the time t where the cell's half-width is tau sqrt(v_t). If the data x1 are
    centres, p_t consists of such normals up to their tails beyond tau, so it is not smoothed. For
    a model trained on uniform points, the bound holds but is loose by log(2 tau / sqrt(2 pi e))
    nats, about 0.54 bits, per dim.

    Source: Zheng et al. 2023, arXiv:2305.03935, section 4.1.

    Raises (when called):
        UserError: for a space that stretches cells unequally, or a model that ends before t.
    """

    tau: Tau = 3.0

    def points(
        self, levels: Tensor, cells: Cells, noise: Tensor, model: ScoreModel
    ) -> Dequantised:
        t = self.time(cells, model.path, model.end)
        centre = self.training_points(levels, cells, noise)
        # Phi(e) is uniform between the truncation points; erfinv is accurate in both tails
        mass = math.erf(self.tau / SQRT2)
        e = SQRT2 * torch.erfinv(mass * (2 * noise.double() - 1))
        y, log_scale = self.around(centre, e, model.path, t)
        return Dequantised(y, t, 0.5 * e.square() + (log_scale + math.log(mass)))

    def time(self, cells: Cells, path: GaussianPath, end: float = 1.0) -> float:
        """Return the time t with alpha_t w = tau sqrt(v_t), where w is a cell's half-width."""
        half_width = self.scale_of(cells.space, path) / (2 * cells.num_levels)
        t = path.time_of_ratio(half_width / self.tau)
        if t > end:
            raise UserError(
                f"Truncated-normal dequantisation with tau {self.tau} evaluates the model at t = "
                f"{t}, after its last time {end}. Use a smaller tau."
            )
        return t


def log_evidence(levels: Tensor, e: Tensor, ratio: float, num_levels: int) -> Tensor:
    r"""Return log sum_j exp(-(k + ratio e - j)^2 / (2 ratio^2)) for levels k and noise e (B, *):
    (B, *) float64. The sum omits levels j more than 9 standard deviations away."""
    e, levels = e.double(), levels.long()
    reach = min(num_levels - 1, math.ceil(ratio * (9 + e.abs().max().item())))
    total = torch.full_like(e, -math.inf)
    for step in range(-reach, reach + 1):
        is_level = (levels >= -step) & (levels < num_levels - step)
        term = -(e - step / ratio).square() / 2
        total = torch.logaddexp(total, torch.where(is_level, term, -math.inf))
    return total


@configuration
class Decoder(CentreDequantiser):
    r"""Normal noise with a decoder: y = alpha_t c_k + sqrt(v_t) e, where c_k is the centre of the
    cell and e ~ N(0, I), at the model's last time t. The decoder P(k | y), proportional to
    exp(-(y - alpha_t c_k)^2 / (2 v_t)), recovers the level:

        log P(k) >= E[log p_t(y) - log q(y | k) + log P(k | y)].

    The last two terms use the same y, where e^2 cancels:

        log P(k | y) / q(y | k) = log(2 pi v_t) / 2 - log sum_j exp(-(y - alpha_t c_j)^2 / 2 v_t).

    Source: Kingma et al. 2021, arXiv:2107.00630, section 3.3.

    Raises (when called):
        UserError: for a space that stretches cells unequally.
    """

    def points(
        self, levels: Tensor, cells: Cells, noise: Tensor, model: ScoreModel
    ) -> Dequantised:
        e, y, log_scale = self.normal_points(levels, cells, noise, model)
        ratio = self.ratio(cells, model.path, model.end)
        evidence = log_evidence(levels, e, ratio, cells.num_levels)
        return Dequantised(y, model.end, log_scale - evidence)

    def ratio(self, cells: Cells, path: GaussianPath, t: float) -> float:
        """Return the standard deviation of y in units of the distance between levels."""
        scale, time = self.scale_of(cells.space, path), torch.tensor(t, dtype=torch.float64)
        return (path.variance(time).sqrt() / path.alpha(time)).item() * cells.num_levels / scale


@configuration
class LearnedDecoder(CentreDequantiser):
    r"""Normal noise with a decoder P(k | y) of the model, which uses all of y:

        log P(k) >= E[log p_t(y) - log q(y | k) + log P(k | y)].

    The bound is tight if the pixels are independent given y. It thus allows more noise than
    ``Decoder``, and a p_t that is easier to learn.

    Raises (when called):
        UserError: for a space that stretches cells unequally, or a model without a decoder.
    """

    def points(
        self, levels: Tensor, cells: Cells, noise: Tensor, model: ScoreModel
    ) -> Dequantised:
        if not (isinstance(model, EnergyModel) or model.has_variance):
            raise UserError(
                "The learned decoder needs a model that predicts posterior moments. Use another "
                "dequantisation."
            )
        e, y, log_scale = self.normal_points(levels, cells, noise, model)
        decoded = model.level_log_prob(levels, y, model.end)
        return Dequantised(y, model.end, 0.5 * e.square() + log_scale + decoded)

    def last_time(self, cells: Cells, path: GaussianPath) -> float:
        """Return the time with noise of ``DECODER_NOISE`` levels."""
        width = self.scale_of(cells.space, path) / cells.num_levels
        return path.time_of_ratio(DECODER_NOISE * width)


#: Name of ``LearnedDecoder``, the dequantisation of energy networks
LEARNED_DECODER = "learned_decoder"
DEQUANTISERS: dict[str, type[Dequantiser]] = {
    "uniform": UniformDequantisation,
    "truncated_normal": TruncatedNormal,
    "decoder": Decoder,  # for denoisers
    LEARNED_DECODER: LearnedDecoder,
}
#: Values of ``--dequantisation`` of a time score model
TRAINABLE = ("uniform", "truncated_normal")

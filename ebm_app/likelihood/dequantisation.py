r"""From integer levels to points of a density, so that a density on R^D bounds a probability.

A level k owns a cell. For any density q(y | k) on that cell, Jensen's inequality bounds the
probability that a normalised density p_t gives to the cells of an image,

    log P(k) >= E_{y ~ q}[log p_t(y) - log q(y | k)],

with equality where p_t is proportional to q inside the cell. A model is therefore trained on the
points for which its own dequantiser is tight, and evaluated with that dequantiser. All values are
in nats.
"""

import math
from abc import ABC, abstractmethod
from functools import lru_cache
from typing import Annotated, ClassVar, NamedTuple

import torch
from annotated_types import Gt, Le
from torch import Tensor

from ebm_app.data.levels import dequantise
from ebm_app.nets.protocols import Marginals
from ebm_app.paths import GaussianPath, require_one_sided
from ebm_app.spaces import Space
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import Draws, Float, Seed, check_argument, configuration
from ebm_app.utils.tensors import expand_like

#: uniform numbers that are held at once, 4 GB
MAX_NOISE = 2**30
SQRT2 = math.sqrt(2)
#: beyond 8 standard deviations float64 cannot tell a truncation from none
Tau = Annotated[Float, Gt(0), Le(8)]


class Dequantised(NamedTuple):
    """Points ``y`` (B, *) of the path's space, the time ``t`` at which p_t is to be read there,
    and -log q(y | k) by component, (B, *) float64 in nats."""

    y: Tensor
    t: float
    negative_log_q: Tensor


class Dequantiser(ABC):
    """A density q on the cells of the levels, and the training points that suit it; a subclass is
    a configuration of its settings. ``note`` says in one sentence what q is."""

    note: ClassVar[str]

    def time(self, num_levels: int, space: Space, path: GaussianPath, end: float = 1.0) -> float:
        """The time t at which p_t is read at the points; ``end``, the last time of the model,
        unless a subclass says otherwise."""
        return end

    @abstractmethod
    def training_points(
        self, levels: Tensor, num_levels: int, space: Space, noise: Tensor
    ) -> Tensor:
        """x1 (B, *) of a path for levels (B, *) and uniform ``noise`` (B, *) in [0, 1)."""

    @abstractmethod
    def points(
        self, levels: Tensor, num_levels: int, space: Space, noise: Tensor, density: Marginals
    ) -> Dequantised:
        """A draw from q for levels (B, *), by uniform ``noise`` (B, *) in [0, 1)."""


@configuration
class UniformDequantisation(Dequantiser):
    """y = encode((k + u) / L), read at the model's last time (Theis et al. 2016, section 3.1,
    arXiv:1511.01844). Stopping at 1 - eps smooths p_1 over the edges of the cells, which costs
    bits that grow with eps."""

    note: ClassVar[str] = "uniform on the cell of a level, read at the model's last time"

    def training_points(
        self, levels: Tensor, num_levels: int, space: Space, noise: Tensor
    ) -> Tensor:
        return space.encode(dequantise(levels, num_levels, noise))

    def points(
        self, levels: Tensor, num_levels: int, space: Space, noise: Tensor, density: Marginals
    ) -> Dequantised:
        x = dequantise(levels, num_levels, noise)
        y, log_abs_det = space.encode_with_log_abs_det(x)
        share = log_abs_det / x[0].numel() - math.log(num_levels)
        return Dequantised(y, density.end, share.reshape(-1, *(1,) * (y.ndim - 1)).expand(y.shape))


class CentreDequantiser(Dequantiser):
    """A q about the centres c_k of the cells, which are the points that a model is trained on."""

    def training_points(
        self, levels: Tensor, num_levels: int, space: Space, noise: Tensor
    ) -> Tensor:
        return space.encode((levels.to(noise.dtype) + 0.5) / num_levels)

    def around(
        self, centre: Tensor, e: Tensor, path: GaussianPath, t: float
    ) -> tuple[Tensor, float]:
        """y = alpha_t c + sqrt(v_t) e (B, *), and log sqrt(2 pi v_t)."""
        time = torch.tensor(t, dtype=torch.float64)
        alpha, sigma = path.alpha(time), path.variance(time).sqrt()
        y = expand_like(alpha, centre) * centre + expand_like(sigma, centre) * e.to(centre.dtype)
        return y, math.log(sigma.item()) + 0.5 * math.log(2 * math.pi)

    def scale_of(self, space: Space, path: GaussianPath) -> float:
        """The width of all cells together at t = 1.

        Raises:
            UserError: for a space that stretches the cells unequally, and a two-sided path.
        """
        if space.scale is None:
            raise UserError(
                f"{type(space).__name__} stretches the cells unequally: use uniform dequantisation"
            )
        require_one_sided(path)
        return space.scale


@configuration
class TruncatedNormal(CentreDequantiser):
    r"""y = alpha_t c_k + sqrt(v_t) e, with c_k the centre of the cell and e a standard normal
    truncated to [-tau, tau], read at the time t where the cell's half-width is tau sqrt(v_t).

    A path whose x1 are the centres has there, up to the tail beyond tau, just these cells: no
    smoothing is left, and no time after t is needed. For a model trained on uniform points the
    bound holds, but is loose by log(2 tau / sqrt(2 pi e)) nats, about 0.54 bits, per dim.

    Source: Zheng et al. 2023, arXiv:2305.03935, section 4.1.

    Raises:
        UserError: for tau outside (0, 8]; by its methods for a space that stretches the cells
            unequally, a two-sided path, or a model that ends before t.
    """

    tau: Tau = 3.0

    note: ClassVar[str] = (
        "a normal truncated to the cell of a level, read where half a cell is tau standard "
        "deviations; loose by about half a bit per dim for a model that was not trained with it"
    )

    def points(
        self, levels: Tensor, num_levels: int, space: Space, noise: Tensor, density: Marginals
    ) -> Dequantised:
        t = self.time(num_levels, space, density.path, density.end)
        centre = self.training_points(levels, num_levels, space, noise)
        # Phi(e) is uniform between the truncations; symmetric in u, so that no tail loses digits
        mass = math.erf(self.tau / SQRT2)
        e = SQRT2 * torch.erfinv(mass * (2 * noise.double() - 1))
        y, log_scale = self.around(centre, e, density.path, t)
        return Dequantised(y, t, 0.5 * e.square() + (log_scale + math.log(mass)))

    def time(self, num_levels: int, space: Space, path: GaussianPath, end: float = 1.0) -> float:
        """The time t with alpha_t w = tau sqrt(v_t), w the half-width of a cell at t = 1."""
        half_width = self.scale_of(space, path) / (2 * num_levels)
        t = path.time_of_ratio(half_width / self.tau)
        if t > end:
            raise UserError(
                f"the truncated-normal bound at tau {self.tau} is read at t = {t}, but the model "
                f"ends at {end}: lower tau"
            )
        return t


@lru_cache(maxsize=64)
def decoder_log_prob(ratio: float, num_levels: int) -> Tensor:
    r"""E[log P(k | c_k + ratio e)] in nats over e ~ N(0, 1), for every level k: (L,) float64.

    The levels lie at c_k = 0, 1, ..., L - 1, and P(k | z) is proportional to
    exp(-(z - c_k)^2 / (2 ratio^2)). By the trapezoidal rule on [-9, 9].
    """
    e = torch.linspace(-9, 9, 721, dtype=torch.float64)
    weights = torch.softmax(-e.square() / 2, 0)
    levels = torch.arange(num_levels, dtype=torch.float64)
    found = []
    for k in range(num_levels):
        distance = (k + ratio * e[:, None] - levels) / ratio
        log_prob = torch.log_softmax(-distance.square() / 2, 1)[:, k]
        found.append((weights * log_prob).sum())
    return torch.stack(found)


@configuration
class Decoder(CentreDequantiser):
    r"""y = alpha_t c_k + sqrt(v_t) e with c_k the centre of the cell and e ~ N(0, I), read at the
    model's last time t; the level is told from y by P(k | y) proportional to
    exp(-(y - alpha_t c_k)^2 / (2 v_t)),

        log P(k) >= E[log p_t(y) - log q(y | k) + log P(k | y)].

    The mean of log P(k | y) is that of ``decoder_log_prob``, exact in place of its draw.

    Source: Kingma et al. 2021, arXiv:2107.00630, section 3.3.

    Raises:
        UserError: by its methods for a space that stretches the cells unequally, and on a
            two-sided path.
    """

    note: ClassVar[str] = (
        "a normal about the level, from which a decoder tells the level, at the model's last time"
    )

    def points(
        self, levels: Tensor, num_levels: int, space: Space, noise: Tensor, density: Marginals
    ) -> Dequantised:
        centre = self.training_points(levels, num_levels, space, noise)
        e = torch.special.ndtri(noise.double().clamp_min(2**-26))
        y, log_scale = self.around(centre, e, density.path, density.end)
        decoded = self.log_prob(levels, num_levels, space, density.path, density.end)
        return Dequantised(y, density.end, 0.5 * e.square() + log_scale + decoded)

    def log_prob(
        self, levels: Tensor, num_levels: int, space: Space, path: GaussianPath, t: float
    ) -> Tensor:
        """E[log P(k | y)] in nats at the time t, (B, *) float64."""
        scale, time = self.scale_of(space, path), torch.tensor(t, dtype=torch.float64)
        ratio = (path.variance(time).sqrt() / path.alpha(time)).item()
        table = decoder_log_prob(ratio * num_levels / scale, num_levels)
        return table.to(levels.device)[levels.long()]


DEQUANTISERS: dict[str, type[Dequantiser]] = {
    "uniform": UniformDequantisation,
    "truncated_normal": TruncatedNormal,
    "decoder": Decoder,
}


def dequantisation_noise(repeats: int, levels: Tensor, seed: int) -> Tensor:
    """Uniform numbers (repeats, B, C, H, W), drawn on the CPU: the same on every device.

    Raises:
        UserError: for a number of repeats or a seed out of range, or more numbers than the memory
            of most machines holds.
    """
    repeats, seed = check_argument(Draws, "repeats", repeats), check_argument(Seed, "seed", seed)
    if repeats * levels.shape.numel() > MAX_NOISE:
        most = MAX_NOISE // levels.shape.numel()
        raise UserError(
            f"{repeats} draws of {len(levels)} images do not fit the memory: draw at most {most} "
            "times, or take fewer images"
        )
    return torch.rand((repeats, *levels.shape), generator=torch.Generator().manual_seed(seed))

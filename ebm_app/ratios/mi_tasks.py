"""Distributions whose coordinates are mapped, and the named tasks: the paper's four, the benchmark
of Czyz et al. (arXiv:2306.11078) and one with a discrete X.

>>> task = MI_TASKS["bimodal_1x1"]
>>> x, y = task.sample(1_000, torch.Generator().manual_seed(0))
>>> x.shape, round(task.mutual_information, 4)
(torch.Size([1000, 1]), 0.4133)
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy
import torch
from torch import Generator, Tensor

from ebm_app.io.registry import choose
from ebm_app.ratios.mi_discrete import DiscreteUniform
from ebm_app.ratios.mi_distributions import AdditiveUniform, StudentT
from ebm_app.ratios.mi_embeddings import Spiral, SwissRoll
from ebm_app.ratios.mi_gaussians import BlockGaussian, CorrelatedNormal, DenseNormal
from ebm_app.ratios.mi_task import MITask

Map = Callable[[Tensor], Tensor]


def normal_cdf(x: Tensor) -> Tensor:
    """Phi(x): ``(*) -> (*)``. Its lower tail keeps its digits, which torch.special.ndtr loses."""
    return torch.erfc(-x / math.sqrt(2)) / 2


def mixture_quantile(z: Tensor, weight: float, low_mean: float, high_mean: float) -> Tensor:
    """The q with w Phi(q - m) + (1 - w) Phi(q - m') = Phi(z), for means m <= m': ``(*) -> (*)``.

    It maps N(0, 1) to the mixture w N(m, 1) + (1 - w) N(m', 1) and is increasing.
    """
    from scipy.optimize.elementwise import find_root  # half a second to import

    values = z.double().cpu().numpy()
    sign = np.where(values > 0, -1.0, 1.0)  # above 0 the upper tails are compared

    def excess(q: np.ndarray, sign: np.ndarray, target: np.ndarray) -> np.ndarray:
        lower, upper = (scipy.special.ndtr(sign * (q - mean)) for mean in (low_mean, high_mean))
        return weight * lower + (1 - weight) * upper - target

    bracket = (values + low_mean - 1, values + high_mean + 1)
    found = find_root(excess, bracket, args=(sign, scipy.special.ndtr(sign * values)))
    return torch.from_numpy(found.x).to(z)


def half_cube(x: Tensor) -> Tensor:
    """x sqrt|x|: ``(*) -> (*)``."""
    return x * x.abs().sqrt()


def wiggly_x(x: Tensor) -> Tensor:
    """x + 0.4 sin x + 0.2 sin(1.7 x + 1) + 0.03 sin(3.3 x - 2.5): ``(*) -> (*)``."""
    return x + 0.4 * x.sin() + 0.2 * (1.7 * x + 1).sin() + 0.03 * (3.3 * x - 2.5).sin()


def wiggly_y(y: Tensor) -> Tensor:
    """y - 0.4 sin(0.4 y) + 0.17 sin(1.3 y + 3.5) + 0.02 sin(4.3 y - 2.5): ``(*) -> (*)``."""
    sines = -0.4 * (0.4 * y).sin() + 0.17 * (1.3 * y + 3.5).sin() + 0.02 * (4.3 * y - 2.5).sin()
    return y + sines


#: Increasing maps, of the coordinates of X and of those of Y.
TRANSFORMS: dict[str, tuple[Map, Map]] = {
    "asinh": (torch.asinh, torch.asinh),
    "bimodal": (
        lambda x: mixture_quantile(x, 0.3, 0.0, 5.0),
        lambda y: mixture_quantile(y, 0.5, -1.0, 3.0),
    ),
    "half_cube": (half_cube, half_cube),
    "normal_cdf": (normal_cdf, normal_cdf),
    "wiggly": (wiggly_x, wiggly_y),
}


@dataclass(frozen=True)
class Transformed(MITask):
    r"""A task with an increasing map on every coordinate, which leaves I as it is.

    The maps of arXiv:2306.11078: "asinh" shortens tails, "half_cube" lengthens them, "normal_cdf"
    makes N(0, 1) uniform, "bimodal" makes of it 0.3 N(0, 1) + 0.7 N(5, 1) in X and
    0.5 N(-1, 1) + 0.5 N(3, 1) in Y, and "wiggly" adds sines.

    Raises:
        UserError: for a ``name`` that is not a key of ``TRANSFORMS``.
    """

    base: MITask
    name: str

    def __post_init__(self) -> None:
        choose("transform", self.name, TRANSFORMS)

    @property
    def dim_x(self) -> int:
        """That of the base."""
        return self.base.dim_x

    @property
    def dim_y(self) -> int:
        """That of the base."""
        return self.base.dim_y

    @property
    def mutual_information(self) -> float:
        """That of the base, in nats."""
        return self.base.mutual_information

    def draw(self, num: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """Draws of the base, mapped."""
        x, y = self.base.draw(num, generator)
        map_x, map_y = TRANSFORMS[self.name]
        return map_x(x), map_y(y)


_NORMAL = CorrelatedNormal((0.75,), 1, 1)
_SPARSE = {d: CorrelatedNormal((0.8, 0.8), d, d) for d in (2, 3, 5, 25)}
_STUDENT = {
    f"student_{d}x{d}_df{df}": StudentT((), df, d, d)
    for d, df in ((1, 1), (2, 1), (2, 2), (3, 2), (3, 3), (5, 2), (5, 3))
}
_MAPPED = {
    f"{name}_{d}x{d}": Transformed(_SPARSE[d], name)
    for name in ("half_cube", "normal_cdf")
    for d in (3, 5, 25)
}
_SPIRALS = {
    **{f"spiral_{d}x{d}": Spiral(_SPARSE[d]) for d in (3, 5, 25)},
    **{f"spiral_{n}": Spiral(task) for n, task in _MAPPED.items() if task.name == "normal_cdf"},
}
_BMI: dict[str, MITask] = {
    "normal_1x1": _NORMAL,
    **{f"{name}_1x1": Transformed(_NORMAL, name) for name in TRANSFORMS if name != "asinh"},
    **{f"additive_uniform_{noise}": AdditiveUniform(noise) for noise in (0.1, 0.75)},
    "swiss_roll_2x1": SwissRoll(Transformed(_NORMAL, "normal_cdf")),
    **{f"dense_{d}x{d}": DenseNormal(0.5, d, d) for d in (2, 3, 5, 25, 50)},
    **{f"sparse_{d}x{d}": task for d, task in _SPARSE.items()},
    **_MAPPED,
    **_SPIRALS,
    **_STUDENT,
    **{
        f"asinh_{name}": Transformed(_STUDENT[name], "asinh")
        for name in ("student_1x1_df1", "student_2x2_df1", "student_3x3_df2", "student_5x5_df2")
    },
}

#: The names of the forty tasks of arXiv:2306.11078.
BMI_TASKS: tuple[str, ...] = tuple(_BMI)

#: The paper's four, those forty and a discrete one, by distribution and dimensions.
MI_TASKS: dict[str, MITask] = {
    **{f"block_gaussian_{dim}": BlockGaussian(dim) for dim in (40, 80, 160, 320)},
    **_BMI,
    "discrete_uniform_4": DiscreteUniform(4),
}

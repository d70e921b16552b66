"""The forty distributions of Czyz et al., NeurIPS 2023, arXiv:2306.11078.

Those of the package, one more Gaussian, and maps that leave the mutual information as it is: of
single coordinates, and the spiral and the Swiss roll, which mix them.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import scipy
import torch
from torch import Generator, Tensor

from ebm_app.tabular.known import (
    KnownInformation,
    Pairs,
    additive_uniform,
    correlated_normal,
    standard_normal,
    student_t,
)

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


#: Increasing maps, of the coordinates of X and of those of Y: "asinh" shortens tails, "half_cube"
#: lengthens them, "normal_cdf" makes N(0, 1) uniform, "bimodal" makes of it 0.3 N(0, 1) +
#: 0.7 N(5, 1) in X and 0.5 N(-1, 1) + 0.5 N(3, 1) in Y, and "wiggly" adds sines
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


def dense_normal(rho: float, dim_x: int, dim_y: int) -> KnownInformation:
    r"""Gaussian with variances 1 and the same correlation rho >= 0 between any two coordinates.

    With |R_k| = (1 - rho)^(k - 1) (1 + (k - 1) rho) the determinant for k coordinates, m = dim_x
    and n = dim_y, I = 1/2 log |R_m| |R_n| / |R_{m + n}|.
    """

    def draw(num: int, generator: Generator) -> Pairs:
        shared = math.sqrt(rho) * standard_normal(num, 1, generator)
        noise = math.sqrt(1 - rho) * standard_normal(num, dim_x + dim_y, generator)
        x, y = (shared + noise).split([dim_x, dim_y], 1)
        return x, y

    logs = sum(math.log1p((k - 1) * rho) for k in (dim_x, dim_y))
    both = math.log1p((dim_x + dim_y - 1) * rho) + math.log1p(-rho)
    return KnownInformation(dim_x, dim_y, 0.5 * (logs - both), draw)


def mapped(base: KnownInformation, map_x: Map, map_y: Map) -> KnownInformation:
    """A task with bijections of X (N, dx) and of Y (N, dy)."""

    def draw(num: int, generator: Generator) -> Pairs:
        x, y = base.draw(num, generator)
        return map_x(x), map_y(y)

    return replace(base, draw=draw)


def transformed(base: KnownInformation, name: str) -> KnownInformation:
    """A task with the maps of ``TRANSFORMS`` on every coordinate."""
    return mapped(base, *TRANSFORMS[name])


def swiss_roll(base: KnownInformation) -> KnownInformation:
    r"""X of a task with x in [0, 1] is rolled up in the plane; Y stays as it is.

        x -> (t cos t, t sin t) / 21,   t = 3/2 pi (1 + 2 x)

    The norm of the image is t / 21: the map is injective.
    """

    def roll(x: Tensor) -> Tensor:
        t = 1.5 * math.pi * (1 + 2 * x)
        return torch.cat([t * t.cos(), t * t.sin()], 1) / 21

    return replace(mapped(base, roll, lambda y: y), dim_x=2)


def spiral(x: Tensor, first: int) -> Tensor:
    r"""x (N, d) with its coordinates ``first`` and ``first`` + 1 rotated by |x|^2 / d: (N, d).

    Norms stay, so that the map is a bijection.
    """
    angle = x.square().mean(1)
    cos, sin = angle.cos(), angle.sin()
    a, b = x[:, first], x[:, first + 1]
    turned = x.clone()
    turned[:, first] = cos * a - sin * b
    turned[:, first + 1] = sin * a + cos * b
    return turned


def spirals(base: KnownInformation) -> KnownInformation:
    """A task with the first two coordinates of X and the second and third of Y rotated."""
    return mapped(base, lambda x: spiral(x, 0), lambda y: spiral(y, 1))


_NORMAL = correlated_normal((0.75,), 1, 1)
_SPARSE = {d: correlated_normal((0.8, 0.8), d, d) for d in (2, 3, 5, 25)}
_STUDENT = {
    f"student_{d}x{d}_df{df}": student_t((), df, d, d)
    for d, df in ((1, 1), (2, 1), (2, 2), (3, 2), (3, 3), (5, 2), (5, 3))
}
_CUBES = {f"half_cube_{d}x{d}": transformed(_SPARSE[d], "half_cube") for d in (3, 5, 25)}
_UNIFORM = {f"normal_cdf_{d}x{d}": transformed(_SPARSE[d], "normal_cdf") for d in (3, 5, 25)}

TASKS: dict[str, KnownInformation] = {
    "normal_1x1": _NORMAL,
    **{f"{name}_1x1": transformed(_NORMAL, name) for name in TRANSFORMS if name != "asinh"},
    **{f"additive_uniform_{noise}": additive_uniform(noise) for noise in (0.1, 0.75)},
    "swiss_roll_2x1": swiss_roll(transformed(_NORMAL, "normal_cdf")),
    **{f"dense_{d}x{d}": dense_normal(0.5, d, d) for d in (2, 3, 5, 25, 50)},
    **{f"sparse_{d}x{d}": task for d, task in _SPARSE.items()},
    **_CUBES,
    **_UNIFORM,
    **{f"spiral_{d}x{d}": spirals(_SPARSE[d]) for d in (3, 5, 25)},
    **{f"spiral_{name}": spirals(task) for name, task in _UNIFORM.items()},
    **_STUDENT,
    **{
        f"asinh_{name}": transformed(_STUDENT[name], "asinh")
        for name in ("student_1x1_df1", "student_2x2_df1", "student_3x3_df2", "student_5x5_df2")
    },
}

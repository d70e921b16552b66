"""Pairs (X, Y) mapped by injections which mix coordinates: the spiral and the Swiss roll of Czyz
et al. (arXiv:2306.11078)."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor

from ebm_app.io.errors import UserError
from ebm_app.ratios.mi_task import MITask


@dataclass(frozen=True)
class SwissRoll(MITask):
    r"""X of a task with x in [0, 1] is rolled up in the plane; Y stays as it is.

        x -> (t cos t, t sin t) / 21,   t = 3/2 pi (1 + 2 x)

    The norm of the image is t / 21: the map is injective and leaves I as it is.

    Raises:
        UserError: for a base whose X has more than one coordinate; by ``draw``, for an x outside
            [0, 1].
    """

    base: MITask
    dim_x: ClassVar[int] = 2

    def __post_init__(self) -> None:
        if self.base.dim_x != 1:
            raise UserError(
                f"X has {self.base.dim_x} dimensions: roll up a task whose X has one dimension"
            )

    @property
    def dim_y(self) -> int:
        """That of the base."""
        return self.base.dim_y

    @property
    def mutual_information(self) -> float:
        """That of the base, in nats."""
        return self.base.mutual_information

    def draw(self, num: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """Draws of the base, x rolled up."""
        x, y = self.base.draw(num, generator)
        if not ((x >= 0) & (x <= 1)).all():
            raise UserError(
                "an x to be rolled up is outside [0, 1]: map the task by 'normal_cdf' first"
            )
        t = 1.5 * math.pi * (1 + 2 * x)
        return torch.cat([t * t.cos(), t * t.sin()], 1) / 21, y


def spiral(x: Tensor, first: int) -> Tensor:
    """x (N, d) with its coordinates ``first`` and ``first`` + 1 rotated by |x|^2 / d: (N, d)."""
    angle = x.square().mean(1)
    cos, sin = angle.cos(), angle.sin()
    a, b = x[:, first], x[:, first + 1]
    turned = x.clone()
    turned[:, first] = cos * a - sin * b
    turned[:, first + 1] = sin * a + cos * b
    return turned


@dataclass(frozen=True)
class Spiral(MITask):
    r"""A task with two coordinates of X and two of Y rotated by an angle which grows outwards.

        x -> exp(G |x|^2 / d) x,   d the dimension

    with G the generator of the rotation of the first and second coordinates for X, and of the
    second and third for Y. Norms stay, so that the map is a bijection and leaves I as it is.

    Raises:
        UserError: for a base of dim_x below 2 or dim_y below 3.
    """

    base: MITask

    def __post_init__(self) -> None:
        if self.dim_x < 2 or self.dim_y < 3:
            raise UserError(
                f"X has {self.dim_x} dimensions and Y has {self.dim_y}: a spiral turns two "
                "coordinates of X and the second and third of Y, give a task which has them"
            )

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
        """Draws of the base, rotated."""
        x, y = self.base.draw(num, generator)
        return spiral(x, 0), spiral(y, 1)

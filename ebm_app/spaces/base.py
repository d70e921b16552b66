"""What a space is: a bijection from images in [0, 1] to the space of the path."""

from abc import ABC, abstractmethod

from torch import Tensor, nn


class Space(nn.Module, ABC):
    """A bijection x -> u, with x (B, C, H, W) a dequantised image in [0, 1] and u of the same
    shape.

    ``scale`` is du/dx where that is one number for all components, else None.
    """

    scale: float | None = None

    @abstractmethod
    def encode(self, x: Tensor) -> Tensor:
        """u of x."""

    @abstractmethod
    def decode(self, u: Tensor) -> Tensor:
        """x of u, the inverse of :meth:`encode`."""

    @abstractmethod
    def log_abs_det(self, x: Tensor) -> Tensor:
        """log |det du/dx| in nats: (B,) float64, so that log p(x) = log p(u) + log_abs_det(x)."""

"""What a space is: a bijection from images in [0, 1] to the space of the path."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Space(nn.Module, ABC):
    """A bijection x -> u, with x (B, C, H, W) a dequantised image in [0, 1] and u of the same
    shape.

    ``scale`` is du/dx where that is one number for all components, else None.

    Args:
        image_shape, num_levels: (C, H, W) and levels of the images. It is not fitted yet; a
            subclass may take arguments of its own.
    """

    scale: float | None = None

    def __init__(self, image_shape: Sequence[int] = (), num_levels: int = 0) -> None:
        super().__init__()

    @abstractmethod
    def encode_with_log_abs_det(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """u of x, and log |det du/dx| in nats: (B,) float64, so that
        log p(x) = log p(u) + log |det du/dx|."""

    @abstractmethod
    def decode(self, u: Tensor) -> Tensor:
        """x of u."""

    def encode(self, x: Tensor) -> Tensor:
        """u of x."""
        return self.encode_with_log_abs_det(x)[0]

    def fit(self, x: Tensor, repeats: int = 1) -> None:  # noqa: B027 - a hook, not an omission
        """Set what is estimated in closed form from dequantised images (N, C, H, W): ``repeats``
        draws of every image, a draw of all images after the other. N / repeats images are no more
        than that, however often they are drawn."""


class Composed(Space):
    """Bijections one after the other; the first takes the image."""

    def __init__(self, *parts: Space) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def encode_with_log_abs_det(self, x: Tensor) -> tuple[Tensor, Tensor]:
        total = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        for part in self.parts:
            x, change = part.encode_with_log_abs_det(x)
            total = total + change
        return x, total

    def decode(self, u: Tensor) -> Tensor:
        for part in reversed(self.parts):
            u = part.decode(u)
        return u

    @torch.no_grad()
    def fit(self, x: Tensor, repeats: int = 1) -> None:
        for part in self.parts:
            part.fit(x, repeats)
            x = part.encode(x)

"""Base class of spaces: bijections from images in [0, 1] to points of a path."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

#: Images per batch of a fit, to bound its memory
FIT_BATCH = 1000


class Space(nn.Module, ABC):
    """Bijection x -> u from dequantised images x (B, C, H, W) in [0, 1] to u of the same shape.

    Args:
        image_shape: (C, H, W).
        num_levels: number of grey levels of the images.

    Attributes:
        scale: du/dx if it is the same constant for all pixels, otherwise None.
    """

    scale: float | None = None

    def __init__(self, image_shape: Sequence[int] = (), num_levels: int = 0) -> None:
        super().__init__()

    @abstractmethod
    def encode_with_log_abs_det(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return u, and log |det du/dx| in nats, (B,) float64.

        Densities satisfy log p(x) = log p(u) + log |det du/dx|.
        """

    @abstractmethod
    def decode(self, u: Tensor) -> Tensor:
        """Map u to x."""

    def encode(self, x: Tensor) -> Tensor:
        """Map x to u."""
        return self.encode_with_log_abs_det(x)[0]

    @classmethod
    def needs_fit(cls) -> bool:
        """Return whether the space has parameters that ``fit`` estimates, as a flow."""
        return cls.fit is not Space.fit

    def fit(self, x: Tensor, repeats: int = 1) -> None:  # noqa: B027 - an optional hook
        """Estimate the closed-form parameters from dequantised images.

        Args:
            x: (N, C, H, W): N / repeats images, tiled ``repeats`` times with different noise.
            repeats: draws per image, which count as one image in smoothing and shrinkage.
        """


class Composed(Space):
    """Composition of bijections; the first is applied to the image."""

    def __init__(self, *parts: Space) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def encode_with_log_abs_det(self, x: Tensor) -> tuple[Tensor, Tensor]:
        total = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        for part in self.parts:
            x, log_abs_det = part.encode_with_log_abs_det(x)
            total = total + log_abs_det
        return x, total

    def decode(self, u: Tensor) -> Tensor:
        for part in reversed(self.parts):
            u = part.decode(u)
        return u

    @torch.no_grad()
    def fit(self, x: Tensor, repeats: int = 1) -> None:
        for index, part in enumerate(self.parts):
            if index:
                encode = self.parts[index - 1].encode
                x = torch.cat([encode(batch) for batch in x.split(FIT_BATCH)])
            part.fit(x, repeats)

"""An image for a model, and what was done to it on the way there."""

from typing import NamedTuple

from torch import Tensor


class Prepared(NamedTuple):
    """An image (1, C, H, W) on a model's levels in [0, 1]; what was done to what a visitor gave,
    in the order in which it was; and hints, each a sentence."""

    image: Tensor
    steps: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Steps and hints in words."""
        done = ", ".join(self.steps) or "nothing, the pixels are taken as they are"
        return [f"Done to the image: {done}.", *self.hints]

"""What a sampler is: it starts from N(0, I) and yields frames, so that a caller can show progress
and stop."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from ebm_app.nets.protocols import Marginals, SteinScore
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import Fraction, Positive, Steps, configuration
from ebm_app.utils.tensors import find_time


class Frame(NamedTuple):
    """Points (B, *) in the space of the path after ``step`` of ``num_steps`` steps; ``nfe`` counts
    evaluations of the Stein score; ``acceptance`` is that at the last temperature, or None."""

    x: Tensor
    step: int
    num_steps: int
    nfe: int
    acceptance: float | None = None


class Sampler(ABC):
    """Draws from p_1 of an energy; a subclass is a frozen dataclass of its settings. ``note`` says
    in one sentence how it draws, ``counts`` which setting counts its steps, and ``steps`` what
    these are."""

    note: ClassVar[str]
    steps: ClassVar[str]
    counts: ClassVar[str]

    @abstractmethod
    def iterate(
        self, energy: SteinScore, x0: Tensor, generator: torch.Generator
    ) -> Iterator[Frame]:
        """Frames from the reference draws ``x0`` (B, *) to the samples, which are the last
        frame."""

    @abstractmethod
    def count_steps(self, energy: SteinScore, num_dims: int) -> int:
        """How many steps it takes for points of ``num_dims`` numbers."""


@configuration
class FlowSampler(Sampler):
    """What follows the probability flow from noise, and denoises once where it stops.

    Args:
        num_steps: steps.
        start: time at which N(0, I) is taken for p_t; its alpha must exceed 0.
        end_variance: conditional variance at which the flow stops and the image is denoised.
    """

    counts: ClassVar[str] = "num_steps"

    num_steps: Steps = 25
    start: Fraction = 1e-2
    end_variance: Positive = 1e-3

    def count_steps(self, energy: SteinScore, num_dims: int) -> int:
        return self.num_steps


def in_batches(
    sampler: Sampler,
    energies: Sequence[SteinScore],
    parts: Sequence[slice],
    x0: Tensor,
    generator: torch.Generator,
) -> Iterator[Frame]:
    """The frames of one batch after the other, rows ``parts`` of ``x0`` by ``energies``. Each
    holds all points, of which those of later batches are still noise."""
    for index, (rows, energy) in enumerate(zip(parts, energies, strict=True)):
        for frame in sampler.iterate(energy, x0[rows], generator):
            x = torch.cat([x0[: rows.start], frame.x, x0[rows.stop :]])
            step, num_steps = index * frame.num_steps + frame.step, len(parts) * frame.num_steps
            yield frame._replace(x=x, step=step, num_steps=num_steps)
        x0 = x


def end_time(energy: Marginals, start: float, variance: float) -> float:
    """Where a run from ``start`` stops: the last time of the model, or the earlier one at which
    the path's variance falls to ``variance``.

    Raises:
        UserError: where the run would not start before it, and on a two-sided path.
    """
    path = energy.path
    path.check_reference()

    def excess(t: Tensor) -> Tensor:
        return path.variance(t) - variance

    first, last = (torch.tensor(t, dtype=torch.float64) for t in (energy.start, energy.end))
    if not excess(first) > 0:
        raise UserError(
            f"end_variance {variance} is not below the variance at the start: lower it"
        )
    end = energy.end if excess(last) > 0 else find_time(excess, energy.start, energy.end)
    if not start < end:
        raise UserError(f"sampling must start before t = {end}, where it stops: lower start")
    return end


def denoised(energy: Marginals, x: Tensor, score: Tensor, t: float) -> Tensor:
    """E[x_1 | x_t = x] by Tweedie's formula, from the Stein score (B, *) at ``x`` (B, *)."""
    return energy.path.denoise(x, score, torch.tensor(t, dtype=torch.float64))

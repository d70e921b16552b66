"""Interface of samplers. They start from N(0, I) and yield frames, so that a caller can show
progress or stop."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from ebm_app.nets.model import ScoreModel
from ebm_app.paths import require_one_sided
from ebm_app.paths.base import invert
from ebm_app.utils.errors import UserError
from ebm_app.utils.random import ImageNoise, Noise

#: (x (B, *), t) -> (B, *) or (B,)
Score = Callable[[Tensor, float], Tensor]


class Frame(NamedTuple):
    """Points ``x`` (B, *) in the space of the path after ``step`` of ``num_steps`` steps.

    Attributes:
        nfe: network evaluations per point so far: forward and backward passes.
        acceptance: mean acceptance probability at the last temperature; None for a flow.
    """

    x: Tensor
    step: int
    num_steps: int
    nfe: int
    acceptance: float | None = None


class Counter:
    """Counts the network evaluations per point of the functions of a model.

    Attributes:
        nfe: evaluations so far.
    """

    def __init__(self) -> None:
        self.nfe = 0

    def count(self, function: Score, cost: Callable[[float], int]) -> Score:
        """Return a function of (x, t) whose calls are counted, with the cost of a call at t."""

        def counted(x: Tensor, t: float) -> Tensor:
            self.nfe += cost(t)
            return function(x, t)

        return counted


class Sampler(ABC):
    """Sampler of p_1. Subclasses are frozen dataclasses of settings. ``counts`` names the setting
    for the number of steps."""

    counts: ClassVar[str]

    @abstractmethod
    def iterate(self, model: ScoreModel, x0: Tensor, noise: Noise) -> Iterator[Frame]:
        """Yield frames that start from reference draws ``x0`` (B, *) and end with the samples.
        Random numbers are drawn from ``noise``."""


def iterate_batches(
    sampler: Sampler,
    model_of: Callable[[slice], ScoreModel],
    x: Tensor,
    noise: ImageNoise,
    batches: Sequence[slice],
) -> Iterator[Frame]:
    """Run a sampler on one batch of points after another, and yield frames of all points.

    Args:
        model_of: rows -> model of these points.
        x: (N, *) reference draws.
        noise: noise of the N points.
        batches: rows of each batch.
    """
    for index, rows in enumerate(batches):
        for frame in sampler.iterate(model_of(rows), x[rows], noise[rows]):
            points = torch.cat([x[: rows.start], frame.x, x[rows.stop :]])
            step, total = index * frame.num_steps + frame.step, len(batches) * frame.num_steps
            yield frame._replace(x=points, step=step, num_steps=total)
        x = points


def end_time(model: ScoreModel, start: float, variance: float) -> float:
    """Return the time at which a run from ``start`` stops: the last time of the model, or the
    earlier time at which the path has the conditional ``variance``.

    Raises:
        UserError: if the variance at ``start`` is smaller, or the path is two-sided.
    """
    path = require_one_sided(model.path)
    first, last = path.variance(torch.tensor([start, model.end], dtype=torch.float64)).tolist()
    if not first > variance:
        raise UserError(
            f"Expected end_variance below the variance at the start, {first:.3g}, got {variance}. "
            "Decrease end_variance."
        )
    if last > variance:
        return model.end
    negative = torch.tensor(-variance, dtype=torch.float64)
    return invert(lambda t: -path.variance(t), negative).item()


def denoised(model: ScoreModel, x: Tensor, score: Tensor, t: float) -> Tensor:
    """Return E[x_1 | x_t = x] by Tweedie's formula from the Stein ``score`` at ``x``: (B, *)."""
    path = require_one_sided(model.path)
    return path.denoise(x, score, torch.tensor(t, dtype=torch.float64))

r"""Models of the marginals p_t of a path: their times, class labels and inputs.

``PathModel`` is the base of ``TimeScoreModel``, ``EnergyModel`` and ``DenoiserModel``. A model
never changes: ``conditioned_on``, ``with_t_margin`` and ``with_nodes`` return copies that share
the weights.
"""

import math
from collections.abc import Callable, Sequence
from copy import copy
from typing import Self

import torch
from torch import Tensor, nn

from ebm_app.config import Margin
from ebm_app.nets.protocols import Time
from ebm_app.paths import GaussianPath
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import NonNegative, Probability, check_argument
from ebm_app.utils.registry import choose
from ebm_app.utils.tensors import as_tensor, expand_like

#: (path, interval of the model, t (B,)) -> time input (B,) of the network, in [0, 1]
TimeInput = Callable[[GaussianPath, tuple[float, float], Tensor], Tensor]


def expand_time(t: Time, x: Tensor) -> Tensor:
    """Expand a time to (B,) float64, for points ``x`` (B, *) and on their device."""
    if isinstance(t, Tensor):
        return t.to(x.device, torch.float64).expand(len(x))
    return torch.full((len(x),), t, dtype=torch.float64, device=x.device)


def checked_time(t: Time, num: int, end: float) -> Time:
    """Return a time, clamped to ``end``: a number, or a tensor (num,) float64 of one per point.

    >>> checked_time(1, 3, end=0.999), checked_time(torch.tensor([0.5, 1.0]), 2, end=0.999)
    (0.999, tensor([0.5000, 0.9990], dtype=torch.float64))

    Raises:
        UserError: for times outside [0, 1], or another number of times.
    """
    times = as_tensor(t, "t")
    if not times.ndim:
        return min(check_argument(Probability, "t", times.item()), end)
    if times.shape != (num,):
        raise UserError(f"Expected one time t, or {num}, got shape {tuple(times.shape)}.")
    for time in times.tolist():
        check_argument(Probability, "t", time)
    return times.double().clamp(max=end)


def arc_length_fraction(path: GaussianPath, interval: tuple[float, float], t: Tensor) -> Tensor:
    """Return (tau(t) - tau(t0)) / (tau(t1) - tau(t0)), where tau is the arc length of the path."""
    # on the device of t, because torch.tensor would wait for a GPU
    start, end = (path.arc_length(torch.full_like(t[:1], time)) for time in interval)
    return (path.arc_length(t) - start) / (end - start)


TIME_INPUTS: dict[str, TimeInput] = {
    "time": lambda path, interval, t: t,
    "arc_length": arc_length_fraction,
}


class PathModel(nn.Module):
    """Model of the marginals p_t of a path, for ``start`` <= t <= ``end``.

    Args:
        path: path.
        interval: first and last time that the network is trained on.

    Attributes:
        start, end: first and last time of an evaluation; those of ``interval``, unless changed by
            ``with_t_margin``.
        labels: class labels (B,) of the points, or None.
        guidance_scale: guidance scale of the labels.
    """

    def __init__(self, path: GaussianPath, interval: tuple[float, float]) -> None:
        super().__init__()
        self.path, self.interval = path, interval
        self.start, self.end = interval
        self.labels: Tensor | None = None
        self.guidance_scale = 1.0

    def at(self, rows: Tensor) -> Self:
        """Return the model for the points with indices ``rows`` (b,) in a batch of n blocks of B
        points, with the labels of these points."""
        if self.labels is None:
            return self
        other = copy(self)
        other.labels = self.labels[rows.to(self.labels.device) % len(self.labels)]
        return other

    def with_t_margin(self, t_margin: float) -> Self:
        """Return a copy with another margin at t = 1. With a smaller margin than in training, the
        network is evaluated at times that it was not trained on.

        Raises:
            UserError: for a margin out of range.
        """
        other = copy(self)
        other.start, other.end = self.path.interval(check_argument(Margin, "t_margin", t_margin))
        return other

    def conditioned_on(self, labels: Tensor, guidance_scale: float = 1.0) -> Self:
        r"""Return the model of p_t(x | y) for class labels y (B,), with g = ``guidance_scale``:

            (1 - g) log p_t(x) + g log p_t(x | y),

        up to a constant. Both scores are its derivatives. For g > 1, the densities are not the
        marginals of a diffusion.

        Raises:
            UserError: for a guidance scale below 0.

        Source: Ho and Salimans 2022, arXiv:2207.12598.
        """
        other = copy(self)
        guidance_scale = check_argument(NonNegative, "guidance_scale", guidance_scale)
        other.labels, other.guidance_scale = labels, guidance_scale
        return other


class NetworkInputs:
    """Inputs of a network on a path: a time in [0, 1], and channels.

    Args:
        path: path.
        interval: first and last time of training.
        time_input: a key of ``TIME_INPUTS``.
        input_frequencies: see ``features``; n frequencies multiply the input channels by 1 + 2 n.
        condition_dim: number of additional input channels, one constant plane per number of a
            condition (see ``augmentation``).

    Raises:
        UserError: for an unknown time_input.
    """

    def __init__(
        self,
        path: GaussianPath,
        interval: tuple[float, float],
        time_input: str = "arc_length",
        input_frequencies: Sequence[float] = (),
        condition_dim: int = 0,
    ) -> None:
        self.path, self.interval = path, interval
        self.time_input = TIME_INPUTS[choose("time_input", time_input, TIME_INPUTS)]
        self.input_frequencies, self.condition_dim = tuple(input_frequencies), condition_dim

    def time(self, t: Tensor) -> Tensor:
        """Return the time input (B,) for t (B,) float64."""
        return self.time_input(self.path, self.interval, t)

    def features(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Tensor:
        r"""Concatenate x, along dimension 1, with g sin(2 pi f x) and g cos(2 pi f x) for each
        frequency f, and with the planes of the condition.

        These Fourier features resolve the bins of quantised data (Kingma et al. 2021,
        arXiv:2107.00630, appendix C). The gain g = exp(-2 pi^2 f^2 v_t) is the expected amplitude
        of a feature under noise of variance v_t. Without it, clean points at early times, as in a
        likelihood, would have features that no noisy training point has.
        """
        channels = [x]
        for frequency in self.input_frequencies:
            gain = torch.exp(-2 * (math.pi * frequency) ** 2 * self.path.variance(t))
            angle = 2 * math.pi * frequency * x
            channels += [expand_like(gain, x) * feature for feature in (angle.sin(), angle.cos())]
        return self.with_condition(channels, condition)

    def with_condition(self, channels: list[Tensor], condition: Tensor | None) -> Tensor:
        """Concatenate channels (B, *), along dimension 1, with the planes of the condition."""
        if self.condition_dim:
            x = channels[0]
            if condition is None:
                condition = x.new_zeros(len(x), self.condition_dim)
            planes = condition.to(x.dtype).reshape(*condition.shape, *(1,) * (x.ndim - 2))
            channels = [*channels, planes.expand(-1, -1, *x.shape[2:])]
        return torch.cat(channels, dim=1)

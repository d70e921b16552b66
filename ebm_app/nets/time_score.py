"""Networks on a path: time score models and their inputs.

The network gets a time in [0, 1]. It predicts the quantities from which the terms of the time
score are computed (see ``parametrisation``) and, optionally, a Stein head.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ebm_app.nets.parametrisation import PREDICTIONS
from ebm_app.paths import GaussianPath
from ebm_app.utils.registry import choose
from ebm_app.utils.tensors import expand_like, sum_except_batch


class ModelOutput(NamedTuple):
    """Output of a network at B points.

    Attributes:
        components: terms of the time score, in nats per unit of t: (B, *) per dimension, or (B, 1)
            if the network only predicts their sum.
        score: Stein score (B, *), or None without a Stein head.
        variance: posterior variance (B, *) of the target of the Stein head, or None if it is not
            predicted.
    """

    components: Tensor
    score: Tensor | None
    variance: Tensor | None = None


#: (path, interval of the model, t (B,)) -> time input (B,) of the network, in [0, 1]
TimeInput = Callable[[GaussianPath, tuple[float, float], Tensor], Tensor]


def arc_length_fraction(path: GaussianPath, interval: tuple[float, float], t: Tensor) -> Tensor:
    """Return (tau(t) - tau(t0)) / (tau(t1) - tau(t0)), where tau is the arc length of the path."""
    # on the device of t, because torch.tensor would wait for a GPU
    start, end = (path.arc_length(torch.full_like(t[:1], time)) for time in interval)
    return (path.arc_length(t) - start) / (end - start)


TIME_INPUTS: dict[str, TimeInput] = {
    "time": lambda path, interval, t: t,
    "arc_length": arc_length_fraction,
}


class PathNetwork(nn.Module):
    """Network whose inputs are a point and a time of a path.

    Args:
        net: (x (B, *), time (B,)) -> tensor.
        path: path.
        eps: margin of the interval of times, as in ``GaussianPath.interval``.
        time_input: a key of ``TIME_INPUTS``.
        input_frequencies: see ``features``; n frequencies multiply the input channels by 1 + 2 n.
        condition_dim: number of additional input channels, one constant plane per number of a
            condition (see ``augmentation``).

    Raises:
        UserError: for an unknown time_input.
    """

    def __init__(
        self,
        net: nn.Module,
        path: GaussianPath,
        eps: float,
        time_input: str = "arc_length",
        input_frequencies: Sequence[float] = (),
        condition_dim: int = 0,
    ) -> None:
        super().__init__()
        self.net, self.path, self.eps = net, path, eps
        self.time_input = TIME_INPUTS[choose("time_input", time_input, TIME_INPUTS)]
        self.input_frequencies, self.condition_dim = tuple(input_frequencies), condition_dim
        self.interval = path.interval(eps)

    def outputs(self, x: Tensor, t: Tensor, condition: Tensor | None, *labels: Tensor) -> Tensor:
        """Return the raw output of the network at x (B, *) and t (B,) float64."""
        time = self.time_input(self.path, self.interval, t).to(x.dtype)
        return self.net(self.features(x, t, condition), time, *labels)

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


class TimeScoreModel(PathNetwork):
    """Model of the time score and, optionally, the Stein score of the marginals p_t of a path.

    Args:
        net: (x (B, *), time (B,)) -> tensor whose first channels predict the terms of the time
            score, or, with a single output, the time score itself.
        path: path.
        eps: margin of the interval of times, as in ``GaussianPath.interval``.
        prediction: a key of ``PREDICTIONS``.
        stein_channels: number of last output channels (dimension 1) that are the Stein head h,
            with score = a_t x + b_t h; 0 for no head.
        num_levels: number of grey levels of the data, for the prediction "levels".
        labels_end: time input from which the output does not depend on labels, or None.
        inputs: time_input, input_frequencies and condition_dim of ``PathNetwork``.

    Raises:
        UserError: for an unknown prediction or time_input, or a prediction that does not support
            the path or needs a Stein head.
    """

    def __init__(
        self,
        net: nn.Module,
        path: GaussianPath,
        eps: float,
        prediction: str = "normalised",
        stein_channels: int = 0,
        num_levels: int = 256,
        labels_end: float | None = None,
        **inputs: Any,
    ) -> None:
        super().__init__(net, path, eps, **inputs)
        self.prediction = PREDICTIONS[choose("prediction", prediction, PREDICTIONS)]
        self.prediction.check(path, stein_channels > 0)
        self.stein_channels, self.num_levels = stein_channels, num_levels
        self.labels_end = labels_end

    @property
    def predicts_variance(self) -> bool:
        """Whether the output includes the posterior variance of the target of the Stein head."""
        return self.prediction.needs_head

    def uses_labels(self, t: Tensor) -> bool:
        """Return whether labels change the output at any of the times t (B,)."""
        end, time = self.labels_end, self.time_input(self.path, self.interval, t)
        return end is None or bool((time < end).any())

    def forward(
        self, x: Tensor, t: Tensor, condition: Tensor | None = None, labels: Tensor | None = None
    ) -> ModelOutput:
        """Evaluate the network.

        Args:
            x: (B, *). t: (B,) float64.
            condition: (B, condition_dim), zero if None.
            labels: class labels (B,) int64, for a class-conditional net.
        """
        out = self.outputs(x, t, condition, *(() if labels is None else (labels,)))
        # scales reach 1e5, which overflows half precision
        out = out if out.dtype == torch.float64 else out.float()
        raw, head = out.tensor_split([out.shape[1] - self.stein_channels], dim=1)
        components, variance, head = self.prediction.components(
            self.path, x, t, raw, head, self.num_levels
        )
        if not self.stein_channels:
            return ModelOutput(components, None)
        skip, gain = self.path.score_skip(t), self.path.score_gain(t)
        score = expand_like(skip, x) * x + expand_like(gain, x) * head
        return ModelOutput(components, score, variance)

    def time_score(self, x: Tensor, t: Tensor) -> Tensor:
        """Return d/dt log p_t(x): (B,)."""
        return sum_except_batch(self(x, t).components)

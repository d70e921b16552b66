"""A network joined to a path: what it predicts, in raw units.

The network sees a time in [0, 1]; it predicts what the components of the time score are made of
(see ``parametrisation``), and optionally a Stein head.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ebm_app.nets.parametrisation import PREDICTIONS
from ebm_app.paths import GaussianPath
from ebm_app.utils.errors import UserError
from ebm_app.utils.registry import choose
from ebm_app.utils.tensors import expand_like, sum_except_batch


class ModelOutput(NamedTuple):
    """Components of the time score (B, *) in nats per unit of t, which sum to it, None of a model
    without; the Stein score (B, *) where the model has that head, and the posterior variance
    (B, *) of that head's target where the model predicts it."""

    components: Tensor | None
    score: Tensor | None
    variance: Tensor | None = None

    def parts(self) -> Tensor:
        """The components in float64.

        Raises:
            UserError: for a model without a time score.
        """
        if self.components is None:
            raise UserError(
                "this model has a Stein score and no time score: take the estimator elbo, "
                "discrete or pf_ode"
            )
        return self.components.double()


#: what the net sees of the time, (B,) in [0, 1], from the path, the interval of the model and t
#: (B,) in that interval
TimeInput = Callable[[GaussianPath, tuple[float, float], Tensor], Tensor]


def arc_length_fraction(path: GaussianPath, interval: tuple[float, float], t: Tensor) -> Tensor:
    """(tau(t) - tau(t0)) / (tau(t1) - tau(t0)), tau the path's clock."""
    start, end = path.arc_length(torch.tensor(interval, dtype=t.dtype, device=t.device))
    return (path.arc_length(t) - start) / (end - start)


TIME_INPUTS: dict[str, TimeInput] = {
    "time": lambda path, interval, t: t,
    "arc_length": arc_length_fraction,
}


class TimeScoreModel(nn.Module):
    """Time score and, if trained, Stein score of a path's marginals p_t.

    Args:
        net: (x (B, *), time (B,)) -> tensor whose first channels are the components; a net with a
            single output gives the time score itself.
        path: the path.
        eps: margin of the interval of times, as in ``GaussianPath.interval``.
        prediction: a key of PREDICTIONS.
        time_input: a key of ``TIME_INPUTS``.
        stein_channels: how many of the last channels (dimension 1) of the net's output are the
            Stein head h, with score = a_t x + b_t h; 0 for no head.
        input_frequencies: see ``features``; the net gets 1 + 2 n times as many channels.
        condition_dim: the net gets so many more channels, one constant plane for each number of a
            condition (see ``augmentation``).

    Raises:
        UserError: for an unknown prediction or time_input, or a prediction that is not for this
            path or this head.
    """

    def __init__(
        self,
        net: nn.Module,
        path: GaussianPath,
        eps: float,
        prediction: str = "normalised",
        time_input: str = "arc_length",
        stein_channels: int = 0,
        input_frequencies: Sequence[float] = (),
        condition_dim: int = 0,
    ) -> None:
        super().__init__()
        self.net, self.path, self.eps = net, path, eps
        self.prediction = PREDICTIONS[choose("prediction", prediction, PREDICTIONS)]
        self.prediction.check(path, stein_channels > 0)
        self.time_input = TIME_INPUTS[choose("time_input", time_input, TIME_INPUTS)]
        self.stein_channels = stein_channels
        self.input_frequencies, self.condition_dim = tuple(input_frequencies), condition_dim
        self.interval = path.interval(eps)

    def forward(
        self,
        x: Tensor,
        t: Tensor,
        condition: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> ModelOutput:
        """x (B, *), t (B,) float64, condition (B, condition_dim), zero if None, and class labels
        (B,) int64, of a net that takes them -> ``ModelOutput``."""
        out = self.outputs(x, t, condition, *(() if labels is None else (labels,)))
        # the scales reach 1e5: out of a half-precision network's range
        out = out if out.dtype == torch.float64 else out.float()
        raw, head = out.tensor_split([out.shape[1] - self.stein_channels], dim=1)
        components, variance = self.prediction.components(self.path, x, t, raw, head)
        if not self.stein_channels:
            return ModelOutput(components, None)
        skip, gain = self.path.score_skip(t), self.path.score_gain(t)
        score = expand_like(skip, x) * x + expand_like(gain, x) * head
        return ModelOutput(components, score, variance)

    def outputs(self, x: Tensor, t: Tensor, condition: Tensor | None, *labels: Tensor) -> Tensor:
        """What the network gives at x (B, *), t (B,) float64."""
        time = self.time_input(self.path, self.interval, t).to(x.dtype)
        return self.net(self.features(x, t, condition), time, *labels)

    def reads_labels(self, t: Tensor) -> bool:
        """Whether labels change the output at any of the times t (B,)."""
        return self.net.reads_labels(self.time_input(self.path, self.interval, t))

    def features(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Tensor:
        r"""x joined, along dimension 1, by g sin(2 pi f x) and g cos(2 pi f x) for each frequency
        f, and by the planes of the condition.

        These Fourier features show a network the bins of quantised data (Kingma et al. 2021,
        arXiv:2107.00630, appendix C). The gain g = exp(-2 pi^2 f^2 v_t) is the mean of a feature
        of amplitude 1 under noise of variance v_t. Without it, a likelihood, which evaluates clean
        points at early times, would meet features that noisy training points never have.
        """
        parts = [x]
        for frequency in self.input_frequencies:
            gain = torch.exp(-2 * (math.pi * frequency) ** 2 * self.path.variance(t))
            angle = 2 * math.pi * frequency * x
            parts += [expand_like(gain, x) * feature for feature in (angle.sin(), angle.cos())]
        if self.condition_dim:
            given = x.new_zeros(len(x), self.condition_dim) if condition is None else condition
            planes = given.to(x.dtype).reshape(*given.shape, *(1,) * (x.ndim - 2))
            parts.append(planes.expand(-1, -1, *x.shape[2:]))
        return torch.cat(parts, dim=1)

    def time_score(self, x: Tensor, t: Tensor) -> Tensor:
        """d/dt log p_t(x): (B,)."""
        return sum_except_batch(self(x, t).components)

"""Time score models whose output is computed from the prediction of a network.

The network gets a time in [0, 1] and the channels of ``NetworkInputs``. It predicts the quantities
from which the terms of the time score are computed (see ``parametrisation``) and, optionally, a
Stein head.
"""

from typing import Any

import torch
from torch import Tensor, nn

from ebm_app.nets.parametrisation import PREDICTIONS
from ebm_app.nets.path_model import NetworkInputs
from ebm_app.nets.time_score import ModelOutput, MomentsModel, SteinScoreModel, TimeScoreModel
from ebm_app.paths import GaussianPath
from ebm_app.utils.registry import choose
from ebm_app.utils.tensors import expand_like


class TimeScoreNet(TimeScoreModel):
    """Time score from the prediction of a network.

    Args:
        net: (x (B, *), time (B,)) -> tensor whose first channels predict the terms of the time
            score, or, with a single output, the time score itself.
        path, t_margin, num_nodes: as for ``TimeScoreModel``.
        prediction: a key of ``PREDICTIONS``.
        stein_channels: number of last output channels (dimension 1) that are the Stein head h,
            with score = a_t x + b_t h; 0 for no head.
        num_levels: number of grey levels of the data, for the prediction "levels".
        inputs: time_input, input_frequencies and condition_dim of ``NetworkInputs``.

    Raises:
        UserError: for an unknown prediction or time_input, or a prediction that does not support
            the path or needs a Stein head.
    """

    def __init__(
        self,
        net: nn.Module,
        path: GaussianPath,
        t_margin: float,
        prediction: str = "normalised",
        stein_channels: int = 0,
        num_levels: int = 256,
        num_nodes: int = 32,
        **inputs: Any,
    ) -> None:
        super().__init__(path, t_margin, num_nodes)
        self.net, self.inputs = net, NetworkInputs(path, self.interval, **inputs)
        self.prediction = PREDICTIONS[choose("prediction", prediction, PREDICTIONS)]
        self.prediction.check(path, stein_channels > 0)
        self.stein_channels, self.num_levels = stein_channels, num_levels

    def raw_output(
        self, x: Tensor, t: Tensor, condition: Tensor | None, labels: Tensor | None = None
    ) -> Tensor:
        """Return the raw output of the network at x (B, *) and t (B,) float64."""
        features, time = self.inputs.features(x, t, condition), self.inputs.time(t).to(x.dtype)
        return self.net(features, time) if labels is None else self.net(features, time, labels)

    def forward(
        self, x: Tensor, t: Tensor, condition: Tensor | None = None, labels: Tensor | None = None
    ) -> ModelOutput:
        out = self.raw_output(x, t, condition, labels)
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


class SteinScoreNet(TimeScoreNet, SteinScoreModel):
    """Both scores from the prediction of a network with a Stein head."""


class MomentsNet(TimeScoreNet, MomentsModel):
    """Both scores and the posterior variance from the prediction of a network."""


def time_score_net(
    net: nn.Module,
    path: GaussianPath,
    t_margin: float,
    prediction: str = "normalised",
    stein_channels: int = 0,
    **settings: Any,
) -> TimeScoreNet:
    """Return the model of a network, of a class that depends on what the network predicts.

    Args:
        net, path, t_margin, prediction, stein_channels, settings: arguments of ``TimeScoreNet``.
    """
    predicts_moments = PREDICTIONS[choose("prediction", prediction, PREDICTIONS)].needs_head
    kind = MomentsNet if predicts_moments else SteinScoreNet if stein_channels else TimeScoreNet
    return kind(net, path, t_margin, prediction, stein_channels, **settings)

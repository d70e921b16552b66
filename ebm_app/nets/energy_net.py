r"""Energy networks: one network for log p_t(x), its Stein score and its time score.

The log density is that of independent pixels on the grey levels seen through the noise (the base
q_t, see ``level_mixture``), plus a learned difference,

    log p_t(x) = log q_t(x) + G u sum_i [f_i + sum_j phi_ij g_ij],

where u is the fraction of the arc length of the path up to t, f and g are the outputs of the
network, phi are the posterior means of the base, and G = 0.5 keeps the outputs of order 1. At
t = 0 the density is exactly N(0, I); at later times it is normalised if the time derivative is
exact. Both derivatives come from one backward pass of the same function, unlike the two outputs of
``SteinScoreNet``.

The network is distilled from a time score model (``training.energy``) and ends where that
model, as a decoder, recovers the grey levels: at a noise of 0.7 of their distance.

Source: Guth, Kadkhodaie, Simoncelli 2025, arXiv:2506.05310, who train both derivatives of an
energy on data.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ebm_app.config import Calibration
from ebm_app.nets.level_mixture import LevelMixture
from ebm_app.nets.path_model import NetworkInputs, arc_length_fraction, expand_time
from ebm_app.nets.protocols import PROVIDERS, Time
from ebm_app.nets.time_score import ModelOutput, MomentsModel, SteinScoreModel
from ebm_app.paths import GaussianPath, require_one_sided
from ebm_app.utils.tensors import expand_like, leaves, sum_except_batch

#: Factor G of the network outputs in the energy
GAIN = 0.5


class EnergyModel(SteinScoreModel):
    """Network for log p_t(x) of images with grey levels, with both derivatives from one backward
    pass, and a decoder of the grey levels at its last time.

    >>> from ebm_app import EBM
    >>> model = EBM.from_pretrained("digits-energy").model
    >>> x, t = torch.randn(3, 1, 8, 8), torch.full((3,), 0.5, dtype=torch.float64)
    >>> model.terms(x, t).shape, model(x, t).score.shape, model(x, t).components.shape
    (torch.Size([3, 1, 8, 8]), torch.Size([3, 1, 8, 8]), torch.Size([3, 1]))

    Args:
        net: (B, C (2 + 2 F + K) + condition_dim, *) and time (B,) -> (B, C (2 + K), *), for F
            frequencies and K indicators, see ``LevelMixture``. The input has x and the features
            of the base; the output has f, and g for the last 1 + K features.
        path: path from N(0, I).
        t_margin: margin of the interval of times.
        channels, num_levels: C and number of grey levels.
        decoder: model of the posterior moments; its weights are frozen.
        num_nodes: quadrature nodes of ``log_ratio``, which integrates the time derivative.
        calibration: calibration offset at the last time.
        inputs: time_input, input_frequencies and condition_dim of ``NetworkInputs``.

    Raises:
        UserError: for a path that does not start from N(0, I).
    """

    passes: ClassVar[int] = 2  # forward and backward

    def __init__(
        self,
        net: nn.Module,
        path: GaussianPath,
        t_margin: float,
        channels: int,
        num_levels: int,
        decoder: MomentsModel,
        num_nodes: int = 32,
        calibration: Calibration | None = None,
        **inputs: Any,
    ) -> None:
        super().__init__(require_one_sided(path), t_margin, num_nodes)
        self.net, self.inputs = net, NetworkInputs(path, self.interval, **inputs)
        self.base = LevelMixture(path, channels, num_levels, self.inputs.input_frequencies)
        self.decoder = decoder.requires_grad_(False)
        self.calibration = calibration or Calibration()

    def terms(self, x: Tensor, t: Time, condition: Tensor | None = None) -> Tensor:
        """Return the terms of log p_t(x) in nats, (B, *) float64, at x (B, *)."""
        time = expand_time(t, x)
        base = self.base(x, time)
        return base.log_density.double() + self.learned(x, base.features, time, condition)

    def learned(self, x: Tensor, features: Tensor, t: Tensor, condition: Tensor | None) -> Tensor:
        """Return the terms (B, *) float64 of the difference from the base."""
        shape, inputs = (-1, x.shape[1]), self.inputs.with_condition([x, features], condition)
        time = self.inputs.time(t).to(x.dtype)
        f, g = self.net(inputs, time).double().unflatten(1, shape).tensor_split([1], 1)
        phi = features.unflatten(1, shape)[:, -g.shape[1] :]
        fraction = arc_length_fraction(self.path, self.interval, t)
        return GAIN * expand_like(fraction, x.double()) * (f[:, 0] + (phi * g).sum(1))

    def forward(
        self, x: Tensor, t: Tensor, condition: Tensor | None = None, labels: Tensor | None = None
    ) -> ModelOutput:
        """Return both derivatives of log p_t(x), with the time score as a single term (B, 1). They
        are differentiable if autograd is enabled.

        The derivatives of the base are in closed form, because second derivatives by autograd
        would double the cost of training.
        """
        is_kept, base = torch.is_grad_enabled(), self.base(x, t)
        # a view, so that the derivative in x excludes that through the features
        with leaves(x.view_as(x), base.features, t.detach()) as inputs:
            total = self.learned(*inputs, condition).sum()
            by_x, by_features, rate = torch.autograd.grad(total, inputs, create_graph=is_kept)
        by_base = (by_features * base.features_dx).unflatten(1, (-1, x.shape[1])).sum(1)
        rates = (rate, base.time_score, by_features * base.features_dt)
        rate = sum(sum_except_batch(term[:, None].double()) for term in rates)
        return ModelOutput(rate.to(x.dtype)[:, None], base.score + by_x + by_base)

    def log_density(self, x: Tensor, t: Time) -> Tensor:
        """Return log p_t(x) in nats, up to log Z: (B, *) -> (B,) float64. Gradients are computed
        if ``x`` requires them."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and x.requires_grad):
            return sum_except_batch(self.terms(x, t))

    def log_density_cost(self, t: float) -> int:
        return 1

    def log_density_gradient(self, x: Tensor, t: Time) -> Tensor:
        """Return grad_x log p_t(x): (B, *). It is differentiable if autograd is enabled."""
        return self.score(x, t)

    def gradient_cost(self, t: float) -> int:
        return self.score_cost(t)

    def level_log_prob(self, levels: Tensor, x: Tensor, t: float) -> Tensor:
        """Return log P(levels | x_t = x) in nats per dimension by the decoder, (B, *) float64."""
        return self.decoder.level_log_prob(levels, x, t)


PROVIDERS[EnergyModel] = ("an energy network", "models distilled with train/energy.py")

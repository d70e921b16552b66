r"""Energy networks: one network for log p_t(x), its Stein score and its time score.

The log density is that of a base plus a learned difference,

    log p_t(x) = log q_t(x) + G u sum_i [f_i + sum_j phi_ij g_ij],

where u is the fraction of the arc length of the path up to t, f and g are the outputs of the
network, and phi are features of x. At t = 0 the density is exactly N(0, I); at later times it is
normalised if the time derivative is exact. Both derivatives come from one backward pass of the
same function, unlike the two heads of ``TimeScoreModel``.

``EnergyModel`` has the base N(0, I), phi = x and G = 4. ``LevelEnergyModel`` has the density of
independent pixels on the grey levels as its base, posterior means under it as phi, and G = 0.5.
``DecodedEnergyModel`` ends at a noise of 0.7 grey levels, where its teacher is the decoder.

Distillation on MNIST, mean loss of steps 101 to 200 in a schedule of 400 steps of 16 images: base
N(0, I) 0.69; grey levels with phi = E[c] only 0.27, with indicators 0.29. After 3,182 steps, 220
further steps that also penalised the error of the derivative along the path changed the
calibration offset from -113 to 92 nats, and its spread over images from 17 to 29.

Variants on MNIST, by the bound on 64 validation images in bits per dim: five core minutes of
training give 1.393, and 1.450 with one histogram per position as the base. Six more minutes from
the weights after 9,000 steps give 1.044. If half of the training points come from the teacher's
probability flow, the result is 1.047; from annealed chains of the student, 1.075. With a
contrastive term at t = 1 it is 1.047. After 18,000 steps, 56% of the difference from the
teacher's bound is due to noise below 2 bins. With torch.func, a step takes as long as with
autograd.

After 400 core seconds of distillation on digits, f + x g in ``EnergyModel`` had a validation bound
of 1.702 bits per dim. Alternatives: x . g alone 1.710, f alone 1.712, a squared norm |x + f|^2
2.119. Normalisation: groups 1.702, all channels 1.719, none 1.794, a scale per channel 1.845.

Source: Guth, Kadkhodaie, Simoncelli 2025, arXiv:2506.05310, who train both derivatives of an
energy on data; here the energy is distilled (``training.energy_task``).
"""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ebm_app.config import Calibration
from ebm_app.nets.density import MomentsDensity, SteinHeadDensity, expand_time
from ebm_app.nets.level_mixture import LevelMixture
from ebm_app.nets.protocols import PROVIDERS, Time
from ebm_app.nets.time_score import (
    ModelOutput,
    PathNetwork,
    TimeScoreModel,
    arc_length_fraction,
)
from ebm_app.paths import require_one_sided
from ebm_app.utils.tensors import (
    expand_like,
    leaves,
    standard_normal_log_density,
    sum_except_batch,
)

#: Factor of the network outputs in the energy, so that the outputs are of order 1
GAIN = 4.0
#: The same with the base of grey levels
LEVEL_GAIN = 0.5


class EnergyModel(PathNetwork):
    """Network for log p_t(x), with both derivatives from one backward pass.

    Arguments are those of ``PathNetwork``. The path must start from N(0, I), and the net maps x
    (B, C, ...) and time (B,) to (B, 2 C, ...), the concatenation of f and g.

    >>> from ebm_app.paths import LinearVPPath
    >>> model = EnergyModel(lambda x, t: torch.cat([x, x], 1), LinearVPPath(), eps=1e-3)
    >>> x, t = torch.randn(3, 2), torch.full((3,), 0.5, dtype=torch.float64)
    >>> model.terms(x, t).shape, model(x, t).score.shape, model(x, t).components.shape
    (torch.Size([3, 2]), torch.Size([3, 2]), torch.Size([3, 1]))
    """

    def terms(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Tensor:
        """Return the terms of log p_t(x) in nats, (B, *) float64, at x (B, *) and t (B,) float64.

        Raises:
            UserError: for a path that does not start from N(0, I).
        """
        require_one_sided(self.path)
        f, g = self.outputs(x, t, condition).double().chunk(2, dim=1)
        fraction = arc_length_fraction(self.path, self.interval, t)
        point = x.double()
        learned = GAIN * expand_like(fraction, point) * (f + point * g)
        return standard_normal_log_density(point) + learned

    def forward(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> ModelOutput:
        """Return both derivatives of log p_t(x), with the time score as a single term (B, 1). They
        are differentiable if autograd is enabled."""
        is_kept = torch.is_grad_enabled()
        with leaves(x, t.detach()) as (point, time):
            total = self.terms(point, time, condition).sum()
            score, rate = torch.autograd.grad(total, (point, time), create_graph=is_kept)
        return ModelOutput(rate.to(x.dtype)[:, None], score)


class LevelEnergyModel(EnergyModel):
    """Energy network for images with grey levels, with the base ``LevelMixture``.

    Args:
        net: (B, C (2 + 2 F + K) + condition_dim, *) and time (B,) -> (B, C (2 + K), *), for F
            frequencies and K indicators, see ``LevelMixture``. The input has x and the features
            of the base; the output has f, and g for the last 1 + K features.
        channels, num_levels: C and number of grey levels.
        args, inputs: path from N(0, I), and other arguments of ``PathNetwork``.
    """

    def __init__(
        self, net: nn.Module, *args: Any, channels: int, num_levels: int, **inputs: Any
    ) -> None:
        super().__init__(net, *args, **inputs)
        path, frequencies = require_one_sided(self.path), self.input_frequencies
        self.base = LevelMixture(path, channels, num_levels, frequencies)

    def terms(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Tensor:
        base = self.base(x, t)
        return base.log_density.double() + self.learned(x, base.features, t, condition)

    def learned(self, x: Tensor, features: Tensor, t: Tensor, condition: Tensor | None) -> Tensor:
        """Return the terms (B, *) float64 of the difference from the base."""
        time, shape = self.time_input(self.path, self.interval, t), (-1, x.shape[1])
        inputs = self.with_condition([x, features], condition)
        f, g = self.net(inputs, time.to(x.dtype)).double().unflatten(1, shape).tensor_split([1], 1)
        phi = features.unflatten(1, shape)[:, -g.shape[1] :]
        fraction = arc_length_fraction(self.path, self.interval, t)
        return LEVEL_GAIN * expand_like(fraction, x.double()) * (f[:, 0] + (phi * g).sum(1))

    def forward(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> ModelOutput:
        """Return both derivatives, as ``EnergyModel``. The derivatives of the base are in closed
        form, because second derivatives by autograd would double the cost of training."""
        is_kept, base = torch.is_grad_enabled(), self.base(x, t)
        # a view, so that the derivative in x excludes that through the features
        with leaves(x.view_as(x), base.features, t.detach()) as inputs:
            total = self.learned(*inputs, condition).sum()
            by_x, by_features, rate = torch.autograd.grad(total, inputs, create_graph=is_kept)
        by_base = (by_features * base.features_dx).unflatten(1, (-1, x.shape[1])).sum(1)
        rates = (rate, base.time_score, by_features * base.features_dt)
        rate = sum(sum_except_batch(term[:, None].double()) for term in rates)
        return ModelOutput(rate.to(x.dtype)[:, None], base.score + by_x + by_base)


class DecodedEnergyModel(LevelEnergyModel):
    """Energy network with a decoder of the grey levels at its last time.

    Args:
        decoder: network that predicts posterior moments; its weights are frozen.
        args, settings: as for ``LevelEnergyModel``.
    """

    def __init__(self, *args: Any, decoder: TimeScoreModel, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.decoder = decoder.requires_grad_(False)


class EnergyDensity(SteinHeadDensity):
    """Density of an ``EnergyModel``, with log densities without integration and both scores from
    one backward pass.

    Args:
        model: energy network.
        num_nodes: quadrature nodes of ``log_ratio``, which integrates the time derivative.
        calibration: calibration offset at the model's last time.
    """

    model: EnergyModel
    passes: ClassVar[int] = 2  # forward and backward

    def __init__(
        self, model: EnergyModel, num_nodes: int = 32, calibration: Calibration | None = None
    ) -> None:
        super().__init__(model, num_nodes)
        self.calibration = calibration or Calibration()

    def terms(self, x: Tensor, t: Time) -> Tensor:
        """Return the terms (B, *) float64 of log p_t(x)."""
        return self.model.terms(x, expand_time(t, x))

    def log_density(self, x: Tensor, t: float) -> Tensor:
        """Return log p_t(x) in nats, up to log Z: (B, *) -> (B,) float64. Gradients are computed
        if ``x`` requires them."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and x.requires_grad):
            return sum_except_batch(self.terms(x, t))

    def log_density_gradient(self, x: Tensor, t: Time) -> Tensor:
        """Return grad_x log p_t(x): (B, *). It is differentiable if autograd is enabled."""
        return self.score(x, t)


class DecodedEnergyDensity(EnergyDensity):
    """Density of a ``DecodedEnergyModel``."""

    model: DecodedEnergyModel

    def level_log_prob(self, levels: Tensor, x: Tensor, t: float) -> Tensor:
        """Return log P(levels | x_t = x) in nats per dimension: (B, *) float64."""
        return MomentsDensity(self.model.decoder).level_log_prob(levels, x, t)


PROVIDERS[EnergyDensity] = ("an energy network", "models distilled with train/energy.py")

r"""One network for log p_t(x), its Stein score and its time score.

    log p_t(x) = log N(x; 0, I) + 4 u sum_i [f_i(x, t) + x_i g_i(x, t)],

u the share of the path's clock up to t, f and g the two outputs of the network. At t = 0 it is
N(0, I) exactly; later it integrates to 1 as far as the time derivative is exact. Both derivatives
come from one backward pass and belong to the same function, as the two heads of
``TimeScoreModel`` do not.

Of other forms, each distilled for 400 core seconds, this one had the best bound on validation
digits, in bits per dim: 1.702; x . g alone 1.710, f alone 1.712, a squared norm |x + f|^2 2.119.
Normalisation over groups had 1.702, over all channels 1.719, none 1.794, a scale by channel 1.845.

Source: Guth, Kadkhodaie, Simoncelli 2025, arXiv:2506.05310, for an energy whose two derivatives
are trained. Theirs are trained on data; here they are distilled (``training.energy_task``).
"""

from typing import Any

import torch
from torch import Tensor, nn

from ebm_app.config import Residual
from ebm_app.nets.energy import TimeScoreEnergy
from ebm_app.nets.time_score import ModelOutput, TimeScoreModel, arc_length_fraction
from ebm_app.paths import GaussianPath
from ebm_app.utils.tensors import (
    expand_like,
    leaves,
    standard_normal_log_density,
    sum_except_batch,
)

#: of the network's part of the energy: with it its outputs are of order 1
GAIN = 4.0


class EnergyModel(TimeScoreModel):
    """log p_t(x) by one evaluation of a network, and both of its derivatives by one more pass.

    Args:
        net: (x (B, C, ...), time (B,)) -> (B, 2 C', ...) with as many outputs f as components of
            the point, then as many g.
        path: from N(0, I). eps: as for ``TimeScoreModel``.
        inputs: ``time_input``, ``input_frequencies`` and ``condition_dim``, as there.

    Raises:
        UserError: for a path that does not start from N(0, I).

    >>> from ebm_app.paths import LinearVPPath
    >>> model = EnergyModel(lambda x, t: torch.cat([x, x], 1), LinearVPPath(), eps=1e-3)
    >>> x, t = torch.randn(3, 2), torch.full((3,), 0.5, dtype=torch.float64)
    >>> model.log_density(x, t).shape, model(x, t).score.shape, model.time_score(x, t).shape
    (torch.Size([3]), torch.Size([3, 2]), torch.Size([3]))
    """

    def __init__(self, net: nn.Module, path: GaussianPath, eps: float, **inputs: Any) -> None:
        path.check_reference()
        super().__init__(net, path, eps, prediction="raw", **inputs)
        self.stein_channels = 1  # there is a Stein score, if from no channel of its own

    def terms(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Tensor:
        """The terms (B, *) float64 whose sum is log p_t(x), in nats, at x (B, *) and t (B,)
        float64."""
        f, g = self.outputs(x, t, condition).double().chunk(2, dim=1)
        share = arc_length_fraction(self.path, self.interval, t)
        point = x.double()
        own = GAIN * expand_like(share, point) * (f + point * g)
        return standard_normal_log_density(point) + own

    def log_density(self, x: Tensor, t: Tensor) -> Tensor:
        """log p_t(x) in nats: x (B, *), t (B,) float64 -> (B,) float64."""
        return sum_except_batch(self.terms(x, t))

    def forward(
        self,
        x: Tensor,
        t: Tensor,
        condition: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> ModelOutput:
        """Both derivatives of ``log_density``; they can be differentiated where autograd is on.

        The time score has no parts: each of its components (B, *) is an equal share of it.
        """
        is_kept = torch.is_grad_enabled()
        with leaves(x, t.detach()) as (point, time):
            total = self.terms(point, time, condition).sum()
            score, rate = torch.autograd.grad(total, (point, time), create_graph=is_kept)
        shares = expand_like(rate / x[0].numel(), score).expand_as(score)
        return ModelOutput(shares, score)


class OnePassEnergy(TimeScoreEnergy):
    """The energy of an ``EnergyModel``: log densities and their gradients without an integral.

    Args:
        model, num_nodes: as for ``TimeScoreEnergy``, of ``log_ratio``.
        residual: what one pass is known to be off by, at the model's last time.
    """

    model: EnergyModel

    def __init__(
        self, model: EnergyModel, num_nodes: int = 32, residual: Residual | None = None
    ) -> None:
        super().__init__(model, num_nodes)
        self.residual = residual or Residual()

    def terms(self, x: Tensor, t: float) -> Tensor:
        """The terms (B, *) float64 of log p_t(x), all at the time ``t``."""
        return self.model.terms(x, torch.full((len(x),), t, dtype=torch.float64, device=x.device))

    def log_density(self, x: Tensor, t: float | None = None) -> Tensor:
        """log p_t(x), in nats: (B, *) -> (B,) float64; t = 1 - eps by default."""
        with torch.no_grad():
            return sum_except_batch(self.terms(x, self.end if t is None else t))

    proposal_log_density = log_density

    def score(self, x: Tensor, t: float | None = None) -> Tensor:
        """grad_x log p_t(x): (B, *); it can be differentiated where autograd is on."""
        return self.output(x, self.end if t is None else t).score

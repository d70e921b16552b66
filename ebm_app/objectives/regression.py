r"""Training objectives, each a loss per example (B,).

``ConditionalRegression`` is Theorem 3 of the paper (arXiv:2502.02300): the minimiser of
E[lambda(t) ||f(x, t | z) - s(x, t)||^2] is s = E[f | x], whatever the conditional target f. CTSM,
CTSM-v and the regression of a Stein head are its cases, and for any Bregman divergence in place of
the square, as in CTSM-m, the minimiser is the same. ``TSM`` is the baseline, by integration by
parts.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from ebm_app.nets.parametrisation import ENERGY, PREDICTIONS
from ebm_app.nets.time_score import ModelOutput
from ebm_app.objectives.weighting import Weighting, time_score
from ebm_app.paths import GaussianPath, OneSidedPath, PathSample
from ebm_app.utils.tensors import derivative, expand_like, mean_except_batch, sum_except_batch

Model = Callable[[Tensor, Tensor], ModelOutput]


class Objective(ABC):
    """A loss per example for a model of the time score along a path; ``trains`` says for which
    predictions of a network it is.

    Args:
        weighting: lambda(t); time score normalisation by default.
        stein_factor: weight of a Stein head, 0 for none. eps: margin of the times.
    """

    trains: ClassVar[tuple[str, ...]] = tuple(PREDICTIONS)

    def __init__(
        self, weighting: Weighting | None = None, stein_factor: float = 0.0, eps: float = 1e-5
    ) -> None:
        self.weighting, self.stein_factor, self.eps = weighting or time_score, stein_factor, eps

    @abstractmethod
    def __call__(
        self, model: Model, path: GaussianPath, sample: PathSample, weight: Tensor
    ) -> Tensor:
        """Loss (B,) of a sample of the path whose times have importance weights (B,) (see
        ``time_sampling``)."""


class ConditionalRegression(Objective):
    """lambda(t) times ``error``, and with a factor the regression of a Stein head in the same pass
    (Theorem 3)."""

    @staticmethod
    @abstractmethod
    def error(output: ModelOutput, path: GaussianPath, sample: PathSample) -> Tensor:
        """The loss (B,) of the output of a model, before any weighting."""

    def __call__(
        self, model: Model, path: GaussianPath, sample: PathSample, weight: Tensor
    ) -> Tensor:
        output = model(sample.xt, sample.t)
        loss = self.weighting(path, sample.t) * self.error(output, path, sample)
        if self.stein_factor == 0:
            return loss
        # of the head h in score = a_t x + b_t h, with equal weight at every t
        weight = path.score_gain(sample.t).square().reciprocal()
        squares = (path.conditional_score(sample) - output.score).square()
        return loss + self.stein_factor * weight * mean_except_batch(squares)


class CTSM(ConditionalRegression):
    """CTSM: regression on the conditional time score (Theorem 1), by the squared error of the sum
    of the components."""

    @staticmethod
    def error(output: ModelOutput, path: GaussianPath, sample: PathSample) -> Tensor:
        target = sum_except_batch(path.conditional_components(sample))
        return (target - sum_except_batch(output.components)).square()


class Dual(ConditionalRegression):
    """Both derivatives of an energy: the mean over components of CTSM's squared error, and with a
    factor the regression of its gradient.

    Source: Guth, Kadkhodaie, Simoncelli 2025, arXiv:2506.05310, "dual score matching".
    """

    trains = (ENERGY,)

    @staticmethod
    def error(output: ModelOutput, path: GaussianPath, sample: PathSample) -> Tensor:
        return CTSM.error(output, path, sample) / sample.xt[0].numel()


class CTSMv(ConditionalRegression):
    """CTSM-v: regression on every component of it (Theorem 2), by the mean of the squared errors.

    Raises (when it is called):
        ValueError: where the model does not predict every component.
    """

    @staticmethod
    def error(output: ModelOutput, path: GaussianPath, sample: PathSample) -> Tensor:
        target, found = path.conditional_components(sample), output.components
        if found.shape != target.shape:
            raise ValueError(
                f"CTSM-v needs components {tuple(target.shape)}, not {tuple(found.shape)}"
            )
        return mean_except_batch((target - found).square())


class CTSMm(ConditionalRegression):
    r"""CTSM-m, for a model that predicts posterior moments: its mean by the Stein head's
    regression, its variance w by the mean over components of b^2 (w - r^2 log w), a Poisson
    deviance, in nats^2 per t^2.

    r is the deviation of the Stein head's target from the head, which is not trained here, and b =
    ``OneSidedPath.variance_gain``: by the head, b (r^2 - w) is the conditional time score less the
    model's. The minimiser over w is E[r^2 | x], as that of every Bregman divergence is (Banerjee
    et al. 2005, https://jmlr.org/papers/v6/banerjee05b.html), so that Theorem 3 holds. The
    gradient in log w is w - r^2: where it vanishes the sum of the variances is right.
    """

    trains = ("moments",)

    @staticmethod
    def error(output: ModelOutput, path: OneSidedPath, sample: PathSample) -> Tensor:
        residual = path.conditional_score(sample) - output.score.detach()
        residual = residual / expand_like(path.score_gain(sample.t), residual)
        gain = expand_like(path.variance_gain(sample.t), residual)
        deviance = output.variance - residual.square() * output.variance.log()
        return mean_except_batch(gain.square() * deviance)


class TSM(Objective):
    r"""Time score matching by integration by parts, for s(x, t) the model's time score:

        [2 lambda(t0) s(x_t0, t0) - 2 lambda(t1) s(x_t1, t1)] / (t1 - t0)
          + E_t[w (2 lambda ds/dt + 2 lambda' s + lambda s^2)],   t uniform on [t0, t1], w its
          weight.

    It equals E_t[lambda (d/dt log p_t(x) - s)^2] up to a constant. The paper's eq. 6 writes lambda
    = 1 at both ends; the factor 2 on lambda' is the one its appendix F.1 corrects.

    Source: Choi et al. 2022, arXiv:2111.11010, and the paper.
    """

    @torch.enable_grad()  # a validation has none
    def __call__(
        self, model: Model, path: GaussianPath, sample: PathSample, weight: Tensor
    ) -> Tensor:
        start, end = path.interval(self.eps)
        t = sample.t.detach().requires_grad_()
        s = sum_except_batch(model(sample.xt, t).components)
        (s_dt,) = torch.autograd.grad(s.sum(), t, create_graph=True)
        scale = self.weighting(path, sample.t)
        scale_dt = derivative(lambda s: self.weighting(path, s), sample.t)
        interior = 2 * scale * s_dt + 2 * scale_dt * s + scale * s.square()
        boundary = self._boundary(model, path, sample, start) - self._boundary(
            model, path, sample, end
        )
        return weight * interior + boundary / (end - start)

    def _boundary(
        self, model: Model, path: GaussianPath, sample: PathSample, time: float
    ) -> Tensor:
        t = torch.full_like(sample.t, time)
        x = path.complete(sample.x0, sample.x1, t, sample.eps).xt
        return 2 * self.weighting(path, t) * sum_except_batch(model(x, t).components)


OBJECTIVES: dict[str, type[Objective]] = {
    "ctsm": CTSM,
    "ctsm_v": CTSMv,
    "ctsm_m": CTSMm,
    "dual": Dual,
    "tsm": TSM,
}

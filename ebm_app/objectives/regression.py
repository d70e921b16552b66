r"""Training objectives for the time score. Each returns one loss per example (B,).

``ConditionalRegression`` is Theorem 3 of the paper (arXiv:2502.02300): for any conditional target
f, the minimiser of E[lambda(t) ||f(x, t | z) - s(x, t)||^2] over s is s = E[f | x]. CTSM, CTSM-v
and the regression of a Stein head are special cases. The minimiser is the same for any Bregman
divergence in place of the square (``DIVERGENCES``). ``TSM``, the baseline, integrates by parts
instead.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from ebm_app.nets.model import ModelOutput
from ebm_app.nets.prediction import PREDICTIONS
from ebm_app.paths import GaussianPath, OneSidedPath, PathSample
from ebm_app.utils.errors import UserError
from ebm_app.utils.registry import choose
from ebm_app.utils.tensors import derivative, expand_like, mean_except_batch, sum_except_batch

Model = Callable[[Tensor, Tensor], ModelOutput]
#: (path, times (B,)) -> lambda(t) > 0 (B,), float64, elementwise
Weighting = Callable[[GaussianPath, Tensor], Tensor]


def uniform(path: GaussianPath, t: Tensor) -> Tensor:
    """Return lambda(t) = 1, the uniform weighting."""
    return torch.ones_like(t)


def stein_score(path: GaussianPath, t: Tensor) -> Tensor:
    """Return lambda(t) = v_t, the inverse second moment of the conditional Stein score (paper,
    section 5)."""
    return path.variance(t)


def inverse_variance(path: GaussianPath, t: Tensor) -> Tensor:
    """Return lambda(t) = 1 / Var[d/dt log p_t(x_i | z)] per dimension, for data with the second
    moment ``path.c``: the paper's time score normalisation (section 5)."""
    return 1 / path.time_score_variance(t)


#: Weightings by name
WEIGHTINGS: dict[str, Weighting] = {
    "uniform": uniform,
    "stein_score": stein_score,
    "inverse_variance": inverse_variance,
}


class Objective(ABC):
    """Loss per example of a time score model along a path.

    Args:
        weighting: lambda(t); ``inverse_variance`` if None.
        stein_factor: weight of the Stein head's loss; 0 for a model without a Stein head.
        t_margin: margin of the interval of times.
    """

    def __init__(
        self, weighting: Weighting | None = None, stein_factor: float = 0.0, t_margin: float = 1e-5
    ) -> None:
        self.weighting = weighting or inverse_variance
        self.stein_factor, self.t_margin = stein_factor, t_margin

    @abstractmethod
    def __call__(
        self, model: Model, path: GaussianPath, sample: PathSample, weight: Tensor
    ) -> Tensor:
        """Return the loss (B,) of a sample of the path. ``weight`` (B,) holds the importance
        weights of the times (see ``time_sampling``)."""


class ConditionalRegression(Objective):
    """Loss lambda(t) ``error`` plus ``stein_factor`` times the regression of the Stein head, in
    one forward pass (Theorem 3). It does not use the importance weights of the times, whose
    density is part of the weighting."""

    @abstractmethod
    def error(self, output: ModelOutput, path: GaussianPath, sample: PathSample) -> Tensor:
        """Return the unweighted loss (B,) of a model's output."""

    def __call__(
        self, model: Model, path: GaussianPath, sample: PathSample, weight: Tensor
    ) -> Tensor:
        output = model(sample.xt, sample.t)
        loss = self.weighting(path, sample.t) * self.error(output, path, sample)
        if self.stein_factor == 0:
            return loss
        # score = a_t x + b_t h: dividing by b_t^2 weights the head h equally at every t
        scale = path.score_gain(sample.t).square().reciprocal()
        squares = (path.conditional_score(sample) - output.score).square()
        return loss + self.stein_factor * scale * mean_except_batch(squares)


class CTSM(ConditionalRegression):
    """CTSM: squared error of the time score, the sum of its per-dimension terms, against the
    conditional time score (Theorem 1)."""

    def error(self, output: ModelOutput, path: GaussianPath, sample: PathSample) -> Tensor:
        target = sum_except_batch(path.conditional_components(sample))
        return (target - sum_except_batch(output.components)).square()


def squared_error(output: ModelOutput, path: GaussianPath, sample: PathSample) -> Tensor:
    """Return the mean squared error of the per-dimension terms, the loss of the paper.

    Raises:
        ValueError: for a network with a single output instead of one per dimension.
    """
    target, terms = path.conditional_components(sample), output.components
    if terms.shape != target.shape:
        raise ValueError(
            f"CTSM-v expects time score terms of shape {tuple(target.shape)}, got "
            f"{tuple(terms.shape)}. Use a network with one output per dimension, or CTSM."
        )
    return mean_except_batch((target - terms).square())


def poisson_deviance(output: ModelOutput, path: OneSidedPath, sample: PathSample) -> Tensor:
    r"""Return the Poisson deviance of the posterior variance w, for a model of the posterior
    moments,

        mean over dimensions of b^2 (w - r^2 log w), in nats^2 per t^2,

    where r is the residual of the Stein head's target, without gradient, and b =
    ``OneSidedPath.variance_gain``. Given the head, b (r^2 - w) is the conditional time score
    minus the model's. The minimiser is w = E[r^2 | x], as for every Bregman divergence (Banerjee
    et al. 2005, https://jmlr.org/papers/v6/banerjee05b.html). The gradient in log w is w - r^2:
    where it vanishes, the sum of the variances is unbiased.
    """
    residual = path.conditional_score(sample) - output.score.detach()
    residual = residual / expand_like(path.score_gain(sample.t), residual)
    gain = expand_like(path.variance_gain(sample.t), residual)
    deviance = output.variance - residual.square() * output.variance.log()
    return mean_except_batch(gain.square() * deviance)


#: Bregman divergences of CTSM-v by name
DIVERGENCES: dict[str, Callable[[ModelOutput, GaussianPath, PathSample], Tensor]] = {
    "poisson": poisson_deviance,
    "squared": squared_error,
}


class CTSMv(ConditionalRegression):
    """CTSM-v: a Bregman divergence of the per-dimension terms of the time score from the
    conditional time score (Theorems 2 and 3).

    Args:
        divergence: a key of ``DIVERGENCES``. "squared" is the loss of the paper. "poisson" is for
            models that predict the posterior variance, whose mean is trained by the regression of
            the Stein head.
        weighting, stein_factor, t_margin: as for ``Objective``.
    """

    def __init__(
        self,
        weighting: Weighting | None = None,
        stein_factor: float = 0.0,
        t_margin: float = 1e-5,
        divergence: str = "squared",
    ) -> None:
        super().__init__(weighting, stein_factor, t_margin)
        self.divergence = DIVERGENCES[choose("divergence", divergence, DIVERGENCES)]

    def error(self, output: ModelOutput, path: GaussianPath, sample: PathSample) -> Tensor:
        return self.divergence(output, path, sample)


class TSM(Objective):
    r"""Time score matching by integration by parts. For the model's time score s(x, t), times t
    uniform on [t0, t1] and importance weights w:

        [2 lambda(t0) s(x_t0, t0) - 2 lambda(t1) s(x_t1, t1)] / (t1 - t0)
          + E_t[w (2 lambda ds/dt + 2 lambda' s + lambda s^2)].

    It equals E_t[lambda (d/dt log p_t(x) - s)^2] up to a constant. The paper's eq. 6 sets lambda
    to 1 at both ends; the factor 2 of lambda' follows the correction in its appendix F.1.

    Source: Choi et al. 2022, arXiv:2111.11010, and the paper.
    """

    @torch.enable_grad()  # ds/dt needs gradients in validation too
    def __call__(
        self, model: Model, path: GaussianPath, sample: PathSample, weight: Tensor
    ) -> Tensor:
        start, end = path.interval(self.t_margin)
        t = sample.t.detach().requires_grad_()
        s = sum_except_batch(model(sample.xt, t).components)
        (s_dt,) = torch.autograd.grad(s.sum(), t, create_graph=True)
        scale = self.weighting(path, sample.t)
        scale_dt = derivative(lambda s: self.weighting(path, s), sample.t)
        interior = 2 * scale * s_dt + 2 * scale_dt * s + scale * s.square()
        ends = []
        for time in (start, end):
            t = torch.full_like(sample.t, time)
            x = path.sample(sample.x0, sample.x1, t, sample.eps).xt
            ends.append(2 * self.weighting(path, t) * sum_except_batch(model(x, t).components))
        return weight * interior + (ends[0] - ends[1]) / (end - start)


#: Objectives by name
OBJECTIVES: dict[str, type[Objective]] = {
    "ctsm": CTSM,
    "ctsm_v": CTSMv,
    "tsm": TSM,
}


def make_objective(
    name: str, divergence: str, weighting: str, stein_factor: float, t_margin: float
) -> Objective:
    """Return an objective by name. ``divergence`` applies to CTSM-v only."""
    kind = OBJECTIVES[choose("objective", name, OBJECTIVES)]
    weigh = WEIGHTINGS[choose("weighting", weighting, WEIGHTINGS)]
    if kind is CTSMv:
        return CTSMv(weigh, stein_factor, t_margin, divergence)
    return kind(weigh, stein_factor, t_margin)


def check_objective(name: str, divergence: str, prediction: str) -> None:
    """Raise a UserError if an objective cannot train a prediction."""
    predicts_variance = PREDICTIONS[prediction].needs_head
    if (name, divergence) == ("ctsm_v", "poisson") and not predicts_variance:
        raise UserError(
            f"divergence poisson needs a posterior variance, which prediction {prediction} "
            "lacks. Use divergence squared, or prediction levels or moments."
        )

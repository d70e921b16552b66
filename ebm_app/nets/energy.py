r"""Log densities from time scores: log p_t(x) = log N(x; 0, I) + integral_0^t d/ds log p_s(x) ds.

With x fixed the log ratio is a one-dimensional integral. Its default is a Gauss-Legendre rule
whose nodes lie in the path's Fisher-Rao clock, where the integrand has unit scale; the adaptive
ODE solve is the paper's protocol and an independent check. All values are in nats.
"""

import math
from collections.abc import Callable, Iterator
from copy import copy
from functools import lru_cache
from typing import NamedTuple, Self

import torch
from torch import Tensor

from ebm_app.config import Margin
from ebm_app.nets.labelled import LabelledModel
from ebm_app.nets.time_score import ModelOutput, TimeScoreModel
from ebm_app.paths import GaussianPath
from ebm_app.utils.errors import NumericalError, UserError, shorten
from ebm_app.utils.fields import Nodes, check_argument
from ebm_app.utils.quadrature import ADAPTIVE, Rule, integrate, rule_on
from ebm_app.utils.registry import choose
from ebm_app.utils.tensors import expand_like, leaves, sum_except_batch

QUADRATURE = "quadrature"
INTEGRATORS = (QUADRATURE, *ADAPTIVE)
HEAD, INTEGRAL = "head", "integral"
#: numbers of x that a network gets together: on a CPU, memory of more than these is fresh at every
#: layer, and to have it cleared costs as much as the network
CHUNK_SIZES, LARGE_CHUNK = {"cpu": 2**16}, 2**20


@lru_cache(maxsize=1024)
@torch.inference_mode(False)  # what is kept may be differentiated later
def arc_length_rule(
    path: GaussianPath,
    whole: tuple[float, float],
    part: tuple[float, float],
    num_nodes: int,
    min_nodes: int,
) -> Rule:
    """A rule in t on ``part``, whose nodes lie in the clock: its weights carry dt / d tau.

    It has min_nodes + s (num_nodes - min_nodes) nodes, where s is the share of ``part`` in the
    clock of ``whole``. Kept, because inverting the clock costs as much as a small network.
    """
    whole_ends, ends = (
        path.arc_length(torch.tensor(pair, dtype=torch.float64)) for pair in (whole, part)
    )
    share = ((ends[1] - ends[0]) / (whole_ends[1] - whole_ends[0])).abs().item()
    rule = rule_on(
        math.ceil(min_nodes + share * (num_nodes - min_nodes)), ends[0].item(), ends[1].item()
    )
    times = path.arc_length_inverse(rule.nodes)
    dt = path.time_score_variance(times).rsqrt()
    return Rule(times, rule.weights * dt, rule.coarse_weights * dt)


class LogDensity(NamedTuple):
    """log p_t(x), or a difference of it between two times, in nats: (B,) float64, an estimate of
    the numerical error of each (B,), the parts (B, *) that sum to the value, or None, and the
    evaluations of the network for each example."""

    value: Tensor
    error: Tensor
    components: Tensor | None
    nfe: int


class TimeScoreEnergy:
    """The energy-based model of a time score: log ratios, log densities and their gradients.

    Args:
        model: predicts d/dt log p_t(x) on [t0, t1].
        num_nodes: nodes of the rule for the whole interval [t0, t1], at least 3; a part that is a
            share s of its clock gets n + s (num_nodes - n) with n = ``min_nodes``: measured on
            Gaussian data, parts are then as accurate as the whole, which s num_nodes is not.

    Raises:
        UserError: for what is no model of a path, and a number of nodes out of range.
    """

    min_nodes = 8

    def __init__(self, model: TimeScoreModel, num_nodes: int = 32) -> None:
        if not isinstance(getattr(model, "path", None), GaussianPath):
            raise UserError(f"model: give a TimeScoreModel, not {shorten(repr(model))}")
        self.model, self.path = model, model.path
        self.num_nodes = check_argument(Nodes, "num_nodes", num_nodes)
        self.start, self.end = model.interval

    def with_nodes(self, num_nodes: int) -> Self:
        """The same energy by a rule of another size."""
        other = copy(self)
        other.num_nodes = check_argument(Nodes, "num_nodes", num_nodes)
        return other

    def given(self, labels: Tensor, guidance: float = 1.0) -> Self:
        """The energy of p(x | y), y the ``labels`` (B,) of the points; see ``LabelledModel``."""
        other = copy(self)
        other.model = LabelledModel(self.model, labels, guidance)
        return other

    def with_eps(self, eps: float) -> Self:
        """The same energy with another margin, which extrapolates if below the model's own.

        Raises:
            UserError: for a margin out of range.
        """
        other = copy(self)
        other.start, other.end = self.path.interval(check_argument(Margin, "eps", eps))
        return other

    def output(self, x: Tensor, t: float) -> ModelOutput:
        """What the model predicts at ``x`` (B, *), all at the time ``t``.

        >>> from ebm_app import EBM
        >>> EBM.from_pretrained("digits").energy.output(torch.zeros(2, 1, 8, 8), 0.5).score.shape
        torch.Size([2, 1, 8, 8])
        """
        times = torch.full((len(x),), t, dtype=torch.float64, device=x.device)
        return self.model(x, times)

    def log_ratio(
        self,
        x: Tensor,
        t0: float | None = None,
        t1: float | None = None,
        integrator: str = QUADRATURE,
        rtol: float = 1e-6,
        atol: float = 1e-6,
    ) -> LogDensity:
        """log p_t1(x) - log p_t0(x) for x (B, *); the model's whole interval by default.

        Args:
            integrator: "quadrature", or an adaptive solver: "dopri5" (torchdiffeq), "rk45"
                (SciPy).
            rtol, atol: tolerances of a solver; 1e-6 in the paper's protocol.

        Raises:
            UserError: for an unknown integrator, or a result that is not finite.
        """
        choose("integrator", integrator, INTEGRATORS)
        t0, t1 = self.start if t0 is None else t0, self.end if t1 is None else t1
        with torch.no_grad():
            if integrator == QUADRATURE:
                result = self._quadrature(x, t0, t1)
            else:
                integral = integrate(
                    lambda t: sum_except_batch(self.model(x, t.expand(len(x))).parts()),
                    t0,
                    t1,
                    like=x.flatten(1)[:, 0],
                    solver=integrator,
                    rtol=rtol,
                    atol=atol,
                )
                result = LogDensity(integral.value, integral.error, None, integral.nfe)
        if not result.value.isfinite().all():
            raise NumericalError(
                f"the log ratio from t = {t0} to {t1} is not finite: the training of the model "
                "has diverged, or its settings are out of range"
            )
        return result

    def log_density(self, x: Tensor, t: float | None = None) -> Tensor:
        """log p_t(x), in nats: (B, *) -> (B,) float64; t = 1 - eps by default.

        It is normalised as far as the learned time score is exact.

        Raises:
            UserError: on a two-sided path, whose reference density is not known.
        """
        reference = sum_except_batch(self.path.reference_log_density(x))
        return reference + self.log_ratio(x, self.start, t).value

    @torch.no_grad()
    def proposal_log_density(self, x: Tensor, t: float) -> Tensor:
        """log p_t(x) by quadrature; where the network overflows, not finite instead of an error.

        For points that a Markov chain proposes, which it rejects there: (B, *) -> (B,) float64.
        """
        reference = sum_except_batch(self.path.reference_log_density(x))
        return reference + self._quadrature(x, self.start, t).value

    def score(self, x: Tensor, t: float | None = None) -> Tensor:
        """grad_x log p_t(x) as the gradient of the time integral (paper, section 6): (B, *).

        It can be differentiated again where ``x`` requires a gradient.

        Raises:
            UserError: on a two-sided path.
        """
        self.path.check_reference()
        gradient, is_outer = -x, torch.is_grad_enabled() and x.requires_grad
        for times, weights, _ in self._chunks(x, self.start, self.end if t is None else t):
            with leaves(x) as (point,):
                part = torch.tensordot(weights.to(x.device), self._rate(point, times), dims=1)
                slope = torch.autograd.grad(part.sum(), point, create_graph=is_outer)[0]
                gradient = gradient + slope
        return gradient

    def stein_score(self, source: str | None = None) -> Callable[[Tensor, float], Tensor]:
        """(x, t) -> grad_x log p_t(x) from the model's "head" or the gradient of the "integral".

        None takes the head where the model has one: it costs one evaluation of the network instead
        of a differentiated integral. Where autograd is on, it can be differentiated again.

        Raises:
            UserError: for an unknown source, or the head of a model without one.
        """
        name = INTEGRAL if source is None else choose("score", source, (HEAD, INTEGRAL))
        if source != INTEGRAL and self.has_head:
            return lambda x, t: self.output(x, t).score
        if name == HEAD:
            raise UserError("this model has no Stein head: take the score from the integral")
        return self.score

    @property
    def has_head(self) -> bool:
        """Whether the model predicts the Stein score itself."""
        return self.model.stein_channels > 0

    def score_cost(self, t: float) -> int:
        """Evaluations of the network in one call of ``stein_score()`` at time t."""
        return 1 if self.has_head else len(self._rule(self.start, t)[0])

    @torch.no_grad()
    def with_noise_variance(self, x: Tensor, t: float) -> tuple[Tensor, Tensor | None]:
        """The score of ``stein_score()`` and Var[eps | x_t = x], (B, *) each, without gradients;
        None for a variance that the model does not predict."""
        if not self.has_head:
            return self.score(x, t), None
        output = self.output(x, t)
        if output.variance is None:
            return output.score, None
        gain = self.path.noise_variance_gain(torch.tensor(t, dtype=torch.float64))
        return output.score, expand_like(gain, x) * output.variance

    def _quadrature(self, x: Tensor, t0: float, t1: float) -> LogDensity:
        parts, coarse, nfe = [], [], 0
        for times, weights, coarse_weights in self._chunks(x, t0, t1):
            rate = self._rate(x, times)
            parts.append(torch.tensordot(weights.to(x.device), rate, dims=1))
            coarse.append(torch.tensordot(coarse_weights.to(x.device), rate, dims=1))
            nfe += len(times)
        components = torch.stack(parts).sum(0)
        value = sum_except_batch(components)
        error = (value - sum_except_batch(torch.stack(coarse).sum(0))).abs()
        return LogDensity(value, error, components, nfe)

    def _chunks(self, x: Tensor, t0: float, t1: float) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """The rule from t0 to t1, in groups of times that are evaluated together."""
        together = CHUNK_SIZES.get(x.device.type, LARGE_CHUNK)
        size = max(1, together // max(1, x.numel()))
        return zip(*(part.split(size) for part in self._rule(t0, t1)), strict=True)

    def _rule(self, t0: float, t1: float) -> tuple[Tensor, Tensor, Tensor]:
        """The rule of ``arc_length_rule`` from t0 to t1."""
        counts = (self.num_nodes, min(self.min_nodes, self.num_nodes))
        return arc_length_rule(self.path, (self.start, self.end), (t0, t1), *counts)

    def _rate(self, x: Tensor, times: Tensor) -> Tensor:
        """Components of the time score of every x at every time: (n, B, *) float64."""
        num = len(times)
        t = times.to(x.device).repeat_interleave(len(x))
        parts = self.model(x.repeat(num, *(1,) * (x.ndim - 1)), t).parts()
        return parts.unflatten(0, (num, len(x)))

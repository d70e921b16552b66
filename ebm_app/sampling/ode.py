r"""The probability-flow ODE dx/dt = u_t(x), whose solution started from p_0 has the marginals p_t.

With the log-determinant of the map from x_0 to x_t,

    d/dt log |det dx_t/dx_0| = div u_t,        log p_t(x_t) = log p_0(x_0) - int_0^t div u dt.

The divergence div f(x) = sum_i df_i/dx_i is exact, or Hutchinson's estimate z^T (df/dx) z for
random probes z with E[z z^T] = I. The probes of a solve are drawn once, because fresh probes at
every step would make the integrand a random function of time.

The equations are solved in a variable s in [0, 1], a smooth function of time in which their
solution changes slowly (``ProbabilityFlow.times``).

The multistep method. A point of the path is x = alpha x_1 + sigma eps with sigma = sqrt(v), so the
flow, with derivatives by s, is

    dx/ds = E[x_1 | x] dalpha/ds + E[eps | x] dsigma/ds,
    d/ds log |det dx_t/dx_0| = div u dt/ds.

alpha, sigma and t are known functions of s and may change fast. The other factors need the
network, E[x_1 | x] = (x + v score) / alpha and E[eps | x] = -sigma score, but change slowly. So
only they are approximated: each is replaced by the polynomial in s through its last values
f_0, f_1, ..., newest first, at s_0 > s_1 > ..., and the product is integrated exactly. For
E[x_1 | x], with the Lagrange polynomials l_j, which are 1 at s_j and 0 at the other nodes,

    int E[x_1 | x] dalpha = sum_j w_j f_j,     w_j = int l_j(s) (dalpha/ds) ds    over the step.

E[eps | x] has weights with dsigma/ds instead of dalpha/ds, and div u dt/ds weights with 1. The
weights are computed by Gauss-Legendre quadrature. A step is exact where the three factors are
polynomials of low degree, and takes one evaluation:

    predict:  x at the end of the step, with the polynomials through the last p evaluations;
    evaluate: the score at the predicted x;
    correct:  x and the log-determinant, with the polynomials also through the new evaluation.

The new evaluation is kept for the next steps, though x has changed: it is not repeated at the
corrected x. The predicted x has an error of order h^(p + 1) for steps of length h, and so have
the evaluations; integrals of them over a step have errors of order h^(p + 2), and the solution of
order h^(p + 1). With p = ``ORDER`` = 3 the method has order 4. The first steps have fewer earlier
evaluations and lower orders, but are short, because s is concentrated at the ends.

The methods of torchdiffeq do not use this structure. They integrate dx/ds = u dt/ds, as an
independent check.

Sources: Song et al. 2021, arXiv:2011.13456, section 4.3 and appendix D.2; Grathwohl et al. 2019,
FFJORD, arXiv:1810.01367, section 3.1, for the probes; Hairer, Norsett and Wanner 1993, Solving
Ordinary Differential Equations I, chapter III.1, for Adams methods; Zhao et al. 2023, UniPC,
arXiv:2302.04867, for a corrector without a second evaluation; Lu et al. 2022, arXiv:2211.01095,
for integrating known coefficients exactly.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ebm_app.paths import OneSidedPath
from ebm_app.paths.base import Schedule, invert
from ebm_app.utils.errors import NumericalError
from ebm_app.utils.quadrature import gauss_legendre
from ebm_app.utils.random import ImageNoise
from ebm_app.utils.tensors import leaves

Score = Callable[[Tensor, float], Tensor]
#: Concentration of s at both ends, in [0, 1); for 0, tau is linear in s
CONCENTRATION = 0.7


def with_divergence(
    field: Callable[[Tensor], Tensor], x: Tensor, probes: Tensor
) -> tuple[Tensor, Tensor]:
    """Return f(x) (B, *) and an estimate z^T (df/dx) z of its divergence per probe, (K, B)
    float64, both without gradients.

    Each probe costs one backward pass. The field must treat the examples independently.

    Args:
        probes: z, (K, B, *); K = 0 evaluates the field only.
    """
    if not len(probes):
        with torch.no_grad():
            return field(x), torch.zeros(0, len(x), dtype=torch.float64, device=x.device)
    with leaves(x.detach()) as (point,):
        value = field(point)
        forms = [
            (torch.autograd.grad(value, point, z, retain_graph=True)[0] * z).flatten(1).sum(1)
            for z in probes.to(value.dtype)
        ]
    return value.detach(), torch.stack(forms).double()


def probes_for(num: int, like: Tensor, noise: ImageNoise) -> Tensor:
    """Return ``num`` probes (num, B, *) of +1 and -1 for points ``like`` (B, *); for 0 the D unit
    vectors (D, B, *), over which the estimates sum to the exact divergence."""
    if num:
        return noise.sign_draws(num, like)
    size = like[0].numel()
    unit = torch.eye(size, dtype=like.dtype, device=like.device)
    return unit.reshape(size, 1, *like.shape[1:]).expand(size, *like.shape)


class Times(NamedTuple):
    """Times t(s), and the derivatives of t, alpha and sigma = sqrt(v) by s, each a float64 tensor
    with the shape of s."""

    t: Tensor
    t_ds: Tensor
    alpha_ds: Tensor
    sigma_ds: Tensor


class ProbabilityFlow:
    """Initial value problem of the probability flow of a model.

    Args:
        score: (x, t) -> grad_x log p_t(x), evaluated in the dtype of ``x``.
        schedule: function of time that defines s, see ``times``.
        x: points at the first time, (B, *).
        ends: first and last time, in either direction, at which alpha exceeds 0.
        probes: probes of the divergence (K, B, *), see ``with_divergence``; None for K = 0.
    """

    def __init__(
        self,
        score: Score,
        path: OneSidedPath,
        schedule: Schedule,
        x: Tensor,
        ends: tuple[float, float],
        probes: Tensor | None = None,
    ) -> None:
        self.score, self.path, self.schedule, self.x, self.ends = score, path, schedule, x, ends
        self.probes = x.new_zeros(0, *x.shape) if probes is None else probes
        self.squares = self.probes.double().square().flatten(2).sum(2)

    def times(self, s: Tensor) -> Times:
        """Return the times at ``s`` in [0, 1], on the CPU. The schedule's tau, scaled to [0, 1],
        is s - a / (2 pi) sin(2 pi s) with a = ``CONCENTRATION``, so that even steps in s are
        small near the ends, where the solution changes fastest."""
        first, last = self.schedule.tau(self.path, torch.tensor(self.ends, dtype=torch.float64))
        turns = 2 * math.pi * s
        tau = first + (last - first) * (s - CONCENTRATION / (2 * math.pi) * turns.sin())
        t = invert(partial(self.schedule.tau, self.path), tau)
        t = t.clamp(min(self.ends), max(self.ends))
        tau_ds = (last - first) * (1 - CONCENTRATION * turns.cos())
        t_ds = tau_ds / self.schedule.rate(self.path, t)
        sigma_dt = self.path.variance_dt(t) / (2 * self.path.variance(t).sqrt())
        return Times(t, t_ds, self.path.alpha_dt(t) * t_ds, sigma_dt * t_ds)

    def evaluate(self, x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return the score (B, *) and an estimate of div u per probe (K, B), both float64.

        Args:
            x: (B, *) float64. t: () on the CPU.
        """
        time = t.item()
        point = x.to(self.x.dtype)
        value, forms = with_divergence(lambda x: self.score(x, time), point, self.probes)
        # u is linear in x and in the score, and z^T (dx/dx) z = z^T z
        return value.double(), self.path.velocity(self.squares, forms, t)


#: Evaluations through which the predictor interpolates
ORDER = 3
#: Gauss-Legendre nodes of the integrals over a step
NUM_NODES = 8
#: Max steps of an adaptive solver
MAX_STEPS = 1_000

Method = Literal["multistep", "rk4", "dopri5"]


class FlowState(NamedTuple):
    """Points ``x`` (B, *) at ``s``, the number of evaluations of the score, and an estimate (K, B)
    float64 of the log-determinant per probe."""

    x: Tensor
    s: float
    nfe: int
    log_det: Tensor


class SolverSettings(NamedTuple):
    """Number of steps, used by methods with steps of equal length in s, and relative and absolute
    tolerance, used by adaptive methods."""

    num_steps: int
    rtol: float
    atol: float


class NodeValues(NamedTuple):
    """E[x_1 | x] and E[eps | x] (B, *), and div u dt/ds (K, B), at one node."""

    data: Tensor
    noise: Tensor
    log_det: Tensor


class Weights(NamedTuple):
    """Weights of the fields of ``NodeValues``, (num_steps, num_evaluations) float64 each: the
    integral over step i of a field is sum_j weight[i, j] field_j, with the newest evaluation
    first."""

    data: Tensor
    noise: Tensor
    log_det: Tensor


def lagrange(nodes: Tensor, s: Tensor) -> Tensor:
    """Return the polynomials that are 1 at one of ``nodes`` (m,) and 0 at the others, at ``s``
    (n,): (n, m)."""
    same = torch.eye(len(nodes), dtype=torch.bool)
    ratios = (s[:, None, None] - nodes) / (nodes[:, None] - nodes)
    return ratios.masked_fill(same, 1).prod(-1)


def multistep_weights(flow: ProbabilityFlow, num_steps: int) -> tuple[Weights, Weights]:
    """Return the weights of the predictor and of the corrector. Step i of the predictor uses
    min(i + 1, ORDER) evaluations, and the corrector one more; other weights are 0."""
    rule = gauss_legendre(NUM_NODES)
    inner = (rule.nodes + 1) / 2  # in steps, from the start of the step
    steps = torch.arange(num_steps, dtype=torch.float64)
    times = flow.times((steps[:, None] + inner).flatten() / num_steps)
    rates = torch.stack([times.alpha_ds, times.sigma_ds, torch.ones_like(times.t)])
    measures = rates.unflatten(1, (num_steps, -1)) * rule.weights / (2 * num_steps)

    predict = torch.zeros(3, num_steps, ORDER, dtype=torch.float64)
    correct = torch.zeros(3, num_steps, ORDER + 1, dtype=torch.float64)
    ages = torch.arange(ORDER + 1, dtype=torch.float64)
    for order in range(1, ORDER + 1):  # the next order overwrites the weights of later steps
        later = measures[:, order - 1 :]
        predict[:, order - 1 :, :order] = later @ lagrange(-ages[:order], inner)
        correct[:, order - 1 :, : order + 1] = later @ lagrange(1 - ages[: order + 1], inner)
    return Weights(*predict), Weights(*correct)


def change(weights: Weights, step: int, evaluations: list[NodeValues]) -> tuple[Tensor, Tensor]:
    """Return the changes over a step of the points and of the log-determinant."""
    columns = zip(*(weight[step].tolist() for weight in weights), strict=True)
    terms = list(
        zip(columns, evaluations, strict=False)
    )  # there may be fewer evaluations, or more
    of_x = sum(data * f.data + noise * f.noise for (data, noise, _), f in terms)
    of_log_det = sum(log_det * f.log_det for (_, _, log_det), f in terms)
    return of_x, of_log_det


def multistep(flow: ProbabilityFlow, settings: SolverSettings) -> Iterator[FlowState]:
    """Solve by the multistep method of the module docstring, with ``num_steps`` + 1 evaluations.
    The host does not wait for a GPU."""
    num_steps = settings.num_steps
    predict, correct = multistep_weights(flow, num_steps)
    nodes = flow.times(torch.arange(num_steps + 1, dtype=torch.float64) / num_steps)

    def evaluate(x: Tensor, node: int) -> NodeValues:
        t = nodes.t[node]
        score, divergence = flow.evaluate(x, t)
        noise = -flow.path.variance(t).sqrt() * score
        return NodeValues(flow.path.denoise(x, score, t), noise, divergence * nodes.t_ds[node])

    x, log_det = flow.x.double(), torch.zeros_like(flow.squares)
    evaluations = [evaluate(x, 0)]
    for step in range(num_steps):
        predicted = x + change(predict, step, evaluations)[0]
        evaluations = [evaluate(predicted, step + 1), *evaluations[:ORDER]]
        of_x, of_log_det = change(correct, step, evaluations)
        x, log_det = x + of_x, log_det + of_log_det
        yield FlowState(x.to(flow.x.dtype), (step + 1) / num_steps, step + 2, log_det)


class FlowField:
    """Field of the flow for torchdiffeq, whose state is the points and the log-determinant. It
    counts its evaluations. The host waits for a GPU at each."""

    def __init__(self, flow: ProbabilityFlow) -> None:
        self.flow, self.nfe = flow, 0
        self.state = flow.x.double(), torch.zeros_like(flow.squares)

    def __call__(self, s: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the derivatives by s."""
        self.nfe += 1
        x, times = state[0], self.flow.times(s.cpu())
        score, divergence = self.flow.evaluate(x, times.t)
        return self.flow.path.velocity(x, score, times.t) * times.t_ds, divergence * times.t_ds

    def integrate(self, start: float, end: float, **options: Any) -> FlowState:
        """Replace the state at s = ``start`` by that at ``end``. ``options`` are those of
        ``odeint``."""
        from torchdiffeq import odeint  # imports scipy.integrate, which takes half a second

        s = torch.tensor([start, end], dtype=torch.float64, device=self.flow.x.device)
        x, log_det = odeint(self, self.state, s, **options)
        self.state = x[-1], log_det[-1]
        return FlowState(x[-1].to(self.flow.x.dtype), end, self.nfe, log_det[-1])


def rk4(flow: ProbabilityFlow, settings: SolverSettings) -> Iterator[FlowState]:
    """Solve by the Runge-Kutta method of order 4 of torchdiffeq, with 4 ``num_steps``
    evaluations."""
    field, num_steps = FlowField(flow), settings.num_steps
    for step in range(num_steps):
        yield field.integrate(step / num_steps, (step + 1) / num_steps, method="rk4")


def dopri5(flow: ProbabilityFlow, settings: SolverSettings) -> Iterator[FlowState]:
    """Solve by the adaptive Dormand-Prince method of torchdiffeq, and yield the last state only.

    The batch shares its steps, so within the tolerance a result depends on the other points of the
    batch. In each step, the estimated error is below ``atol`` + ``rtol`` |y| for each
    log-determinant y, and for each point in the root mean square over its dimensions.

    Raises:
        NumericalError: where the tolerance cannot be reached, or the flow is not finite.
    """

    def worst(state: tuple[Tensor, Tensor]) -> Tensor:
        """Return the largest ratio of an error to its tolerance."""
        points = state[0].flatten(1).square().mean(1).sqrt()
        return torch.cat([points, state[1].abs().flatten()]).max()

    options = {"norm": worst, "max_num_steps": MAX_STEPS, "step_t": torch.ones(1)}
    tolerances = {"rtol": settings.rtol, "atol": settings.atol}
    try:
        yield FlowField(flow).integrate(0.0, 1.0, method="dopri5", options=options, **tolerances)
    except AssertionError as error:
        raise NumericalError(
            f"The probability flow from t = {flow.ends[0]} to {flow.ends[1]} failed: {error}. "
            "Increase rtol and atol, or use method=multistep."
        ) from None


Solver = Callable[[ProbabilityFlow, SolverSettings], Iterator[FlowState]]
SOLVERS: dict[str, Solver] = {"multistep": multistep, "rk4": rk4, "dopri5": dopri5}
#: Methods whose steps depend on the tolerances, not on ``num_steps``
ADAPTIVE = ("dopri5",)


def solve_flow(
    flow: ProbabilityFlow, method: Method, settings: SolverSettings
) -> Iterator[FlowState]:
    """Solve by one of ``SOLVERS``, and yield the state after each step. The solver keeps it in
    float64.

    Raises:
        NumericalError: where the flow is not finite.
    """
    for state in SOLVERS[method](flow, settings):
        yield state
    finite = state.x.flatten(1).isfinite().all() & state.log_det.isfinite().all()
    if not finite:  # only once, because each check synchronises with the GPU
        raise NumericalError(
            f"The probability flow from t = {flow.ends[0]} to {flow.ends[1]} is not finite. Check "
            "that the training of the model converged and that the settings are in range."
        )

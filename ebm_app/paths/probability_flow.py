r"""The probability-flow ODE dx/dt = u_t(x), whose solution started from p_0 has the marginals p_t.

With E[x_1 | x] and E[eps | x] from the Stein score, and s in [0, 1] a smooth function of time,

    dx/ds = E[x_1 | x] dalpha/ds + E[eps | x] dsigma/ds,
    d/ds log |det dx_t/dx_0| = div u dt/ds.

Both expectations and the integrand on the right change slowly in s. An Adams-Bashforth-Moulton
step interpolates them by polynomials in s, and integrates the polynomials against alpha, sigma
and s; a step is exact where both expectations are constant. With the log-determinant,

    log p_t(x_t) = log p_0(x_0) - int_0^t div u ds.

The divergence div f(x) = sum_i df_i/dx_i is exact, or Hutchinson's estimate z^T (df/dx) z for
random probes z with E[z z^T] = I. The probes of a solve are drawn once, because fresh probes at
every step would make the integrand a random function of time.

Sources: Song et al. 2021, arXiv:2011.13456, section 4.3 and appendix D.2; Zhao et al. 2023, UniPC,
arXiv:2302.04867, for a corrector without a second evaluation; Grathwohl et al. 2019, FFJORD,
arXiv:1810.01367, section 3.1, for the probes.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ebm_app.paths.base import Schedule, invert
from ebm_app.paths.one_sided import OneSidedPath
from ebm_app.utils.errors import NumericalError
from ebm_app.utils.quadrature import gauss_legendre
from ebm_app.utils.random import draws_by_point
from ebm_app.utils.tensors import leaves

Score = Callable[[Tensor, float], Tensor]
#: Max evaluations that a step uses besides its own
ORDER = 3
#: Concentration of the steps at both ends, in [0, 1); 0 spaces them evenly in tau
CONCENTRATION = 0.7
#: Gauss-Legendre nodes of the integrals over a step
NUM_NODES = 8


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


def probes_for(num: int, like: Tensor, seed: int) -> Tensor:
    """Return ``num`` probes (num, B, *) of +1 and -1 for points ``like`` (B, *), see
    ``draws_by_point``; for 0 the D unit vectors (D, B, *), over which the estimates sum to the
    exact divergence."""
    if num:
        signs = partial(torch.randint, 2)
        return 2 * draws_by_point(signs, num, like, seed) - 1
    size = like[0].numel()
    unit = torch.eye(size, dtype=like.dtype, device=like.device)
    return unit.reshape(size, 1, *like.shape[1:]).expand(size, *like.shape)


def lagrange(nodes: Tensor, s: Tensor) -> Tensor:
    """Return the polynomials that are 1 at one of ``nodes`` (m,) and 0 at the others, at ``s``
    (n,): (n, m)."""
    same = torch.eye(len(nodes), dtype=torch.bool)
    ratios = (s[:, None, None] - nodes) / (nodes[:, None] - nodes)
    return ratios.masked_fill(same, 1).prod(-1)


class Steps(NamedTuple):
    """Nodes t and dt/ds (n + 1,), and the weights of each order, ``predict[order - 1][step]`` of
    the last evaluations and ``correct[order - 1][step]`` with the new one in front. Weights are
    three lists: of E[x_1 | x] by dalpha, of E[eps | x] by dsigma, and of div u dt/ds by ds."""

    t: Tensor
    t_ds: Tensor
    predict: list[list[list[list[float]]]]
    correct: list[list[list[list[float]]]]


def steps_of(
    path: OneSidedPath, schedule: Schedule, ends: tuple[float, float], num_steps: int
) -> Steps:
    """Place ``num_steps`` steps evenly in s, where tau of the schedule, scaled to [0, 1], is s - a
    / (2 pi) sin(2 pi s) with a = ``CONCENTRATION``. The first steps, of low order, are small, as
    are those near the ends, where the rates change fastest."""
    first, last = schedule.tau(path, torch.tensor(ends, dtype=torch.float64))

    def times(s: Tensor) -> tuple[Tensor, Tensor]:
        """Return t(s) and dt/ds."""
        turns = 2 * math.pi * s
        tau = first + (last - first) * (s - CONCENTRATION / (2 * math.pi) * turns.sin())
        t = invert(partial(schedule.tau, path), tau).clamp(min(ends), max(ends))
        return t, (last - first) * (1 - CONCENTRATION * turns.cos()) / schedule.rate(path, t)

    rule = gauss_legendre(NUM_NODES)
    inner = (rule.nodes + 1) / 2
    index = torch.arange(num_steps + 1, dtype=torch.float64)
    t, t_ds = times((index[:-1, None] + inner).flatten() / num_steps)
    sigma_dt = path.variance_dt(t) / (2 * path.variance(t).sqrt())
    rates = torch.stack([path.alpha_dt(t) * t_ds, sigma_dt * t_ds, torch.ones_like(t)], 1)
    measures = rates.unflatten(0, (num_steps, -1)).mT * rule.weights / (2 * num_steps)
    age = torch.arange(ORDER + 1, dtype=torch.float64)
    orders = range(1, ORDER + 1)
    predict = [(measures @ lagrange(-age[:n], inner)).tolist() for n in orders]
    correct = [(measures @ lagrange(1 - age[: n + 1], inner)).tolist() for n in orders]
    return Steps(*times(index / num_steps), predict, correct)


class FlowState(NamedTuple):
    """Points (B, *) after ``step`` steps, the evaluations of the score so far, and an estimate
    (K, B) of the log-determinant per probe."""

    x: Tensor
    step: int
    nfe: int
    log_det: Tensor


def solve_flow(
    score: Score,
    path: OneSidedPath,
    schedule: Schedule,
    x: Tensor,
    ends: tuple[float, float],
    num_steps: int = 20,
    probes: Tensor | None = None,
) -> Iterator[FlowState]:
    """Follow the flow of a score (x, t) -> grad_x log p_t(x) with ``num_steps`` + 1 evaluations,
    and yield the state after each step. The state is kept in float64; the score is evaluated in
    the dtype of ``x``.

    Args:
        x: points at the first time, (B, *).
        ends: first and last time, in either direction, at which alpha exceeds 0.
        probes: probes of the divergence (K, B, *), see ``with_divergence``; None for no estimate.

    Raises:
        NumericalError: where the flow is not finite.
    """
    probes = x.new_zeros(0, *x.shape) if probes is None else probes
    squares = probes.double().square().flatten(2).sum(2)
    steps = steps_of(path, schedule, ends, num_steps)
    history: list[tuple[Tensor, Tensor, Tensor]] = []

    def evaluate(k: int, state: Tensor) -> None:
        """Add E[x_1 | x], E[eps | x] and div u dt/ds at node k to the front of the history."""
        t = steps.t[k]
        value, forms = with_divergence(lambda x: score(x, t.item()), state.to(x.dtype), probes)
        value = value.double()
        data, noise = path.denoise(state, value, t), -path.variance(t).sqrt() * value
        history.insert(0, (data, noise, path.velocity(squares, forms, t) * steps.t_ds[k]))
        del history[ORDER + 1 :]

    def increment(weights: list[list[float]]) -> tuple[Tensor, Tensor]:
        """Return the changes of the points and of the log-determinant over a step."""
        terms = list(zip(*weights, history, strict=False))
        change = sum(a * data + b * noise for a, b, _, (data, noise, _) in terms)
        return change, sum(c * rate for _, _, c, (_, _, rate) in terms)

    state, log_det = x.double(), torch.zeros_like(squares)
    evaluate(0, state)
    for k in range(num_steps):
        order = min(len(history), ORDER) - 1
        evaluate(k + 1, state + increment(steps.predict[order][k])[0])
        change, change_of_log_det = increment(steps.correct[order][k])
        state, log_det = state + change, log_det + change_of_log_det
        yield FlowState(state.to(x.dtype), k + 1, k + 2, log_det)
    finite = state.flatten(1).isfinite().all() & log_det.isfinite().all()
    if not finite:  # only once, because each check synchronises with the GPU
        raise NumericalError(
            f"The probability flow from t = {ends[0]} to {ends[1]} is not finite. Check that the "
            "training of the model converged and that the settings are in range."
        )

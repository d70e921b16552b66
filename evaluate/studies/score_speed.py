"""What the field of one leapfrog step costs: by the Stein head, by few nodes, by an ODE solve."""

from collections.abc import Callable

import torch
from torch import Tensor

from ebm_app.models.energy import HEAD, TimeScoreEnergy
from ebm_app.paths.clocks import ARC_LENGTH

#: (rtol, atol) of the paper's AIS (appendix F.6) and of its likelihoods
TOLERANCES = {"ode 1e-3/1e-6": (1e-3, 1e-6), "ode 1e-6/1e-6": (1e-6, 1e-6)}
NODES = (4, 12)


def fields(energy: TimeScoreEnergy, x: Tensor) -> dict[str, Callable[[], Tensor]]:
    """The field (B, *) in the middle of the clock, at noisy images of x (B, *), by name."""
    t = ARC_LENGTH.grid(energy.path, energy.start, energy.end, 3)[1].item()
    time = torch.tensor(t, dtype=torch.float64)
    alpha, deviation = energy.path.alpha(time).item(), energy.path.variance(time).sqrt().item()
    generator = torch.Generator(x.device).manual_seed(0)
    noise = torch.randn(x.shape, generator=generator, device=x.device, dtype=x.dtype)
    point = alpha * x + deviation * noise
    found: dict[str, Callable[[], Tensor]] = {
        f"{num} nodes": lambda n=num: energy.with_nodes(n).score(point, t) for num in NODES
    }
    if energy.model.stein_channels:
        head = torch.no_grad()(energy.stein_score(HEAD))
        found["head"] = lambda: head(point, t)
    for name, (rtol, atol) in TOLERANCES.items():
        found[name] = lambda r=rtol, a=atol: ode_gradient(energy, point, t, r, a)
    return found


def ode_gradient(energy: TimeScoreEnergy, x: Tensor, t: float, rtol: float, atol: float) -> Tensor:
    """grad log p_t by back-propagation through torchdiffeq's dopri5, as the paper does."""
    from torchdiffeq import odeint  # half a second to import

    with torch.enable_grad():
        point = x.detach().requires_grad_()
        times = torch.tensor([energy.start, t], dtype=torch.float64, device=x.device)
        zero = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        solution = odeint(
            lambda s, _: energy.model.time_score(point, s.expand(len(x))).double(),
            zero,
            times,
            rtol=rtol,
            atol=atol,
            method="dopri5",
            options={"step_t": times[1:], "first_step": 1e-4},
        )
        (gradient,) = torch.autograd.grad(solution[-1].sum(), point)
    return gradient - x

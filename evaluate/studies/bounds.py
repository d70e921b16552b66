r"""Compare the paper's error bound of log densities (Theorem 4) with the error.

python evaluate/bounds.py --quick

Let s(x, t) = d/dt log p_t(x), estimated by s_hat at t_i = i/K, i = 1, ..., K. With

    log p1_hat(x) = (1/K) sum_i s_hat(x, t_i) + log p_0(x),     KL = E_{p1}[log p1 - log p1_hat],

and |s(x, t) - s(x, t')| <= L(x) |t - t'|, the theorem states

    KL^2 <= E_{p1}[(log p1 - log p1_hat)^2]
         <= E_{p1}[L^2] / (2 K^2) + 2 E_{p1, p_K(t)}[(s - s_hat)^2],     p_K uniform on the grid.

The inequality holds at each x, and therefore for averages over any draws of p1. As p1_hat is not
normalised, this KL may be negative. The data are mixtures of Gaussians with known time scores.

Source: Yu, Klami, Hyvarinen, Korba, Chehab (ICML 2025), section 5 and appendix D
(arXiv:2502.02300).
"""

import math
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.func import jvp, vmap
from tqdm.auto import tqdm

from ebm_app.cli.command_line import CommonFlags, parse
from ebm_app.paths import PATHS, GaussianPath, PathSample
from ebm_app.ratios.pairs import GaussianMixture, mixture
from ebm_app.utils.fields import configuration, setting
from ebm_app.utils.output import Output, to_markdown
from ebm_app.utils.processes import resolve_device
from ebm_app.utils.random import make_generator
from ebm_app.utils.tensors import standard_error

#: Draws of the data, and the numbers K of steps
DRAWS, NUM_STEPS = 10_000, tuple(2**k for k in range(9))
QUICK_DRAWS, QUICK_STEPS = 1_000, (1, 4, 16, 64)
PROBLEMS = {
    "shift": mixture([[1.0, -0.5]], 1.0),
    "narrow": mixture([[0.7, 0.7]], 0.6),
    "mixture": mixture([[-1.0, 0.5], [1.5, 0.5]], 0.6, [0.3, 0.7]),
}
#: Sizes of the error added to the time score
ERRORS = (0.0, 0.1)
#: (x (B, D), t ()) -> (B,)
Function = Callable[[Tensor, Tensor], Tensor]


@configuration(kw_only=True)
class Arguments(CommonFlags):
    """Command-line arguments."""

    quick: bool = setting("use fewer draws and steps, in about a minute", False)
    output_dir: Path = setting("folder of the record", Path("runs/bounds"))


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Compute both sides of the bound for every problem, path, score error and number of steps."""
    args = parse(Arguments, __doc__, argv)
    torch.set_num_threads(1)  # the tensors are too small for several threads
    device = resolve_device(args.device)
    num_draws, num_steps = (QUICK_DRAWS, QUICK_STEPS) if args.quick else (DRAWS, NUM_STEPS)
    output = Output(args.output_dir / "bounds.json", args)
    rows = []
    for (name, data), path in tqdm(list(product(PROBLEMS.items(), PATHS))):
        x = data.sample(num_draws, make_generator(device, args.seed, 0)).double()
        log_density = log_density_of(data, PATHS[path]())
        constant = lipschitz_constant(log_density, x)
        for error, steps in product(ERRORS, num_steps):
            terms = kl_bound(log_density, x, constant, steps, error)
            rows.append({"problem": name, "path": path, "error": error, **terms})
    output.save({"table": rows})
    print(to_markdown(rows))
    return {"table": rows}


def log_density_of(data: GaussianMixture, path: GaussianPath) -> Function:
    """Return the log density of p_t of a path from N(0, I) to a mixture, float64. With n_t the
    variance of x_t given x1,

        p_t = sum_j w_j N(alpha_t m_j, (alpha_t^2 s_j^2 + n_t) I),

    which is regular at both ends, unlike the conditional densities of the path."""

    def log_density(x: Tensor, t: Tensor) -> Tensor:
        one, zero = torch.ones_like(t), torch.zeros_like(t)
        alpha, share_of_x0 = path.alpha(t), path.mean(PathSample(one, zero, t, zero, t))
        variances = alpha.square() * data.variances.to(x)
        variances = variances + path.variance(t) + share_of_x0.square()
        return GaussianMixture(data.log_weight, alpha * data.means.to(x), variances).log_density(x)

    return log_density


def time_derivative(function: Function) -> Function:
    """Return d/dt of a function, the time score if it is a log density."""
    return lambda x, t: jvp(lambda time: function(x, time), (t,), (torch.ones_like(t),))[1]


def at_times(function: Function, x: Tensor, times: Tensor) -> Tensor:
    """Evaluate function(x, t) (B,) at every time of ``times`` (T,): (T, B)."""
    return vmap(lambda t: function(x, t), chunk_size=max(1, 20_000 // len(x)))(times)


def lipschitz_constant(log_density: Function, x: Tensor, num_times: int = 129) -> Tensor:
    """Return L(x) (B,), the largest |ds/dt| over ``num_times`` evenly spaced times in [0, 1]."""
    times = torch.linspace(0, 1, num_times).to(x)
    return at_times(time_derivative(time_derivative(log_density)), x, times).abs().amax(0)


def kl_bound(
    log_density: Function, x: Tensor, lipschitz: Tensor, num_steps: int, error: float
) -> dict[str, float]:
    """Compute both sides of Theorem 4 at K steps from draws ``x`` (B, D) of p1 and L(x) (B,), with
    s_hat - s = error (1 + sin(x_1 + ... + x_D + 2 pi t)).

    Returns:
        ``kl``: E[log p1 - log p1_hat] (nats), of either sign; ``mean_square``: E[(log p1 - log
        p1_hat)^2]; ``discretisation`` and ``estimation``, the two terms of ``bound`` (nats^2);
        ``ratio``: sqrt(bound) / |kl|; ``kl_stderr``: standard error of ``kl``.
    """
    times = torch.arange(1, num_steps + 1).to(x) / num_steps
    difference = error * (1 + torch.sin(x.sum(1) + 2 * math.pi * times[:, None]))
    integral = (at_times(time_derivative(log_density), x, times) + difference).mean(0)
    start, end = torch.tensor([0.0, 1.0]).to(x)
    # p_0 of VPPath is not exactly N(0, I)
    gap = log_density(x, end) - log_density(x, start) - integral
    terms = lipschitz.square() / (2 * num_steps**2), 2 * difference.square().mean(0)
    kl, bound = gap.mean().item(), sum(terms).mean().item()
    return {
        "num_steps": num_steps,
        "kl": kl,
        "kl_stderr": standard_error(gap).item(),
        "mean_square": gap.square().mean().item(),
        "discretisation": terms[0].mean().item(),
        "estimation": terms[1].mean().item(),
        "bound": bound,
        "ratio": math.sqrt(bound) / abs(kl) if kl else math.inf,
    }

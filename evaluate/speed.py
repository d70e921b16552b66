"""Seconds of likelihoods and of leapfrog steps, as ratios within one run.

python evaluate/speed.py digits
"""

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from math import log
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torchdiffeq import odeint

from ebm_app.cli import Parser, RunRecord, run_script
from ebm_app.ebm import dequantisation_noise
from ebm_app.energy import HEAD, TimeScoreEnergy
from ebm_app.evaluation import add_data_flags, held_out, open_model
from ebm_app.pf_ode import clock_grid

#: (rtol, atol) of the paper's AIS (appendix F.6) and of its likelihoods
TOLERANCES = {"ode 1e-3/1e-6": (1e-3, 1e-6), "ode 1e-6/1e-6": (1e-6, 1e-6)}


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, in turns so that a noisy machine slows all alike; the ratios."""
    parser = Parser(__doc__)
    add_data_flags(parser)
    add = parser.add_argument
    add("--rounds", type=int, default=5, help="measurements of each, of which the median is told")
    add("--quick", action="store_true", help="one round of 4 images")
    add("--output_dir", default="runs/speed", help="where the record goes")
    parser.add_common()
    args = parser.parse_args(argv)
    rounds, args.limit = (1, 4) if args.quick else (args.rounds, args.limit or 32)
    _, ebm = open_model(args)
    energy, levels = ebm.energy, held_out(args, ebm)
    record = RunRecord(Path(args.output_dir) / "speed.json", vars(args))
    noise = dequantisation_noise(1, levels, args.seed)[0]
    x = ebm.dequantiser.points(
        levels, ebm.config.num_levels, ebm.space, noise, energy.path, energy.end
    ).y.to(ebm.device)
    likelihoods = likelihood_tasks(energy, x)
    gradients = gradient_tasks(energy, x)
    seconds, values = measure({**likelihoods, **gradients}, rounds, ebm.device)
    exact = values["likelihood rk45"]
    bits = {
        name: (values[name] - exact).abs().max().item() / (x[0].numel() * log(2))
        for name in likelihoods
    }
    table = [
        {"task": name, "seconds": seconds[name], "error_bits_per_dim": bits.get(name)}
        for name in seconds
    ]
    for row in table:
        error = row["error_bits_per_dim"]
        tail = "" if error is None else f"   largest difference to rk45 {error:.1e} bits per dim"
        print(f"{row['task']:34} {1e3 * row['seconds'] / len(x):9.2f} ms an image{tail}")
    ratios = {
        f"likelihood: rk45 / {name}": seconds["likelihood rk45"] / seconds[name]
        for name in likelihoods
        if name != "likelihood rk45"
    } | {
        f"leapfrog: {ode} / {name}": seconds[f"leapfrog {ode}"] / seconds[name]
        for ode in TOLERANCES
        for name in gradients
        if name.removeprefix("leapfrog ") not in TOLERANCES
    }
    for name, ratio in ratios.items():
        print(f"{name:60} {ratio:8.1f}")
    figures = {"ratios": ratios, "table": table, "num_images": len(x), "model": args.model}
    record.write(figures)
    return figures


def likelihood_tasks(energy: TimeScoreEnergy, x: Tensor) -> dict[str, Callable[[], Tensor]]:
    """Log ratios (B,) of the points, by fixed nodes and by the paper's protocol."""
    return {
        f"likelihood {n} nodes": lambda n=n: energy.with_nodes(n).log_ratio(x).value
        for n in (32, 64)
    } | {"likelihood rk45": lambda: energy.log_ratio(x, integrator="rk45").value}


def gradient_tasks(energy: TimeScoreEnergy, x: Tensor) -> dict[str, Callable[[], Tensor]]:
    """The field of one leapfrog step (B, *) in the middle of the clock: by the Stein head, by the
    gradient of few nodes, and by differentiating an adaptive ODE solve, as the paper does."""
    t = clock_grid(energy.path, energy.start, energy.end, 3)[1].item()
    time_t = torch.tensor(t, dtype=torch.float64)
    alpha, deviation = energy.path.alpha(time_t).item(), energy.path.variance(time_t).sqrt().item()
    generator = torch.Generator(x.device).manual_seed(0)
    noise = torch.randn(x.shape, generator=generator, device=x.device, dtype=x.dtype)
    point = alpha * x + deviation * noise
    tasks: dict[str, Callable[[], Tensor]] = {
        f"leapfrog {n} nodes": lambda n=n: energy.with_nodes(n).score(point, t) for n in (4, 12)
    }
    if energy.model.stein_channels:
        head = energy.stein_score(HEAD)

        @torch.no_grad()
        def by_head() -> Tensor:
            return head(point, t)

        tasks["leapfrog head"] = by_head
    for name, (rtol, atol) in TOLERANCES.items():
        tasks[f"leapfrog {name}"] = lambda r=rtol, a=atol: ode_gradient(energy, point, t, r, a)
    return tasks


def ode_gradient(energy: TimeScoreEnergy, x: Tensor, t: float, rtol: float, atol: float) -> Tensor:
    """grad log p_t by back-propagation through torchdiffeq's dopri5."""
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


def measure(
    tasks: dict[str, Callable[[], Tensor]], rounds: int, device: torch.device
) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Median seconds of every task, taken in turns after one unmeasured round, and its result."""
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    values: dict[str, Tensor] = {}
    for k in range(rounds + 1):
        for name, task in tasks.items():
            begin = time.perf_counter()
            values[name] = task()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            if k:
                seconds[name].append(time.perf_counter() - begin)
    return {name: statistics.median(taken) for name, taken in seconds.items()}, values


if __name__ == "__main__":
    sys.exit(run_script(main))

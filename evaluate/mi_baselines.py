"""Estimate the mutual information of the paper's Gaussians by other methods, in nats.

python evaluate/mi_baselines.py --dims 40 80

- gaussian_fit: the log ratio of two Gaussians that are fitted to 10,000 draws of each density in
  closed form.
- mine: the Donsker-Varadhan bound E_1 f - log E_0 exp(f), maximised over a critic f, a network
  with three hidden layers (Belghazi et al. 2018, arXiv:1801.04062).
- quadratic: the same with the critic x^T A x, which contains the true log ratio.

Critics are trained with the steps, batches, learning rates and selection of ``python
evaluate/mi.py --table``: by the error of the log ratio f - log E_0 exp(f) on validation draws. The
table has the mean and standard deviation over seeds of the bound on test draws, and the mean
squared error of the log ratio in nats^2. With few draws, the bound is an estimate that may exceed
the information.
"""

import copy
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from ebm_app.command_line import CommonFlags, parse, run_script
from ebm_app.ratios.gaussians import GaussianRatio
from ebm_app.ratios.methods import dense_layers
from ebm_app.ratios.problems import (
    INFORMATION_PROBLEMS,
    INFORMATION_RATES,
    TEST,
    TRAIN,
    VALIDATION,
    EvaluationPoints,
    Problem,
)
from ebm_app.utils.fields import Draws, PositiveInt, configuration, setting
from ebm_app.utils.fitting import fit
from ebm_app.utils.output import Output, to_markdown
from ebm_app.utils.random import derive_seed, initial_weights, make_generator
from toy import select_rate

#: Number of validation and test points, half of them of each density
NUM_POINTS = 20_000


@configuration(kw_only=True)
class Arguments(CommonFlags):
    dims: tuple[int, ...] = setting("dimensions: 40, 80, 160 or 320", (40, 80))
    iterations: PositiveInt | None = setting("training steps, by default the table's", None)
    num_seeds: Draws = setting("runs of the best learning rate", 3)
    output_dir: Path = setting("folder for the record", Path("runs/mi-baselines"))


class Quadratic(nn.Module):
    """x^T A x with a trainable matrix A (D, D), initialised to zero."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.weight * x).sum(1)


def make_network(dim: int) -> nn.Module:
    """Return the paper's network as a critic."""
    return nn.Sequential(dense_layers(dim, 1), nn.Flatten(0))


CRITICS: dict[str, Callable[[int], nn.Module]] = {"mine": make_network, "quadratic": Quadratic}


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Estimate the information by each method; return the table."""
    args = parse(Arguments, __doc__, argv)
    output = Output(args.output_dir / "mi_baselines.json", args)
    torch.set_num_threads(1)  # the matrices are too small for several threads
    jobs = [(dim, name) for dim in args.dims for name in ("gaussian_fit", *CRITICS)]
    table = []
    for dim, name in tqdm(jobs, unit="row"):
        problem = INFORMATION_PROBLEMS[f"mi_d{dim}"]
        if args.iterations is not None:
            problem = problem.shorten(args.iterations)
        row = {"problem": f"mi_d{dim}", "method": name, "truth": problem.kl_divergence}
        seeds = range(args.seed, args.seed + args.num_seeds)
        if name == "gaussian_fit":
            table.append(row | summary([gaussian_fit(problem, seed) for seed in seeds]))
        else:
            table.append(row | critic_row(problem, CRITICS[name], seeds))
        output.write({"table": table})
    output.save({"table": table})
    print(to_markdown(table))
    return {"table": table}


def gaussian_fit(problem: Problem, seed: int) -> dict[str, float]:
    """Fit both densities by Gaussians in closed form."""
    x0, x1 = (
        density.sample(NUM_POINTS // 2, make_generator("cpu", seed, TRAIN))
        for density in (problem.pair.p0, problem.pair.p1)
    )
    points = EvaluationPoints(problem.pair, NUM_POINTS, make_generator("cpu", 0, TEST))
    metrics = points.metrics(GaussianRatio.fit(x0, x1, shrinkage=0.0)(points.x))
    return {"value": metrics["divergence"], "error": metrics["error"]}


def critic_row(
    problem: Problem, kind: Callable[[int], nn.Module], seeds: Sequence[int]
) -> dict[str, Any]:
    """Select the learning rate with the first seed; return the summary of all seeds."""
    run = partial(train_critic, problem, kind)
    best, runs = select_rate(run, INFORMATION_RATES, seeds)
    row = {"learning_rate": best, "iterations": problem.iterations}
    return summary(runs) | {"ms": min(run["ms"] for run in runs)} | row


def train_critic(
    problem: Problem, kind: Callable[[int], nn.Module], lr: float, seed: int
) -> dict[str, float]:
    """Train a critic; return the test metrics of the weights with the smallest validation
    error."""
    pair, num, generator = problem.pair, problem.batch_size, make_generator("cpu", seed, TRAIN)
    with initial_weights(derive_seed(seed, 4)):
        critic = kind(pair.dim)
    validation, test = (
        EvaluationPoints(pair, NUM_POINTS, make_generator("cpu", 0, stream))
        for stream in (VALIDATION, TEST)
    )

    def loss(_: int) -> Tensor:
        return -bound(critic, pair.p0.sample(num, generator), pair.p1.sample(num, generator))

    best, smallest = copy.deepcopy(critic), math.inf
    begin = time.process_time()
    seconds = 0.0
    for step in fit(critic.parameters(), loss, problem.iterations, lr):
        if step % problem.eval_every == 0 or step == problem.iterations:
            seconds += time.process_time() - begin
            if (error := metrics_at(critic, validation)["error"]) < smallest:
                best, smallest = copy.deepcopy(critic), error
            begin = time.process_time()
    ms = 1000 * seconds / problem.iterations
    metrics = metrics_at(best, test)
    value, error = metrics["divergence"], metrics["error"]
    return {"validation_error": smallest, "value": value, "error": error, "ms": ms}


def bound(critic: nn.Module, x0: Tensor, x1: Tensor) -> Tensor:
    """Return the Donsker-Varadhan bound at draws of p_0 and p_1, in nats."""
    return critic(x1).mean() - critic(x0).logsumexp(0) + math.log(len(x0))


@torch.no_grad()
def metrics_at(critic: nn.Module, points: EvaluationPoints) -> dict[str, float]:
    """Return the error of the log ratio f - log E_0 exp(f), and its mean over p_1, the bound."""
    f = critic(points.x).double()
    f0 = f[: -len(points.x1)]
    return points.metrics(f - (f0.logsumexp(0) - math.log(len(f0))))


def summary(runs: Sequence[dict[str, float]]) -> dict[str, float | None]:
    """Return the mean and standard deviation of the values of runs, and their mean error."""
    values = [run["value"] for run in runs]
    deviation = stdev(values) if len(values) > 1 else None
    errors = [run["error"] for run in runs]
    return {"value": fmean(values), "deviation": deviation, "error": fmean(errors)}


if __name__ == "__main__":
    raise SystemExit(run_script(main))

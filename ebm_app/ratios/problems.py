r"""Problems of the paper's tables, and training of an estimator by the paper's protocol.

Every step of Adam uses new draws. Every ``eval_every`` steps the estimator is evaluated, and the
best weights are kept. The learning rate follows a cosine to zero and changes at evaluations.

Source: arXiv:2502.02300, section 6 and appendices E and F.
"""

import copy
import csv
import math
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor
from tqdm.auto import tqdm

from ebm_app.ratios.densities import DensityPair, gaussian_pair, information_pair, mixture_pair
from ebm_app.ratios.error_bound import time_score_error
from ebm_app.ratios.methods import (
    COVARIANCE_METHODS,
    GaussianNet,
    TimeScoreRatio,
    TimeScores,
    methods_of,
)
from ebm_app.utils.errors import NumericalError
from ebm_app.utils.fields import finite_or_none
from ebm_app.utils.fitting import fit
from ebm_app.utils.random import make_generator
from ebm_app.utils.tensors import standard_error


class Reported(NamedTuple):
    """Mean squared error of the log ratio in nats^2, its standard deviation over three runs, and
    milliseconds per step, as reported by the paper."""

    mean: float
    deviation: float
    ms: float


#: (problem, method) -> figures of the paper (arXiv:2502.02300, appendices E and F)
with Path(__file__).with_name("reported.csv").open(encoding="utf-8", newline="") as _file:
    _rows = list(csv.DictReader(_file))
REPORTED = {
    (row["problem"], row["method"]): Reported(*(float(row[key]) for key in Reported._fields))
    for row in _rows
}
#: Random number streams
TRAIN, VALIDATION, TEST = range(3)


class EvaluationPoints:
    """Points drawn from the mixture (p_0 + p_1) / 2.

    Args:
        pair: the densities.
        num: number of points.
        generator: source of the draws.

    Attributes:
        x1: the points drawn from p_1.
        truth: log ratios (N,) at the points x (N, D), in nats.
    """

    def __init__(self, pair: DensityPair, num: int, generator: Generator) -> None:
        x0 = pair.p0.sample(num - num // 2, generator)
        self.x1 = pair.p1.sample(num // 2, generator)
        self.x = torch.cat([x0, self.x1])
        self.truth = pair.log_ratio(self.x)

    def metrics(self, log_ratio: Tensor) -> dict[str, float]:
        """Return metrics of estimates (N,): "error", the mean squared error in nats^2, and
        "divergence", the mean over p_1, an estimate of KL(p_1 || p_0) in nats."""
        error = (log_ratio - self.truth).square().mean()
        return {"error": error.item(), "divergence": log_ratio[-len(self.x1) :].mean().item()}


class Evaluation(NamedTuple):
    """Estimator after ``step`` steps and ``seconds`` of processor time, without evaluations, and
    the ``best`` one so far."""

    step: int
    seconds: float
    ratio: TimeScoreRatio
    metrics: dict[str, float]
    best_error: float
    best_step: int
    best: TimeScoreRatio


@dataclass(frozen=True)
class Problem:
    """Pair of densities whose log ratio is learned.

    Args:
        pair: the densities.
        methods: methods by name.
        learning_rates: rates to try.
        iterations: training steps.
        batch_size: draws of each density per step.
        eval_every: steps between evaluations and between changes of the learning rate.
        kl_divergence: KL(p_1 || p_0) in nats, for tables that report it.
    """

    pair: DensityPair
    methods: dict[str, TimeScores]
    learning_rates: tuple[float, ...] = ()
    iterations: int = 20_000
    batch_size: int = 256
    eval_every: int = 1_000
    kl_divergence: float | None = None

    def shorten(self, iterations: int) -> "Problem":
        """Return the problem with another number of training steps, and at least six
        evaluations."""
        every = min(self.eval_every, math.ceil(iterations / 6))
        return replace(self, iterations=iterations, eval_every=every)


def train(
    problem: Problem,
    method: str,
    seed: int,
    lr: float,
    points: EvaluationPoints,
    device: str = "cpu",
) -> Iterator[Evaluation]:
    """Train an estimator. Yield an evaluation before the first step, every ``eval_every`` steps
    and after the last step.

    Args:
        seed: seed of initial weights and draws.
        lr: learning rate of Adam.
        points: validation points that select the best weights.

    Raises:
        NumericalError: if a loss is not finite.
    """
    pair, num, every = problem.pair, problem.batch_size, problem.eval_every
    estimator, generator = problem.methods[method], make_generator(device, seed, TRAIN)
    ratio, sampler = estimator.build(pair, seed, device), estimator.sampler

    def loss(_: int) -> Tensor:
        x0, x1 = pair.p0.sample(num, generator), pair.p1.sample(num, generator)
        noise = torch.randn(x0.shape, device=x0.device, generator=generator)
        return ratio.loss(x0, x1, noise, sampler.sample(num, generator)).mean()

    def factor(step: int) -> float:
        evaluated = step - step % every
        return (1 + math.cos(math.pi * evaluated / problem.iterations)) / 2

    steps = fit(ratio.parameters(), loss, problem.iterations, lr, factor=factor)
    best = math.inf, 0, copy.deepcopy(ratio)
    seconds, begin = 0.0, time.process_time()
    for step in chain([0], steps):
        if step % every == 0 or step == problem.iterations:
            seconds += time.process_time() - begin
            metrics = points.metrics(ratio.log_ratio(points.x))
            if metrics["error"] < best[0]:
                best = metrics["error"], step, copy.deepcopy(ratio)
            yield Evaluation(step, seconds, ratio, metrics, *best)
            begin = time.process_time()


def train_and_test(
    problem: Problem, method: str, seed: int, lr: float, num_points: int, device: str
) -> dict[str, Any]:
    """Train once.

    Returns:
        "validation_error" and "best_step" of the best weights; their metrics on "test" points; the
        "curve" of [step, validation error, information]; and "ms", the median processor time of a
        step in milliseconds. The test metrics have "matrix", the mutual information of a
        ``GaussianNet``, or "time_score_error" of other networks.
    """
    validation, test = (
        EvaluationPoints(problem.pair, num_points, make_generator(device, 0, stream))
        for stream in (VALIDATION, TEST)
    )
    evaluations = train(problem, method, seed, lr, validation, device)
    curve, times = [], []
    with suppress(NumericalError):  # after divergence, test the best weights so far
        for last in tqdm(evaluations, desc="training", unit="evaluation", leave=False):
            point = {"error": last.metrics["error"], "matrix": information(last.ratio)}
            curve.append([last.step, *finite_or_none(point).values()])
            times.append((last.step, last.seconds))
    steps = [1000 * (t1 - t0) / (s1 - s0) for (s0, t0), (s1, t1) in pairwise(times)]
    metrics = test.metrics(last.best.log_ratio(test.x))
    if isinstance(last.best.model.net, GaussianNet):
        metrics["matrix"] = information(last.best)
    else:
        metrics["time_score_error"] = time_score_error(last.best, problem.pair, test.x1)
    return {
        "validation_error": last.best_error,
        "best_step": last.best_step,
        "test": finite_or_none(metrics),
        "ms": median(steps) if steps else None,
        "curve": curve,
    }


def information(ratio: TimeScoreRatio) -> float:
    """Return the mutual information of a ``GaussianNet`` in nats, or NaN for another network."""
    net = ratio.model.net
    return net.mutual_information() if isinstance(net, GaussianNet) else math.nan


#: Methods of the paper's tables of mixtures
SCORES = "tsm_uniform", "tsm_stein", "ctsm_time0", "ctsm_time1", "ctsm_v_time0", "ctsm_v_time1"
GAUSSIAN_RATES = (5e-4, 1e-3, 2e-3, 5e-3, 1e-2)
MIXTURE_RATES = (1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2)
INFORMATION_RATES = (1e-4, 1e-3, 1e-2)


def _select(sigma: float | None, *names: str) -> dict[str, TimeScores]:
    methods = methods_of(sigma)
    return {name: methods[name] for name in names}


MIXTURE_METHODS = {
    "": _select(1.0, *SCORES),
    "_sigma1.41": _select(math.sqrt(2), *SCORES),
    "_sigma0": _select(0.0, "tsm_uniform"),  # no conditional score exists without noise
}
TOY_PROBLEMS: dict[str, Problem] = {
    **{
        f"gaussians_d{dim}": Problem(
            gaussian_pair(dim), _select(None, "tsm_time0", "tsm_time1", *SCORES), GAUSSIAN_RATES
        )
        for dim in (2, 5, 10, 15, 20)
    },
    **{
        f"mixtures_k{k:g}{path}": Problem(mixture_pair(k), methods, MIXTURE_RATES)
        for path, methods in MIXTURE_METHODS.items()
        for k in (0.5, 1, 2)
    },
}

#: A tenth of the paper's iterations (at most 10,000), with the paper's batch sizes
INFORMATION_PROBLEMS: dict[str, Problem] = {
    f"mi_d{dim}": Problem(
        information_pair(dim),
        COVARIANCE_METHODS,
        INFORMATION_RATES,
        iterations,
        batch_size,
        eval_every=400,
        kl_divergence=dim / 4,
    )
    for dim, iterations, batch_size in (
        (40, 2_000, 512),
        (80, 5_000, 512),
        (160, 10_000, 512),
        (320, 10_000, 256),
    )
}

#: Learning rate of ``learn_information``, and draws of its last estimate
LIVE_RATE, NUM_LIVE = 2e-3, 2_000


class LearnedInformation(NamedTuple):
    """Mutual information after ``step`` training steps, with its standard error, in nats.

    During training ``value`` is -1/2 log det of the learned covariance and ``stderr`` None. The
    last value is the mean of the learned log ratio over test draws.
    """

    step: int
    value: float
    stderr: float | None


def learn_information(
    dim: int, iterations: int, seed: int, device: str = "cpu"
) -> Iterator[LearnedInformation]:
    """Learn the mutual information of the paper's Gaussians, dim / 4 nats, by CTSM-v.

    Yields at least 20 estimates.

    Args:
        dim: 40, 80, 160 or 320, the dimension of X and Y together.
        iterations: training steps.
        seed: seed of the draws.
    """
    problem = INFORMATION_PROBLEMS[f"mi_d{dim}"]
    problem = replace(problem, iterations=iterations, eval_every=max(1, iterations // 20))
    points = EvaluationPoints(problem.pair, 2, make_generator(device, 0, VALIDATION))
    for state in train(problem, "ctsm_v_time1", seed, LIVE_RATE, points, device):
        if state.step < iterations:
            value = state.ratio.model.net.mutual_information()
            yield LearnedInformation(state.step, value, None)
    test = problem.pair.p1.sample(NUM_LIVE, make_generator(device, 0, TEST))
    ratios = state.ratio.log_ratio(test)
    yield LearnedInformation(iterations, ratios.mean().item(), standard_error(ratios).item())

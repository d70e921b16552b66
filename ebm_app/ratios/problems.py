r"""Problems with known answers: those of the paper's tables, and pairs with known information.

Sources: arXiv:2502.02300, section 6 and appendices E and F; of the pairs, Czyz et al., NeurIPS
2023, arXiv:2306.11078.
"""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor
from tqdm.auto import tqdm

from ebm_app.ratios.methods import COVARIANCE_METHODS, GaussianNet, TimeScores, methods_of
from ebm_app.ratios.pairs import DensityPair, gaussian_pair, information_pair, mixture_pair
from ebm_app.ratios.points import EvaluationPoints
from ebm_app.ratios.training import TEST, VALIDATION, RatioTraining, train
from ebm_app.utils.errors import NumericalError
from ebm_app.utils.fields import finite_or_none
from ebm_app.utils.random import make_generator


@dataclass(frozen=True)
class Problem:
    """A pair of densities to learn the log ratio of.

    Args:
        pair: the densities. methods: methods by name. learning_rates: rates to try.
        training: length of a run. kl_divergence: KL(p_1 || p_0) in nats, if tables compare it.
    """

    pair: DensityPair
    methods: dict[str, TimeScores]
    learning_rates: tuple[float, ...]
    training: RatioTraining = RatioTraining()
    kl_divergence: float | None = None

    def shorten(self, iterations: int) -> "Problem":
        """Return the problem with another number of training steps, and at least six
        evaluations."""
        every = min(self.training.eval_every, math.ceil(iterations / 6))
        training = replace(self.training, iterations=iterations, eval_every=every)
        return replace(self, training=training)


def train_and_test(
    problem: Problem, method: str, seed: int, lr: float, num_points: int, device: str
) -> dict[str, Any]:
    """Train once. Return the smallest ``validation_error`` and, as ``test``, the metrics of those
    weights on test points: those of ``EvaluationPoints``, and ``matrix`` for a ``GaussianNet``."""
    validation, test = (
        EvaluationPoints(problem.pair, num_points, make_generator(device, 0, stream))
        for stream in (VALIDATION, TEST)
    )
    settings = seed, lr, problem.training, validation, device
    evaluations = train(problem.methods[method], problem.pair, *settings)
    with suppress(NumericalError):  # after divergence, test the best weights so far
        for evaluation in tqdm(evaluations, desc="training", unit="evaluation", leave=False):
            last = evaluation
    metrics, net = test.metrics(last.best.log_ratio(test.x)), last.best.model.net
    if isinstance(net, GaussianNet):
        metrics["matrix"] = net.mutual_information()
    return {"validation_error": last.best_error, "test": finite_or_none(metrics)}


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
            gaussian_pair(dim),
            _select(None, "tsm_time0", "tsm_time1", *SCORES),
            GAUSSIAN_RATES,
        )
        for dim in (2, 5, 10, 15, 20)
    },
    **{
        f"mixtures_k{k:g}{path}": Problem(mixture_pair(k), methods, MIXTURE_RATES)
        for path, methods in MIXTURE_METHODS.items()
        for k in (0.5, 1, 2)
    },
}

#: A tenth of the paper's iterations, at most 10,000, and its batch size
INFORMATION_PROBLEMS: dict[str, Problem] = {
    f"mi_d{dim}": Problem(
        information_pair(dim),
        COVARIANCE_METHODS,
        INFORMATION_RATES,
        RatioTraining(iterations, batch_size, eval_every=400),
        dim / 4,
    )
    for dim, iterations, batch_size in (
        (40, 2_000, 512),
        (80, 5_000, 512),
        (160, 10_000, 512),
        (320, 10_000, 256),
    )
}

Pairs = tuple[Tensor, Tensor]


def normal_pairs(num: int, generator: Generator, rho: float, dim: int) -> Pairs:
    """Draw normal X and Y (N, dim) with corr(X_i, Y_i) = rho for the first two i, 0 elsewhere."""
    x, y = (torch.randn(num, dim, generator=generator, dtype=torch.float64) for _ in "xy")
    y[:, :2] = rho * x[:, :2] + math.sqrt(1 - rho**2) * y[:, :2]
    return x, y


#: Name -> I(X; Y) in nats, and (N, generator) -> N draws of X and Y in float64
EXAMPLES: dict[str, tuple[float, Callable[[int, Generator], Pairs]]] = {
    "normal_1x1": (-math.log(1 - 0.75**2) / 2, partial(normal_pairs, rho=0.75, dim=1)),
    "sparse_5x5": (-math.log(1 - 0.8**2), partial(normal_pairs, rho=0.8, dim=5)),
}

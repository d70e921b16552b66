"""The problems of the tables and, for each, the methods that make sense (arXiv:2502.02300,
section 6 and appendices E and F)."""

import math
from dataclasses import dataclass
from functools import partial

from ebm_app.ratios.diagonal_pairs import GaussianPair, MixturePair
from ebm_app.ratios.methods import (
    Bridges,
    CovarianceScores,
    Method,
    MixtureResidual,
    TimeScores,
)
from ebm_app.ratios.pairs import BlockGaussianPair, DensityPair
from ebm_app.ratios.training import RatioTraining


@dataclass(frozen=True)
class Problem:
    """A column: the pair, its methods by the name of their row, the learning rates to try, the
    budget of a run, and KL(p_1 || p_0) in nats where the tables compare with it."""

    pair: DensityPair
    methods: dict[str, Method]
    learning_rates: tuple[float, ...]
    training: RatioTraining = RatioTraining()
    kl_divergence: float | None = None


def score_methods(sigma: float | None) -> dict[str, Method]:
    """The time scores of the paper's mixture tables, and ours."""
    scores = partial(TimeScores, sigma)
    return {
        "tsm_uniform": scores(objective="tsm", weighting="uniform"),
        "tsm_stein": scores(objective="tsm", weighting="stein_score"),
        "ctsm_time0": scores(objective="ctsm", moment="data"),
        "ctsm_time1": scores(objective="ctsm"),
        "ctsm_v_time0": scores(moment="data"),
        "ctsm_v_time1": scores(),
        "ctsm_v_stratified": scores(time_sampler="stratified"),
        "ctsm_v_mixture": MixtureResidual(sigma),
    }


def classifiers(sigma: float | None) -> dict[str, Method]:
    """The baselines: NCE and TRE."""
    return {"nce": Bridges(sigma), "tre": Bridges(sigma, num_bridges=8)}


def gaussian_methods() -> dict[str, Method]:
    """The rows of the paper's Gaussian tables, and ours."""
    extra = {
        "tsm_time0": TimeScores(objective="tsm", moment="data"),
        "tsm_time1": TimeScores(objective="tsm"),
    }
    return {**classifiers(None), **extra, **score_methods(None)}


def covariance_methods() -> dict[str, Method]:
    """The rows of the mutual-information figure."""
    return {
        "tsm_stein": CovarianceScores(objective="tsm", weighting="stein_score"),
        "ctsm_time1": CovarianceScores(objective="ctsm"),
        "ctsm_v_time1": CovarianceScores(),
    }


GAUSSIAN_RATES = (5e-4, 1e-3, 2e-3, 5e-3, 1e-2)
MIXTURE_RATES = (1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2)
INFORMATION_RATES = (1e-4, 1e-3, 1e-2)
#: D -> (iterations, batch size) of the paper's mutual-information runs
PAPER_INFORMATION = {
    40: (20_001, 512),
    80: (50_001, 512),
    160: (200_001, 512),
    320: (400_001, 256),
}

TOY_PROBLEMS: dict[str, Problem] = {
    **{
        f"gaussians_d{dim}": Problem(GaussianPair(dim), gaussian_methods(), GAUSSIAN_RATES)
        for dim in (2, 5, 10, 15, 20)
    },
    **{
        f"mixtures_k{k:g}": Problem(
            MixturePair(k), {**classifiers(1.0), **score_methods(1.0)}, MIXTURE_RATES
        )
        for k in (0.5, 1, 2)
    },
    **{
        f"mixtures_k{k:g}_sigma1.41": Problem(
            MixturePair(k), score_methods(math.sqrt(2)), MIXTURE_RATES
        )
        for k in (0.5, 1, 2)
    },
    **{  # without noise there is no conditional score
        f"mixtures_k{k:g}_sigma0": Problem(
            MixturePair(k),
            {"tsm_uniform": TimeScores(0.0, objective="tsm", weighting="uniform")},
            MIXTURE_RATES,
        )
        for k in (0.5, 1, 2)
    },
}

#: a tenth of the paper's iterations, and no more than 10,000
INFORMATION_PROBLEMS: dict[str, Problem] = {
    f"mi_d{dim}": Problem(
        BlockGaussianPair(dim),
        covariance_methods(),
        INFORMATION_RATES,
        RatioTraining(min(iterations // 10, 10_000), batch, eval_every=400),
        dim / 4,
    )
    for dim, (iterations, batch) in PAPER_INFORMATION.items()
}

PROBLEMS = {**TOY_PROBLEMS, **INFORMATION_PROBLEMS}

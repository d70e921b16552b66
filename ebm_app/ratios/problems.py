"""The problems of the tables and, for each, the methods that make sense (arXiv:2502.02300,
section 6 and appendices E and F)."""

import math
from dataclasses import dataclass

from ebm_app.ratios.methods import COVARIANCE_METHODS, TimeScores, methods_of
from ebm_app.ratios.pairs import DensityPair, gaussian_pair, information_pair, mixture_pair
from ebm_app.ratios.training import RatioTraining


@dataclass(frozen=True)
class Problem:
    """A column: the pair, its methods by the name of their row, the learning rates to try, the
    budget of a run, and KL(p_1 || p_0) in nats where the tables compare with it."""

    pair: DensityPair
    methods: dict[str, TimeScores]
    learning_rates: tuple[float, ...]
    training: RatioTraining = RatioTraining()
    kl_divergence: float | None = None


#: the rows of the paper's mixture tables
SCORES = (
    *("tsm_uniform", "tsm_stein", "ctsm_time0", "ctsm_time1", "ctsm_v_time0", "ctsm_v_time1"),
)
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


def _chosen(sigma: float | None, *names: str) -> dict[str, TimeScores]:
    every = methods_of(sigma)
    return {name: every[name] for name in names}


MIXTURE_METHODS = {
    "": _chosen(1.0, *SCORES),
    "_sigma1.41": _chosen(math.sqrt(2), *SCORES),
    "_sigma0": _chosen(0.0, "tsm_uniform"),  # without noise there is no conditional score
}
TOY_PROBLEMS: dict[str, Problem] = {
    **{
        f"gaussians_d{dim}": Problem(
            gaussian_pair(dim),
            _chosen(None, "tsm_time0", "tsm_time1", *SCORES),
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

#: a tenth of the paper's iterations, and no more than 10,000
INFORMATION_PROBLEMS: dict[str, Problem] = {
    f"mi_d{dim}": Problem(
        information_pair(dim),
        COVARIANCE_METHODS,
        INFORMATION_RATES,
        RatioTraining(min(iterations // 10, 10_000), batch, eval_every=400),
        dim / 4,
    )
    for dim, (iterations, batch) in PAPER_INFORMATION.items()
}

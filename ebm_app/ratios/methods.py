"""Ways to learn a log ratio, by the names of the paper's tables (arXiv:2502.02300, appendix E).

A method turns a pair of densities and a seed into the estimator to train.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial

from torch import nn

from ebm_app.models.time_score import TimeScoreModel
from ebm_app.numerics.tensors import initial_weights, mixed_seed, seeded
from ebm_app.objectives.regression import OBJECTIVES, Objective
from ebm_app.objectives.time_sampling import TIME_SAMPLERS, SharedTimes, TimeSampler
from ebm_app.objectives.weighting import WEIGHTINGS
from ebm_app.paths import GaussianPath, LinearVPPath, SchrodingerBridgePath
from ebm_app.ratios.estimators import (
    RatioEstimator,
    TelescopingRatio,
    TimeScoreRatio,
)
from ebm_app.ratios.gaussian_net import GaussianNet
from ebm_app.ratios.mixture_base import MixtureBase, ResidualModel, fit_mixture, principal_axes
from ebm_app.ratios.mlp import MLP
from ebm_app.ratios.pairs import DensityPair

#: margin left at the degenerate ends of a path
EPS = 1e-5
FIT = 3
#: distinct times in a batch of a method that learns a matrix
NUM_TIMES = 8


@dataclass(frozen=True)
class Method(ABC):
    """A row of a table.

    Args:
        sigma: of the Schrodinger bridge between the two densities; None for the
            variance-preserving path, where p_0 is N(0, I).
        time_sampler: a key of ``TIME_SAMPLERS``.
        ema_decay: of the average of the weights that is evaluated; 0 for the weights themselves.
    """

    sigma: float | None = None
    time_sampler: str = "uniform"
    ema_decay: float = 0.0

    @property
    def path(self) -> GaussianPath:
        """From p_0 to p_1."""
        return LinearVPPath() if self.sigma is None else SchrodingerBridgePath(self.sigma)

    @property
    def sampler(self) -> TimeSampler:
        """The sampler of training times."""
        return TIME_SAMPLERS[self.time_sampler](self.path, EPS)

    @abstractmethod
    def build(self, pair: DensityPair, seed: int, device: str) -> RatioEstimator:
        """The estimator, its initial weights a function of the seed."""


@dataclass(frozen=True)
class TimeScores(Method):
    """The time score by a network of raw outputs: TSM, CTSM, CTSM-v.

    Args:
        objective: a key of ``OBJECTIVES``. weighting: a key of ``WEIGHTINGS``.
        moment: the constant c of time score normalisation: "data" (Time 0) or "one" (Time 1).
    """

    objective: str = "ctsm_v"
    weighting: str = "time_score"
    moment: str = "one"

    def build(self, pair: DensityPair, seed: int, device: str) -> RatioEstimator:
        net = self.net(pair, seed).to(device)
        model = TimeScoreModel(net, self.path, EPS, prediction="raw", time_input="time")
        return TimeScoreRatio(model, self.loss(pair))

    def net(self, pair: DensityPair, seed: int) -> nn.Module:
        """The network, (x (B, D), t (B,)) -> components or the time score."""
        return seeded_mlp(pair.dim, pair.dim if self.objective == "ctsm_v" else 1, seed)

    def loss(self, pair: DensityPair) -> Objective:
        """The objective with its weighting."""
        weighting = WEIGHTINGS[self.weighting]
        if self.weighting == "time_score":
            # on a bridge the paper's c is the second moment of (x1 - x0) / sigma
            data = pair.data_moment() if self.sigma is None else pair.bridge_moment()
            one = 1.0 if self.sigma is None else self.sigma**2
            weighting = partial(weighting, {"data": data, "one": one}[self.moment])
        return OBJECTIVES[self.objective](weighting(), 0.0, EPS)


@dataclass(frozen=True)
class MixtureResidual(TimeScores):
    """The residual over two Gaussian mixtures in principal axes, fitted to draws of the pair.

    The network's last layer starts at zero: before training the estimate is the mixtures' own.

    Args:
        max_modes: of either mixture; one is the Gaussian of matched moments in these axes.
        fit_draws: draws of either density that the mixtures are fitted to.
    """

    max_modes: int = 4
    fit_draws: int = 100_000
    time_sampler: str = "stratified"
    ema_decay: float = 0.999

    def build(self, pair: DensityPair, seed: int, device: str) -> RatioEstimator:
        generator = seeded(device, seed, FIT)
        x0, x1 = (density.sample(self.fit_draws, generator) for density in (pair.p0, pair.p1))
        axes = principal_axes(x0, x1).to(x0)
        base = MixtureBase(self.path, *(fit_mixture(x @ axes, self.max_modes) for x in (x0, x1)))
        net = self.net(pair, seed)
        for part in net.layers[-1].parameters():
            nn.init.zeros_(part)
        model = ResidualModel(net.to(device), self.path, EPS, base)
        return TimeScoreRatio(model, self.loss(pair), axes)


@dataclass(frozen=True)
class CovarianceScores(TimeScores):
    """The time score of N(0, I) -> N(0, Sigma), with Sigma - I to learn (see ``gaussian_net``), at
    few times in a batch, which take an inverse each."""

    time_sampler: str = "stratified"

    @property
    def sampler(self) -> TimeSampler:
        return SharedTimes(super().sampler, NUM_TIMES)

    def net(self, pair: DensityPair, seed: int) -> nn.Module:
        return GaussianNet(pair.dim)


@dataclass(frozen=True)
class Bridges(Method):
    """Classifiers between successive distributions on the path: NCE with one, TRE with more."""

    num_bridges: int = 1

    def build(self, pair: DensityPair, seed: int, device: str) -> RatioEstimator:
        net = seeded_mlp(pair.dim, self.num_bridges, seed).to(device)
        return TelescopingRatio(net, self.path, self.num_bridges)


def seeded_mlp(dim: int, out_dim: int, seed: int) -> MLP:
    """The paper's network, its initial weights a function of the seed alone."""
    with initial_weights(mixed_seed(seed, 4)):
        return MLP(dim, out_dim)


def methods_of(sigma: float | None) -> dict[str, Method]:
    """By the names of the tables: the baselines, every objective under every weighting, and CTSM-v
    with even times and over mixtures, all on one path."""
    weightings = {
        "uniform": {"weighting": "uniform"},
        "stein": {"weighting": "stein_score"},
        "time0": {"moment": "data"},
        "time1": {},
    }
    return {
        "nce": Bridges(sigma),
        "tre": Bridges(sigma, num_bridges=8),
        **{
            f"{objective}_{name}": TimeScores(sigma, objective=objective, **settings)
            for objective in ("tsm", "ctsm", "ctsm_v")
            for name, settings in weightings.items()
        },
        "ctsm_v_stratified": TimeScores(sigma, time_sampler="stratified"),
        "ctsm_v_mixture": MixtureResidual(sigma),
    }


def covariance_methods() -> dict[str, Method]:
    """The rows of the mutual-information figure."""
    return {
        "tsm_stein": CovarianceScores(objective="tsm", weighting="stein_score"),
        "ctsm_time1": CovarianceScores(objective="ctsm"),
        "ctsm_v_time1": CovarianceScores(),
    }

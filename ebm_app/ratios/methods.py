"""Ways to learn a log ratio, by the names of the paper's tables (arXiv:2502.02300, appendix E).

A method turns a pair of densities and a seed into the estimator to train.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import nn

from ebm_app.models.time_score import TimeScoreModel
from ebm_app.numerics.tensors import initial_weights, mixed_seed, seeded
from ebm_app.objectives.regression import OBJECTIVES, Objective
from ebm_app.objectives.time_sampling import TIME_SAMPLERS, SharedTimes, TimeSampler
from ebm_app.objectives.weighting import WEIGHTINGS, TimeScore, Weighting
from ebm_app.paths import GaussianPath, LinearVPPath, SchrodingerBridgePath
from ebm_app.ratios.estimators import (
    RatioEstimator,
    RotatedRatio,
    TelescopingRatio,
    TimeScoreRatio,
)
from ebm_app.ratios.gaussian_net import GaussianNet
from ebm_app.ratios.mixture_base import MixtureBase, ResidualModel, fit_modes, principal_axes
from ebm_app.ratios.mlp import MLP
from ebm_app.ratios.pairs import DensityPair

#: margin left at the degenerate ends of a path
EPS = 1e-5
FIT = 3


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
        return TimeScoreRatio(self.model(pair, seed, device), self.loss(pair))

    def model(self, pair: DensityPair, seed: int, device: str) -> TimeScoreModel:
        """The network on the path."""
        net = self._net(pair, seed).to(device)
        return TimeScoreModel(net, self.path, EPS, prediction="raw", time_input="time")

    def loss(self, pair: DensityPair) -> Objective:
        """The objective with its weighting."""
        return OBJECTIVES[self.objective](self._weighting(pair), 0.0, EPS)

    def _net(self, pair: DensityPair, seed: int) -> nn.Module:
        return seeded_mlp(pair.dim, pair.dim if self.objective == "ctsm_v" else 1, seed)

    def _weighting(self, pair: DensityPair) -> Weighting:
        if self.weighting != "time_score":
            return WEIGHTINGS[self.weighting]()
        if self.sigma is None:
            return TimeScore({"data": pair.data_moment(), "one": 1.0}[self.moment])
        # the paper's c is the second moment of (x1 - x0) / sigma
        return TimeScore({"data": pair.bridge_moment(), "one": self.sigma**2}[self.moment])


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
        x0, x1 = pair.sample0(self.fit_draws, generator), pair.sample1(self.fit_draws, generator)
        axes = principal_axes(x0, x1).to(x0)
        modes = [fit_modes(x @ axes, self.max_modes) for x in (x0, x1)]
        model = self.model(pair, seed, device)
        residual = ResidualModel(model, MixtureBase(model.path, *modes))
        return RotatedRatio(TimeScoreRatio(residual, self.loss(pair)), axes)

    def _net(self, pair: DensityPair, seed: int) -> nn.Module:
        net = super()._net(pair, seed)
        for part in net.layers[-1].parameters():
            nn.init.zeros_(part)
        return net


@dataclass(frozen=True)
class CovarianceScores(TimeScores):
    """The time score of N(0, I) -> N(0, Sigma), with Sigma - I to learn (see ``gaussian_net``).

    Args:
        num_times: distinct times in a batch, one inverse each; 0 for one of each example's own.
    """

    num_times: int = 8
    time_sampler: str = "stratified"

    @property
    def sampler(self) -> TimeSampler:
        base = TIME_SAMPLERS[self.time_sampler](self.path, EPS)
        return SharedTimes(base, self.num_times) if self.num_times else base

    def _net(self, pair: DensityPair, seed: int) -> nn.Module:
        return GaussianNet(pair.dim, self.num_times or None)


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

r"""Log density ratio log p_1/p_0, in nats, as the integral of a learned time score.

The methods are those of the paper's tables (arXiv:2502.02300, appendix E). A method builds an
untrained estimator from a pair of densities and a seed.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from ebm_app.nets.model import Time, TimeScoreModel
from ebm_app.objectives.regression import OBJECTIVES, WEIGHTINGS, Objective
from ebm_app.objectives.time_sampling import SharedTimes, TimeSample, TimeSampler, UniformTime
from ebm_app.paths import GaussianPath, LinearVPPath, SchrodingerBridgePath
from ebm_app.ratios.densities import DensityPair
from ebm_app.utils.quadrature import rule_on
from ebm_app.utils.random import derive_seed, initial_weights

#: Margin of the times at degenerate ends of a path
T_MARGIN = 1e-5
#: Distinct times in a batch of a ``GaussianNet``
NUM_TIMES = 8
#: Gauss-Legendre nodes in t rather than arc length, since the marginal time score is regular at
#: the ends, unlike the conditional one. On the paper's problems, mean squared errors are within a
#: relative 1e-5 of those of the paper's adaptive solver (RK45, tolerance 1e-6)
NUM_NODES = 24


class TimeScoreRatio(nn.Module):
    r"""log p_1/p_0 = integral over t of the time score (arXiv:2502.02300, eq. 3).

    Args:
        model: the time score.
        objective: its training loss.
    """

    def __init__(self, model: TimeScoreModel, objective: Objective) -> None:
        super().__init__()
        self.model, self.objective = model, objective

    def loss(self, x0: Tensor, x1: Tensor, noise: Tensor, times: TimeSample) -> Tensor:
        """Return the loss per example (B,) at draws of p_0, p_1 and N(0, I), (B, D) each."""
        path = self.model.path
        return self.objective(self.model, path, path.sample(x0, x1, times.t, noise), times.weight)

    @torch.no_grad()
    def log_ratio(self, x: Tensor) -> Tensor:
        """Return log p_1/p_0 at points x (N, D): (N,) float64, in nats."""
        return self.integral(x, *self.model.interval, NUM_NODES)

    def integral(self, x: Tensor, start: float, end: float, num_nodes: int) -> Tensor:
        """Return the integral of the time score at points x (N, D) between two times: (N,)
        float64."""
        rule = rule_on(num_nodes, start, end)
        return sum(
            weight.item() * self.time_score(x, t)
            for t, weight in zip(rule.nodes, rule.weights, strict=True)
        )

    def time_score(self, x: Tensor, t: Time) -> Tensor:
        """Return d/dt log p_t(x) at points x (N, D) and a time or times (N,): (N,) float64."""
        return self.model.time_score(x, t)


def dense_layers(
    in_dim: int, out_dim: int, width: int = 256, activation: type[nn.Module] = nn.ELU
) -> nn.Sequential:
    """Return the paper's network for vectors (appendix F.3): three hidden layers with ELU."""
    widths = [in_dim, width, width, width]
    layers = [layer for pair in pairwise(widths) for layer in (nn.Linear(*pair), activation())]
    return nn.Sequential(*layers, nn.Linear(width, out_dim))


class MLP(nn.Module):
    """The paper's network of the time score: ``dense_layers`` of x with t appended."""

    def __init__(
        self, dim: int, out_dim: int, width: int = 256, activation: type[nn.Module] = nn.ELU
    ) -> None:
        super().__init__()
        self.layers = dense_layers(dim + 1, out_dim, width, activation)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """Return the output (B, out) at x (B, D) and t (B,), in the dtype of x."""
        return self.layers(torch.cat([x, t[:, None]], dim=1))


class GaussianNet(nn.Module):
    r"""Time score of N(0, I) -> N(0, Sigma) on the path x_t = t x_1 + sqrt(1 - t^2) x_0, with one
    trainable matrix S = Sigma - I, the symmetric part of a matrix (D, D) initialised to zero.

    p_t is N(0, I + t^2 S). With M_t = (I + t^2 S)^-1 and w = M_t x, the posterior mean of the
    conditional terms given x is

        E[d/dt log p_t(x_i | x_1) | x] = t ((S w)_i w_i - (S M_t)_ii),

    which sum to d/dt log p_t(x) = t (w^T S w - tr(S M_t)). One inverse is computed for each
    distinct time: a batch must consist of equally long runs of examples with the same time.

    Source: paper, appendix F.4; the form above follows from its posterior moments.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(dim, dim))

    def covariance(self) -> Tensor:
        """Return Sigma = I + S, (D, D)."""
        return torch.eye(len(self.weight)).to(self.weight) + (self.weight + self.weight.mT) / 2

    @torch.no_grad()
    def mutual_information(self) -> float:
        """Return -1/2 log det Sigma in nats, the mutual information of two halves with marginals
        N(0, I); NaN if Sigma is not positive definite."""
        return -0.5 * self.covariance().double().logdet().item()

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """Return the terms (B, D) at x (B, D) and t (B,)."""
        times = len(t.detach().unique_consecutive())
        identity = torch.eye(len(self.weight)).to(x)
        s = self.covariance() - identity
        t = t.unflatten(0, (times, -1)).mean(1)[:, None, None]
        inverse = torch.linalg.inv(identity + t.square() * s)  # (times, D, D)
        w = x.unflatten(0, (times, -1)) @ inverse
        trace = (s * inverse).sum(-1)[:, None]
        return (t * ((w @ s) * w - trace)).reshape(x.shape)


@dataclass(frozen=True)
class TimeScores:
    """Method of a table row: a network whose output is the time score (TSM, CTSM, CTSM-v).

    Args:
        sigma: noise of the Schrodinger bridge between the densities; None for the
            variance-preserving path from p_0 = N(0, I).
        objective: a key of ``OBJECTIVES``.
        weighting: a key of ``WEIGHTINGS``.
        moment: the constant c of ``inverse_variance``: "data" (Time 0) or "one" (Time 1).
        is_matrix: whether the network is a ``GaussianNet``, for N(0, I) -> N(0, Sigma). A batch
            then has few distinct times, because each needs a matrix inverse.
    """

    sigma: float | None = None
    objective: str = "ctsm_v"
    weighting: str = "inverse_variance"
    moment: str = "one"
    is_matrix: bool = False

    @property
    def path(self) -> GaussianPath:
        """Path from p_0 to p_1."""
        return LinearVPPath() if self.sigma is None else SchrodingerBridgePath(self.sigma)

    @property
    def sampler(self) -> TimeSampler:
        """Sampler of training times."""
        if self.is_matrix:
            return SharedTimes(self.path, T_MARGIN, NUM_TIMES)
        return UniformTime(self.path, T_MARGIN)

    def build(self, pair: DensityPair, seed: int, device: str) -> TimeScoreRatio:
        """Return an untrained estimator, whose initial weights depend only on the seed."""
        path, dim = self.path, pair.dim
        with initial_weights(derive_seed(seed, 4)):
            num_outputs = dim if self.objective == "ctsm_v" else 1
            net = GaussianNet(dim) if self.is_matrix else MLP(dim, num_outputs)
        if self.moment == "data":
            path.c = pair.p1.second_moment if self.sigma is None else pair.bridge_moment()
        elif (
            self.sigma is not None
        ):  # the c of the paper is the second moment of (x1 - x0) / sigma
            path.c = self.sigma**2
        model = TimeScoreModel(net.to(device), path, T_MARGIN, prediction="raw", time_input="time")
        weighting = WEIGHTINGS[self.weighting]
        return TimeScoreRatio(model, OBJECTIVES[self.objective](weighting, 0.0, T_MARGIN))


def methods_of(sigma: float | None) -> dict[str, TimeScores]:
    """Return every objective with every weighting on one path, by its name in the paper."""
    weightings = {
        "uniform": {"weighting": "uniform"},
        "stein": {"weighting": "stein_score"},
        "time0": {"moment": "data"},
        "time1": {},
    }
    return {
        f"{objective}_{name}": TimeScores(sigma, objective, **settings)
        for objective in ("tsm", "ctsm", "ctsm_v")
        for name, settings in weightings.items()
    }


#: Rows of the figure of mutual information
COVARIANCE_METHODS = {
    "tsm_stein": TimeScores(objective="tsm", weighting="stein_score", is_matrix=True),
    "ctsm_time1": TimeScores(objective="ctsm", is_matrix=True),
    "ctsm_v_time1": TimeScores(is_matrix=True),
}

r"""A time score in closed form to start from: Gaussian mixtures in principal axes along a path.

Fitted to draws of p_0 and p_1, a mixture with diagonal covariances in common axes V gives every
marginal of the path in closed form, a mixture over the pairs (j, k) of modes of either side. With
y = V^T x and, per axis, x_t = a_0 x_0 + a_1 x_1 + sqrt(v) noise,

    m = a_0 m_j + a_1 m_k,   u = a_0^2 u_j + a_1^2 u_k + v,
    d/dt log N(y; m, u) = (u'/2u) ((y - m)^2 / u - 1) + m' (y - m) / u.

The modes being independent from axis to axis, the last line is also the mean of the conditional
target given x and the pair, so that its posterior mean over the pairs is what CTSM-v regresses.
A network then learns the difference between the data and the mixture, and no more.
"""

import warnings

import torch
from torch import Tensor, nn

from ebm_app.models.time_score import ModelOutput, TimeScoreModel
from ebm_app.paths import GaussianPath, PathSample
from ebm_app.ratios.pairs import GaussianMixture


def principal_axes(x0: Tensor, x1: Tensor) -> Tensor:
    """Orthogonal V (D, D), columns by falling variance of the balanced mixture of the two samples
    (N, D); rotating by it leaves isotropic noise, hence a path, as it was."""
    both = torch.cat([x0, x1]).double()
    return torch.linalg.eigh(torch.cov(both.T))[1].flip(1)


def fit_mixture(y: Tensor, max_modes: int = 4, seed: int = 0) -> GaussianMixture:
    """The diagonal mixture of up to ``max_modes`` Gaussians with the least Bayesian information
    criterion, by expectation maximisation on a sample (N, D)."""
    # over a second to import, only for this
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture as Fit

    values = y.double().cpu().numpy()
    with warnings.catch_warnings():
        # slow convergence shows in the criterion, by which another number then wins
        warnings.simplefilter("ignore", ConvergenceWarning)
        fits = [
            Fit(num, covariance_type="diag", random_state=seed).fit(values)
            for num in range(1, max_modes + 1)
        ]
    best = min(fits, key=lambda fit: fit.bic(values))
    parts = (best.weights_, best.means_, best.covariances_)
    weight, means, variances = (torch.from_numpy(part).to(y.device) for part in parts)
    return GaussianMixture(weight.log(), means, variances)


class MixtureBase(nn.Module):
    """Components of the time score of two mixtures along a path; its buffers hold, of either side,
    the mode that each pair has there.

    Args:
        path: the path; from N(0, I) its noise is the reference, and ``p0`` is not used.
        p0, p1: in the axes of the points.
    """

    def __init__(self, path: GaussianPath, p0: GaussianMixture, p1: GaussianMixture) -> None:
        super().__init__()
        self.path = path
        num0, num1 = len(p0.means), len(p1.means)
        log_weight = p0.log_weight[:, None] + p1.log_weight
        self.register_buffer("log_weight", log_weight.flatten())
        self.register_buffer("mean0", p0.means.repeat_interleave(num1, 0))
        self.register_buffer("mean1", p1.means.repeat(num0, 1))
        self.register_buffer("variance0", p0.variances.repeat_interleave(num1, 0))
        self.register_buffer("variance1", p1.variances.repeat(num0, 1))

    def forward(self, y: Tensor, t: Tensor) -> Tensor:
        """y (B, D), t (B,) float64 -> components (B, D), in the dtype of y."""
        (a0, a1), (b0, b1) = _coefficients(self.path, t)
        m0, m1, u0, u1 = self.mean0, self.mean1, self.variance0, self.variance1
        v, v_dt = self.path.variance(t)[:, None, None], self.path.variance_dt(t)[:, None, None]
        variance = a0.square() * u0 + a1.square() * u1 + v
        variance_dt = 2 * (a0 * b0 * u0 + a1 * b1 * u1) + v_dt
        residual = y.double()[:, None] - (a0 * m0 + a1 * m1)
        scaled = residual / variance
        log_mode = self.log_weight - 0.5 * (residual * scaled + variance.log()).sum(2)
        components = 0.5 * variance_dt * (scaled.square() - 1 / variance)
        components = components + (b0 * m0 + b1 * m1) * scaled
        posterior = torch.softmax(log_mode, 1)[..., None]
        return (posterior * components).sum(1).to(y.dtype)


def _coefficients(path: GaussianPath, t: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """a_0 and a_1 (B, 1, 1), the conditional mean of x_t being a_0 x_0 + a_1 x_1, and their
    derivatives in t: alpha' times what delta is of either end."""
    one, zero = torch.ones(len(t), 1).to(t), torch.zeros(len(t), 1).to(t)
    ends = [PathSample(one, zero, t, zero, zero), PathSample(zero, one, t, zero, zero)]
    means = [path.mean(end)[:, None] for end in ends]
    rate = path.alpha_dt(t)[:, None]
    return means, [(rate * path.endpoints(end)[1])[:, None] for end in ends]


class ResidualModel(TimeScoreModel):
    """A time score model whose raw network adds to a base (x (B, D), t (B,)) -> (B, D)."""

    def __init__(self, net: nn.Module, path: GaussianPath, eps: float, base: nn.Module) -> None:
        super().__init__(net, path, eps, prediction="raw", time_input="time")
        self.base = base

    def forward(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> ModelOutput:
        residual = super().forward(x, t, condition)
        return residual._replace(components=residual.components + self.base(x, t))

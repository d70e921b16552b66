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
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ebm_app.io.errors import UserError
from ebm_app.models.time_score import ModelOutput, TimeScoreModel
from ebm_app.paths import GaussianPath, PathSample


class Modes(NamedTuple):
    """J diagonal Gaussians: ``log_weight`` (J,), ``mean`` and ``variance`` (J, D); float64."""

    log_weight: Tensor
    mean: Tensor
    variance: Tensor


def principal_axes(x0: Tensor, x1: Tensor) -> Tensor:
    """Orthogonal V (D, D), columns by falling variance of the balanced mixture of the two samples
    (N, D); rotating by it leaves isotropic noise, hence a path, as it was."""
    both = torch.cat([x0, x1]).double()
    _, vectors = torch.linalg.eigh(torch.cov(both.T).reshape(both.shape[1], -1))
    return vectors.flip(1)


def fit_modes(y: Tensor, max_modes: int = 4, seed: int = 0) -> Modes:
    """The diagonal mixture of up to ``max_modes`` Gaussians with the least Bayesian information
    criterion, by expectation maximisation on a sample (N, D).

    Raises:
        UserError: for a sample with an axis along which it does not vary.
    """
    # over a second to import, only for this
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    values = y.double().cpu().numpy()
    if not (values.std(0) > 0).all():
        raise UserError("a mixture needs data that vary along every axis: drop constant columns")
    fits = []
    for num in range(1, max_modes + 1):
        with warnings.catch_warnings():
            # slow convergence shows in the criterion, by which another number then wins
            warnings.simplefilter("ignore", ConvergenceWarning)
            fits.append(
                GaussianMixture(num, covariance_type="diag", random_state=seed).fit(values)
            )
    best = min(fits, key=lambda fit: fit.bic(values))
    parts = (best.weights_, best.means_, best.covariances_)
    weight, mean, variance = (torch.from_numpy(part).to(y.device) for part in parts)
    return Modes(weight.log(), mean, variance)


class MixtureBase(nn.Module):
    """Components of the time score of two mixtures along a path; its buffers hold, of either side,
    the mode that each pair has there.

    Args:
        path: the path; from N(0, I) its noise is the reference, and ``modes0`` is not used.
        modes0, modes1: of p_0 and p_1, in the axes of the points.
    """

    def __init__(self, path: GaussianPath, modes0: Modes, modes1: Modes) -> None:
        super().__init__()
        self.path = path
        first = torch.arange(len(modes0.mean)).repeat_interleave(len(modes1.mean))
        second = torch.arange(len(modes1.mean)).repeat(len(modes0.mean))
        for side, modes, mode in ((0, modes0, first), (1, modes1, second)):
            for name, value in zip(Modes._fields, modes, strict=True):
                self.register_buffer(f"{name}{side}", value[mode.to(value.device)])

    def forward(self, y: Tensor, t: Tensor) -> Tensor:
        """y (B, D), t (B,) float64 -> components (B, D), in the dtype of y."""
        log_weight, mean, variance, mean_dt, variance_dt = self._marginal(t)
        residual = y.double()[:, None] - mean
        scaled = residual / variance
        log_mode = log_weight - 0.5 * (residual * scaled + variance.log()).sum(2)
        components = 0.5 * variance_dt * (scaled.square() - 1 / variance) + mean_dt * scaled
        posterior = torch.softmax(log_mode, 1)[..., None]
        return (posterior * components).sum(1).to(y.dtype)

    def _marginal(self, t: Tensor) -> tuple[Tensor, ...]:
        """Log weight (J,), then mean, variance and their d/dt (B, J, D) of the J pairs."""
        (a0, a1), (b0, b1) = _coefficients(self.path, t), _rates(self.path, t)
        m0, m1, u0, u1 = self.mean0, self.mean1, self.variance0, self.variance1
        v, v_dt = self.path.variance(t)[:, None, None], self.path.variance_dt(t)[:, None, None]
        return (
            self.log_weight0 + self.log_weight1,
            a0 * m0 + a1 * m1,
            a0.square() * u0 + a1.square() * u1 + v,
            b0 * m0 + b1 * m1,
            2 * (a0 * b0 * u0 + a1 * b1 * u1) + v_dt,
        )


def _coefficients(path: GaussianPath, t: Tensor) -> tuple[Tensor, Tensor]:
    """a_0 and a_1 (B, 1, 1): the conditional mean of x_t is a_0 x_0 + a_1 x_1."""
    one, zero = torch.ones(len(t), 1).to(t), torch.zeros(len(t), 1).to(t)
    only0 = path.mean(PathSample(one, zero, t, zero, zero))
    only1 = path.mean(PathSample(zero, one, t, zero, zero))
    return only0[:, None], only1[:, None]


def _rates(path: GaussianPath, t: Tensor) -> tuple[Tensor, Tensor]:
    """Their derivatives in t, (B, 1, 1): alpha' times what delta is of either end."""
    one, zero = torch.ones(len(t), 1).to(t), torch.zeros(len(t), 1).to(t)
    rate = path.alpha_dt(t)[:, None]
    _, delta0 = path.endpoints(PathSample(one, zero, t, zero, zero))
    _, delta1 = path.endpoints(PathSample(zero, one, t, zero, zero))
    return (rate * delta0)[:, None], (rate * delta1)[:, None]


class ResidualModel(nn.Module):
    """A time score model whose network adds to a base: components = base + model.

    Args:
        model: of the residual. base: (x (B, D), t (B,)) -> components (B, D).
    """

    def __init__(self, model: TimeScoreModel, base: nn.Module) -> None:
        super().__init__()
        self.model, self.base = model, base
        self.path, self.interval = model.path, model.interval

    @property
    def net(self) -> nn.Module:
        """The network of the residual."""
        return self.model.net

    def forward(self, x: Tensor, t: Tensor) -> ModelOutput:
        """As ``TimeScoreModel.forward``."""
        residual = self.model(x, t)
        return residual._replace(components=residual.components + self.base(x, t))

    def time_score(self, x: Tensor, t: Tensor) -> Tensor:
        """d/dt log p_t(x): (B,)."""
        return self(x, t).components.sum(1)

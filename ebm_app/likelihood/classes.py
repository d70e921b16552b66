r"""Densities of an image for all classes, whose differences give the class probabilities.

They are evaluated at the image with noise. Classes hardly differ in the details that the noise
hides, but these dominate the cost and the error of a log density. At the same cost, 91 of 100
validation images of MNIST are classified correctly with noise of standard deviation 0.2, and 77
without.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ebm_app.likelihood.dequantisation import Dequantised
from ebm_app.likelihood.estimator import PointEstimator
from ebm_app.nets.path_model import PathModel
from ebm_app.paths import OneSidedPath


def add_noise(
    path: OneSidedPath, point: Dequantised, e: Tensor, noise_std: float
) -> tuple[Tensor, float]:
    r"""Return x_r (B, *) and r, the point y = x_t of an image after the diffusion from t to r,

        x_r = alpha_r (y / alpha_t + s e),   v_r / alpha_r^2 = v_t / alpha_t^2 + s^2.

    Args:
        e: standard normal noise (B, *).
        noise_std: s, the standard deviation of the added noise in units of the data.
    """
    t = torch.tensor(point.t, dtype=torch.float64)
    alpha_t = path.alpha(t).item()
    ratio = (path.variance(t) / alpha_t**2 + noise_std**2).sqrt().item()
    r = path.time_of_ratio(ratio)
    alpha_r = path.alpha(torch.tensor(r, dtype=torch.float64)).item()
    return alpha_r * (point.y / alpha_t + noise_std * e), r


def class_log_densities(
    estimator: PointEstimator,
    model_of: Callable[[Tensor], PathModel],
    num_classes: int,
    x: Tensor,
    t: float,
) -> Tensor:
    """Return log p_t(x | y) of points x (B, *) for every class y, (B, K) in nats, by the same
    noise of the estimator, so that most of its error cancels in differences.

    Args:
        model_of: class indices (B,) -> the model of B points of these classes.
    """
    labels = torch.arange(num_classes, device=x.device)
    return torch.stack([estimator(model_of(y.expand(len(x))), x, t).value for y in labels], 1)

"""Pixels that are known: draws of the others from p(unknown | known)."""

import torch
from torch import Tensor

from ebm_app.nets.protocols import JointScore, require
from ebm_app.utils.tensors import leaves


class KnownEnergy:
    r"""p_t times a likelihood of the known components of x_1, here y,

        p_t(x) N(y; E[x_1 | x], V_t(x) + s v_t I),    V_t = Var[x_1 | x] by component,

    whose gradient is the score plus J^T (y - E[x_1 | x]) / (V + s v_t), J the derivative of the
    mean, by one backward pass. As v_t falls to 0 it holds x at y, and annealed HMC ends at
    p_1(unknown | known), whatever it passed through; the nearer its way to the exact p(y | x), the
    better are the weights of modes that part early.

    Args:
        energy: of all components, with a Stein head. known: y (B, *), read where ``mask`` (B, *)
            is true.

    Source: the guidance by moments of Rozet et al. 2024, arXiv:2405.13712, with the diagonal of
    its covariance and Metropolis steps.
    """

    #: s, which bounds the likelihood's curvature where a network is sure of a pixel
    slack = 0.1

    def __init__(self, energy: JointScore, known: Tensor, mask: Tensor) -> None:
        self.energy = require(energy, JointScore, "the completion of images")
        self.path, self.start, self.end = energy.path, energy.start, energy.end
        self.known, self.mask = known, mask

    def score_cost(self, t: float) -> int:
        """Return 1, the number of network evaluations in one call of ``score``."""
        return 1

    def score(self, x: Tensor, t: float) -> Tensor:
        """The gradient above at x (B, *)."""
        time = torch.tensor(t, dtype=torch.float64)
        v, alpha = self.path.variance(time), self.path.alpha(time)
        with leaves(x.detach()) as (point,):
            output = self.energy.output(point, t)
            guess = self.path.denoise(point, output.score, time)
            spread = v / alpha**2
            if output.variance is not None:
                spread = spread * self.path.noise_variance_gain(time) * output.variance.detach()
            excess = torch.where(self.mask.clone(), self.known.to(x.dtype) - guess, 0.0)
            loss = (excess.square() / (spread + self.slack * v)).sum() / 2
            (gradient,) = torch.autograd.grad(loss, point)
        return output.score.detach() - gradient

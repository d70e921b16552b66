"""The Stein score of the unknown pixels given known ones."""

import torch
from torch import Tensor

from ebm_app.nets.protocols import NoiseVariance, SteinScore
from ebm_app.paths import require_one_sided
from ebm_app.utils.tensors import leaves


class KnownPixels:
    r"""The Stein score of p_t times a likelihood of the known pixels y of x_1,

        p_t(x) N(y; E[x_1 | x], V_t(x) + s v_t I),    V_t = Var[x_1 | x] per dimension.

    It is the score of the model plus J^T (y - E[x_1 | x]) / (V + s v_t), with J the Jacobian of
    the mean, at the cost of one backward pass. As v_t decreases to 0 the known pixels of x
    converge to y, so annealed HMC ends at p_1(unknown | known). Modes that separate early have
    correct weights only if the intermediate distributions are close to the exact p_t(x | y).

    Args:
        model: of all pixels. known: y (B, *), read where ``mask`` (B, *) is true.

    Source: moment-matching guidance of Rozet et al. 2024, arXiv:2405.13712, with the diagonal of
    its covariance and an accept step.
    """

    #: s, which bounds the curvature of the likelihood where the network is certain of a pixel
    slack = 0.1

    def __init__(self, model: SteinScore, known: Tensor, mask: Tensor) -> None:
        self.path = require_one_sided(model.path)
        self.start, self.end = model.start, model.end
        self.model, self.known, self.mask = model, known, mask

    def score(self, x: Tensor, t: float) -> Tensor:
        """Return the score of the class docstring, without gradients: (B, *)."""
        time = torch.tensor(t, dtype=torch.float64)
        v, alpha = self.path.variance(time), self.path.alpha(time)
        with leaves(x.detach()) as (point,):
            score, variance = self._moments(point, t)
            mean = self.path.denoise(point, score, time)
            excess = torch.where(self.mask.clone(), self.known.to(x.dtype) - mean, 0.0)
            spread = variance * v / alpha**2 + self.slack * v
            (gradient,) = torch.autograd.grad((excess.square() / spread).sum() / 2, point)
        return score.detach() - gradient

    def score_cost(self, t: float) -> int:
        """Return the number of network evaluations in one call of ``score``."""
        return self.model.score_cost(t)

    def _moments(self, x: Tensor, t: float) -> tuple[Tensor, Tensor]:
        """Return the score at ``x`` (B, *) and Var[eps | x], which is 1 for a model without."""
        if isinstance(self.model, NoiseVariance):
            score, variance = self.model.score_and_variance(x, t)
            return score, variance.detach()
        return self.model.score(x, t), torch.ones((), dtype=x.dtype, device=x.device)

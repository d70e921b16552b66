r"""A random step towards the data, whose way back is the noising of the path.

With x_t = alpha_t x1 + sqrt(v_t) eps and times s < t, noise is added on the way back and taken off
on the way there, by Tweedie's mean and one variance u for all components:

    q(x_s | x_t) = N(r x_t, w I),     r = alpha_s / alpha_t,  w = v_s - r^2 v_t,
    p(x_t | x_s) = N((x_s + w score_s(x_s)) / r, u I).

log q - log p takes the place in a chain's weight of a bijection's log-determinant. The weights are
exact whatever the score; they spread the less, the nearer the score is to the gradient of the log
density of p_s, and these densities to each other's noisy copies.

Sources: Doucet, Grathwohl, Matthews, Strathmann 2022, arXiv:2208.07698, for the weights; Bao et
al. 2022, arXiv:2201.06503, for the variance.
"""

import math

import torch
from torch import Tensor

from ebm_app.paths import GaussianPath
from ebm_app.paths.probability_flow import Score
from ebm_app.utils.tensors import standard_normal_log_density, sum_except_batch


class DenoisingStep:
    """The step between times ``start`` < ``end`` of a path from N(0, I); alpha > 0 at the first.

    ``variance``, the u of the module, is that of data known exactly, v_t w / v_s, until ``fit``
    raises it.

    Raises:
        UserError: for a path that does not start from N(0, I).

    >>> from ebm_app.paths import LinearVPPath
    >>> step = DenoisingStep(lambda x, t: -x, LinearVPPath(), 0.3, 0.5)
    >>> y, log_ratio = step.forward(torch.randn(3, 2), torch.Generator())
    >>> y.shape, log_ratio.shape
    (torch.Size([3, 2]), torch.Size([3]))
    """

    def __init__(self, score: Score, path: GaussianPath, start: float, end: float) -> None:
        path.check_reference()
        times = torch.tensor([start, end], dtype=torch.float64)
        alpha, v = path.alpha(times).tolist(), path.variance(times).tolist()
        self.score, self.start = torch.no_grad()(score), start
        self.ratio = alpha[0] / alpha[1]
        self.added = v[0] - self.ratio**2 * v[1]
        self.variance = v[1] * self.added / v[0]

    def fit(self, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """``forward`` by the variance that fits samples ``x`` (B, *) of p_s best, which it keeps:
        u = (w / r^2) (1 - w E|score|^2 / D)."""
        score = self.score(x, self.start)
        share = 1 - self.added * score.double().square().mean().item()
        self.variance = max(self.variance, self.added / self.ratio**2 * share)
        return self._forward(x, score, generator)

    def forward(self, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """x_t (B, *) drawn at ``x`` = x_s, and log q(x_s | x_t) - log p(x_t | x_s), (B,)
        float64."""
        return self._forward(x, self.score(x, self.start), generator)

    def backward(self, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """x_s drawn at ``y`` = x_t, and log p(x_t | x_s) - log q(x_s | x_t)."""
        noise = torch.empty_like(y).normal_(generator=generator)
        x = self.ratio * y + math.sqrt(self.added) * noise
        return x, -self._log_ratio(x, y, self._mean(x, self.score(x, self.start)))

    def _forward(
        self, x: Tensor, score: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        mean = self._mean(x, score)
        y = mean + math.sqrt(self.variance) * torch.empty_like(x).normal_(generator=generator)
        return y, self._log_ratio(x, y, mean)

    def _mean(self, x: Tensor, score: Tensor) -> Tensor:
        return (x + self.added * score) / self.ratio

    def _log_ratio(self, x: Tensor, y: Tensor, mean: Tensor) -> Tensor:
        back = _log_density(x - self.ratio * y, self.added)
        return back - _log_density(y - mean, self.variance)


def _log_density(residual: Tensor, variance: float) -> Tensor:
    """log N(residual; 0, variance I): (B, *) -> (B,) float64."""
    unit = standard_normal_log_density(residual.double() / math.sqrt(variance))
    return sum_except_batch(unit - math.log(variance) / 2)

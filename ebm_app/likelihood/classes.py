r"""Class probabilities of an image, from bounds on log p(x | y) for all classes y.

With x_r = a x + sqrt(w) e, e ~ N(0, I), and l = log(a^2 / w), the bound of ``elbo`` is

    log p(x | y) >= C - 1/2 int E|e - e_y|^2 dl,     e_y = -sqrt(w) s(x_r, r | y),

where C is the same for all classes. Differences between classes are estimated with common noise
e, which cancels most of the variance. Only the most probable classes get more draws.

Source: Li et al. 2023, arXiv:2303.16203.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ebm_app.nets.time_score import TimeScoreModel
from ebm_app.utils.fields import Draws, Number, Positive, Seed, configuration
from ebm_app.utils.random import normal_draws
from ebm_app.utils.tensors import sum_except_batch


class ClassPosterior(NamedTuple):
    """Class probabilities of B images and K classes.

    Attributes:
        probabilities: (B, K), p(y | x) for equally frequent classes.
        log_densities: (B, K), log p(x | y) in nats, up to a constant per image.
        nfe: (B,), network evaluations per image.
    """

    probabilities: Tensor
    log_densities: Tensor
    nfe: Tensor


@configuration
class ClassBounds:
    """Estimator of the differences between the bounds of all classes, in rounds.

    A class that falls ``margin`` nats and two standard errors below the best is dropped and keeps
    its last estimate. The bounds of two classes differ by 1/2 int |d|^2 dl, where d is the
    difference of the predicted noises. If the variance of e is at most 1 in each direction, n
    evenly spaced times estimate it with a variance of at most (L / n) int |d|^2 dl, where L is the
    length of the range of l.

    Args:
        num_rounds: number of rounds.
        num_times: times per round, evenly spaced in l.
        min_log_snr, max_log_snr: range of l; outside it all classes predict the same noise.
        margin: distance to the best class beyond which a class is dropped, in nats.
        seed: seed of the noise; the noise of an image does not depend on its batch.
    """

    num_rounds: Draws = 8
    num_times: Draws = 8
    min_log_snr: Number = -7.0
    max_log_snr: Number = 2.0
    margin: Positive = 3.0
    seed: Seed = 0

    @torch.no_grad()
    def __call__(
        self, model: TimeScoreModel, x: Tensor, t: float, num_classes: int
    ) -> ClassPosterior:
        """Return class probabilities of points x (B, *) at the time t of a one-sided path."""
        num, count = len(x), self.num_rounds * self.num_times
        noise = normal_draws(count, x, self.seed)
        values = torch.full((count, num, num_classes), math.nan, dtype=torch.float64)
        alive = torch.ones(num, num_classes, dtype=torch.bool)
        nfe = torch.zeros(num, dtype=torch.int64)
        for index, (time, e) in enumerate(zip(self._times(model), noise, strict=True)):
            image, labels = alive.to(x.device).nonzero(as_tuple=True)
            loss = self._loss(model, x[image], e[image], labels, time, t)
            values[index][alive] = loss.double().cpu()
            nfe += alive.sum(1)
            if (index + 1) % self.num_times == 0:
                alive = self._alive(values[: index + 1], alive)
        log_densities = -values.nanmean(0)
        return ClassPosterior(log_densities.softmax(1), log_densities, nfe)

    def _times(self, model: TimeScoreModel) -> list[float]:
        """Return the times of all rounds in order, evenly spaced within and between rounds."""
        rounds = torch.arange(self.num_rounds, dtype=torch.float64)
        places = torch.arange(self.num_times, dtype=torch.float64)
        offsets = (0.5 + rounds * (math.sqrt(5) - 1) / 2) % 1
        shares = (places + offsets[:, None]).flatten() / self.num_times
        ratios = self.min_log_snr + (self.max_log_snr - self.min_log_snr) * shares
        return model.path.log_snr_inverse(ratios).tolist()

    def _loss(
        self, model: TimeScoreModel, x: Tensor, e: Tensor, labels: Tensor, time: float, t: float
    ) -> Tensor:
        """Return 1/2 |e - e_y|^2 times the length of the range of l for each label: (n,)."""
        path = model.path
        r, end = (torch.tensor(value, dtype=torch.float64) for value in (time, t))
        a = path.alpha(r) / path.alpha(end)
        w = path.variance(r) - a.square() * path.variance(end)
        # dl = (1 + a^2 v_t / w) d log_snr(r)
        length = (self.max_log_snr - self.min_log_snr) * (path.variance(r) / w)
        output = model(a * x + w.sqrt() * e, r.expand(len(x)).to(x.device), labels=labels)
        residual = e + w.sqrt() * output.score
        return length * sum_except_batch(residual.double().square()) / 2

    def _alive(self, values: Tensor, alive: Tensor) -> Tensor:
        """Return the mask (B, K) of remaining classes, from the losses (n, B, K) so far."""
        losses = torch.where(alive, values.mean(0), math.inf)
        excess = losses - losses.amin(1, keepdim=True)
        width = (self.max_log_snr - self.min_log_snr) / len(values)
        return alive & (excess < self.margin + 2 * (2 * width * excess).sqrt())

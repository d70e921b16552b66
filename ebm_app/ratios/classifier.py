r"""Log density ratios by classification: a network on top of the log ratio of two Gaussians.

With b(x) the log ratio of Gaussians fitted to both samples, the network f minimises

    E_{p_1} softplus(-(b + f)) + E_{p_0} softplus(b + f),     b + f -> log p_1 / p_0,   in nats.

Source: Gutmann and Hyvarinen, JMLR 13, 2012 (noise-contrastive estimation).
"""

import copy
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import scipy
import torch
from torch import Tensor, nn
from torch.nn import functional

from ebm_app.ratios.cross_fit import Learned
from ebm_app.utils.fitting import fit
from ebm_app.utils.random import derive_seed, initial_weights
from ebm_app.utils.tensors import standard_error

#: Rows of each sample in a training step; peak learning rate and weight decay of AdamW
BATCH_SIZE, LEARNING_RATE, WEIGHT_DECAY = 256, 5e-3, 0.1
WIDTH = 64
#: Decay of the moving average of the weights, which is validated
DECAY = 0.98
#: Steps between validations, and validations without improvement before training stops
CHECK_EVERY, PATIENCE = 50, 4
#: Standard errors by which the network must reduce the validation loss of the Gaussians
MIN_ERRORS = 1.0
#: Weights of the diagonal in the covariance of each Gaussian, to select from
SHRINKAGES = (0.01, 0.1, 0.3, 0.6, 1.0)
#: Max axes whose standardised coordinates are inputs of the network
MAX_AXES = 8


class SharedAxes(NamedTuple):
    """Coordinates u = (x - centre) V in which two samples have diagonal covariances.

    The mean of both covariances is I. ``means`` and ``variances`` (2, D) are those of the two
    samples in these coordinates. Axes are sorted by the KL divergence along them, the largest
    first. All float64.
    """

    centre: Tensor
    axes: Tensor
    means: Tensor
    variances: Tensor

    @classmethod
    def fit(cls, x0: Tensor, x1: Tensor, shrinkage: float) -> "SharedAxes":
        """Fit to samples (N0, D) and (N1, D) by a generalised eigenvalue decomposition.

        Args:
            shrinkage: weight of the diagonal in each covariance, between 0 and 1.
        """
        covariances = []
        for x in (x0, x1):
            covariance = torch.cov(x.double().T).reshape(x.shape[1], -1)
            diagonal = covariance.diag().diag()
            covariances.append(covariance.lerp(diagonal, shrinkage))
        pooled = (covariances[0] + covariances[1]) / 2
        ridge = 1e-9 * pooled.diag().mean() * torch.eye(len(pooled))
        values, axes = scipy.linalg.eigh(covariances[1].numpy(), (pooled + ridge).numpy())
        axes, values = torch.from_numpy(axes), torch.from_numpy(values).clamp(1e-4, 2 - 1e-4)
        centre = (x0.double().mean(0) + x1.double().mean(0)) / 2
        m0, m1 = ((x.double().mean(0) - centre) @ axes for x in (x0, x1))
        v0, v1 = 2 - values, values
        divergence = v1 / v0 - 1 - (v1 / v0).log() + (m1 - m0).square() / v0
        order = divergence.argsort(descending=True)
        means, variances = torch.stack([m0, m1]), torch.stack([v0, v1])
        return cls(centre, axes[:, order], means[:, order], variances[:, order])

    def __call__(self, x: Tensor) -> Tensor:
        """Coordinates u of points x: (N, D) -> (N, D), float64."""
        return (x.double() - self.centre) @ self.axes

    def log_ratios(self, x: Tensor) -> Tensor:
        """Log ratio of the two Gaussians along each axis, in nats, (N, D) -> (N, D): they sum to
        the log ratio."""
        (m0, m1), (v0, v1) = self.means, self.variances
        u = self(x)
        return ((u - m0).square() / v0 - (u - m1).square() / v1 + (v0 / v1).log()) / 2


class GaussianRatio(NamedTuple):
    """Log ratio of two Gaussians along the ``num_axes`` axes where they differ most, times
    ``scale``."""

    axes: SharedAxes
    num_axes: int
    scale: float

    def __call__(self, x: Tensor) -> Tensor:
        """Log ratio in nats: (N, D) -> (N,), float64."""
        return self.scale * self.axes.log_ratios(x)[:, : self.num_axes].sum(1)

    @classmethod
    def select(cls, train: Sequence[Tensor], validation: Sequence[Tensor]) -> "GaussianRatio":
        """Select the ratio of Gaussians fitted to ``train`` with the smallest loss on
        ``validation``. Both are a sample of p_0 and one of p_1."""
        dim = train[0].shape[1]
        numbers = sorted({min(2**k, dim) for k in range(8)} | {dim})
        candidates = []
        for shrinkage in SHRINKAGES if dim > 1 else SHRINKAGES[:1]:
            axes = SharedAxes.fit(*train, shrinkage)
            sums = [axes.log_ratios(x).cumsum(1) for x in validation]
            for num, scale in product(numbers, (1.0, 0.7, 0.4)):
                loss = logistic_loss(*(scale * part[:, num - 1] for part in sums))
                candidates.append((sum(part.mean().item() for part in loss), axes, num, scale))
        _, *best = min(candidates, key=lambda candidate: candidate[0])
        return cls(*best)


class NetworkRatio(NamedTuple):
    """Log ratio of Gaussians plus a network; the network is None if it did not help."""

    base: GaussianRatio
    network: nn.Module | None
    blocks: Sequence[slice]

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """Log ratio in nats: (N, D) -> (N,), float64."""
        value = self.base(x)
        if self.network is None:
            return value
        return value + self.network(features(x, self.base, self.blocks))[:, 0].double()

    @classmethod
    def train(
        cls,
        train: Sequence[Tensor],
        validation: Sequence[Tensor],
        blocks: Sequence[slice],
        num_steps: int,
        generator: torch.Generator,
    ) -> Learned:
        """Learn log p_1 / p_0 from samples ``train`` of p_0 and p_1, each (N, D) of scale 1.

        Args:
            validation: rows of p_0 and of p_1 on which the Gaussians and the step are selected.
            blocks: groups of columns whose mean square is an input of the network.
            num_steps: max training steps.
            generator: source of the batches and of the initial weights.
        """
        base = GaussianRatio.select(train, validation)
        inputs = [features(x, base, blocks) for x in train]
        seed = int(torch.randint(2**31, (), generator=generator))
        with initial_weights(derive_seed(seed)):
            network = mlp(inputs[0].shape[1])
        offsets = [base(x).float() for x in train]
        checked = [features(x, base, blocks) for x in validation], [base(x) for x in validation]

        def loss_of_step(_: int) -> Tensor:
            logits = []
            for part, offset in zip(inputs, offsets, strict=True):
                rows = torch.randint(len(part), (BATCH_SIZE,), generator=generator)
                logits.append(offset[rows] + network(part[rows])[:, 0])
            return sum(part.mean() for part in logistic_loss(*logits))

        average, best, best_step = copy.deepcopy(network), None, 0
        start = best_loss = logistic_loss(*checked[1])
        for step in fit(
            network.parameters(), loss_of_step, num_steps, LEARNING_RATE, WEIGHT_DECAY
        ):
            with torch.no_grad():
                decay = min(DECAY, step / (step + 10))
                torch._foreach_lerp_(
                    list(average.parameters()), list(network.parameters()), 1 - decay
                )
            if step % CHECK_EVERY and step < num_steps:
                continue
            with torch.no_grad():
                logits = [b + average(x)[:, 0] for x, b in zip(*checked, strict=True)]
            loss = logistic_loss(*logits)
            if sum(map(torch.mean, loss)) < sum(map(torch.mean, best_loss)) and improves(
                start, loss
            ):
                best, best_step, best_loss = copy.deepcopy(average), step, loss
            if step - best_step >= PATIENCE * CHECK_EVERY:
                break
        return Learned(cls(base, best, blocks), cls(base, average, blocks))


def logistic_loss(logits0: Tensor, logits1: Tensor) -> tuple[Tensor, Tensor]:
    """Logistic losses of the rows of p_0 (N0,) and of p_1 (N1,), in nats."""
    return functional.softplus(logits0), functional.softplus(-logits1)


def improves(before: Sequence[Tensor], after: Sequence[Tensor]) -> bool:
    """Whether losses fall by at least ``MIN_ERRORS`` standard errors of the paired difference."""
    gains = [b - a for b, a in zip(before, after, strict=True)]
    error = sum(standard_error(gain).square() for gain in gains).sqrt()
    return bool(sum(gain.mean() for gain in gains) > MIN_ERRORS * error)


def features(x: Tensor, base: GaussianRatio, blocks: Sequence[slice]) -> Tensor:
    """Inputs of the network, float32: rows x (N, D), the mean square of every block of columns,
    and the coordinates along the first axes, standardised by p_1."""
    squares = [x[:, block].square().mean(1, keepdim=True) - 1 for block in blocks]
    axes = base.axes
    along = ((axes(x) - axes.means[1]) / axes.variances[1].sqrt())[:, :MAX_AXES]
    return torch.cat([x, *squares, along.asinh()], 1).float()


def mlp(dim: int) -> nn.Module:
    """Network with two hidden layers whose initial output is 0."""
    last = nn.Linear(WIDTH, 1)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return nn.Sequential(
        nn.Linear(dim, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH), nn.SiLU(), last
    )

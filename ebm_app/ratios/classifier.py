r"""Log density ratios by classification: a network on top of the log ratio of two Gaussians.

With b(x) the log ratio of Gaussians fitted to both samples, the network f minimises

    E_{p_1} softplus(-(b + f)) + E_{p_0} softplus(b + f),     b + f -> log p_1 / p_0,   in nats.

Source: Gutmann and Hyvarinen, JMLR 13, 2012 (noise-contrastive estimation).
"""

import math
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import scipy
import torch
from torch import Tensor, nn
from torch.nn import functional

from ebm_app.ratios.cross_fit import Ratio, Samples
from ebm_app.utils.fitting import fit, select_average
from ebm_app.utils.random import derive_seed, initial_weights
from ebm_app.utils.tensors import standard_error

#: Rows of each sample in a training step; peak learning rate and weight decay of AdamW
BATCH_SIZE, LEARNING_RATE, WEIGHT_DECAY = 256, 5e-3, 0.1
WIDTH = 64
#: Decay of the moving average of the weights that is validated
DECAY = 0.98
#: Steps between validations, and steps without improvement before training stops
CHECK_EVERY, PATIENCE = 50, 200
#: Candidate weights of the diagonal in the covariance of each Gaussian
SHRINKAGES = (0.01, 0.1, 0.3, 0.6, 1.0)
#: Max number of axes whose standardised coordinates are inputs of the network
MAX_AXES = 8


class GaussianRatio(NamedTuple):
    """Log ratio of two Gaussians along the axes where they differ most.

    In the coordinates u = (x - centre) V both covariances are diagonal and average to I. ``means``
    and ``variances`` (2, D) are those of the two samples in these coordinates. Axes are sorted by
    decreasing KL divergence along them. The ratio is the sum over the first ``num_axes`` axes,
    times ``scale``. All tensors are float64.
    """

    centre: Tensor
    axes: Tensor
    means: Tensor
    variances: Tensor
    num_axes: int
    scale: float = 1.0

    @classmethod
    def fit(cls, x0: Tensor, x1: Tensor, shrinkage: float) -> "GaussianRatio":
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
        return cls(centre, axes[:, order], means[:, order], variances[:, order], len(order))

    @classmethod
    def select(cls, train: Samples, validation: Samples) -> "GaussianRatio":
        """Select shrinkage, ``num_axes`` and ``scale`` of the ratio fitted to ``train`` by the
        loss on ``validation``. Both arguments are samples of (p_0, p_1)."""
        dim = train[0].shape[1]
        numbers = sorted({min(2**k, dim) for k in range(8)} | {dim})
        candidates = []
        for shrinkage in SHRINKAGES if dim > 1 else SHRINKAGES[:1]:
            ratio = cls.fit(*train, shrinkage)
            sums = [ratio.along_axes(x).cumsum(1) for x in validation]
            for num, scale in product(numbers, (1.0, 0.7, 0.4)):
                losses = logistic_losses(*(scale * part[:, num - 1] for part in sums))
                settings = {"num_axes": num, "scale": scale}
                candidates.append((mean_loss(losses), ratio._replace(**settings)))
        return min(candidates, key=lambda candidate: candidate[0])[1]

    def coordinates(self, x: Tensor) -> Tensor:
        """Return the coordinates u of points x: (N, D) -> (N, D), float64."""
        return (x.double() - self.centre) @ self.axes

    def along_axes(self, x: Tensor) -> Tensor:
        """Return the log ratio along each axis, in nats: (N, D) -> (N, D), float64."""
        (m0, m1), (v0, v1) = self.means, self.variances
        u = self.coordinates(x)
        return ((u - m0).square() / v0 - (u - m1).square() / v1 + (v0 / v1).log()) / 2

    def __call__(self, x: Tensor) -> Tensor:
        """Return the log ratio in nats: (N, D) -> (N,), float64."""
        return self.scale * self.along_axes(x)[:, : self.num_axes].sum(1)


class NetworkRatio(NamedTuple):
    """Log ratio of Gaussians plus a network; ``blocks`` are groups of columns."""

    base: GaussianRatio
    network: nn.Module
    blocks: Sequence[slice]

    def inputs(self, x: Tensor) -> Tensor:
        """Return the inputs of the network, float32: rows x (N, D), the mean square of every block
        of columns, and the coordinates along the first axes, standardised by p_1."""
        squares = [x[:, block].square().mean(1, keepdim=True) - 1 for block in self.blocks]
        base = self.base
        along = (base.coordinates(x) - base.means[1]) / base.variances[1].sqrt()
        return torch.cat([x, *squares, along[:, :MAX_AXES].asinh()], 1).float()

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """Return the log ratio in nats: (N, D) -> (N,), float64."""
        return self.base(x) + self.network(self.inputs(x))[:, 0].double()


def classify(
    train: Samples,
    validation: Samples,
    generator: torch.Generator,
    num_steps: int,
    blocks: Sequence[slice] = (slice(None),),
) -> tuple[Ratio, Ratio]:
    """Learn log p_1 / p_0 from standardised samples of p_0 and p_1, each (N, D).

    Args:
        train: samples of p_0 and p_1 to train on.
        validation: samples that select the Gaussians and the training step. The network is used
            if it reduces the loss of the Gaussians by more than a standard error.
        generator: source of the batches and of the initial weights.
        num_steps: max training steps.
        blocks: groups of columns whose mean square is an input of the network.
    """
    base = GaussianRatio.select(train, validation)
    dim = train[0].shape[1]
    seed = int(torch.randint(2**31, (), generator=generator))
    with initial_weights(derive_seed(seed)):
        last = nn.Linear(WIDTH, 1)
        first = nn.Linear(dim + len(blocks) + min(dim, MAX_AXES), WIDTH)
        network = nn.Sequential(first, nn.SiLU(), nn.Linear(WIDTH, WIDTH), nn.SiLU(), last)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    ratio = NetworkRatio(base, network, blocks)
    batches, held_out = (
        [(ratio.inputs(x), base(x)) for x in rows] for rows in (train, validation)
    )
    batches = [(inputs, offset.float()) for inputs, offset in batches]
    start = logistic_losses(*(offset for _, offset in held_out))

    def loss_of_step(_: int) -> Tensor:
        logits = []
        for inputs, offset in batches:
            rows = torch.randint(len(inputs), (BATCH_SIZE,), generator=generator)
            logits.append(offset[rows] + network(inputs[rows])[:, 0])
        return sum(losses.mean() for losses in logistic_losses(*logits))

    def validate(net: nn.Module) -> float:
        losses = logistic_losses(*(offset + net(inputs)[:, 0] for inputs, offset in held_out))
        gains = [before - after for before, after in zip(start, losses, strict=True)]
        error = sum(standard_error(gain).square() for gain in gains).sqrt().item()
        return mean_loss(losses) if mean_loss(gains) > error else math.inf

    steps = fit(network.parameters(), loss_of_step, num_steps, LEARNING_RATE, WEIGHT_DECAY)
    selected, average = select_average(
        network, steps, num_steps, validate, DECAY, CHECK_EVERY, PATIENCE
    )
    return ratio._replace(network=selected), ratio._replace(network=average)


def logistic_losses(logits0: Tensor, logits1: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logistic losses of the rows of p_0 (N0,) and of p_1 (N1,), in nats."""
    return functional.softplus(logits0), functional.softplus(-logits1)


def mean_loss(losses: Sequence[Tensor]) -> float:
    """Return the sum of the mean losses of both samples."""
    return sum(part.mean().item() for part in losses)

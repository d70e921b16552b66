r"""Classifiers between draws of two densities, over a log ratio to start from.

    f minimises E_{p_1} softplus(-(b + f)) + E_{p_0} softplus(b + f)
    b + f -> log p_1 / p_0,   in nats,

with b in closed form, so that a network learns what b misses. Several networks of one shape, on
different rows, are trained side by side. Of each the averaged weights of the step with the least
loss on rows of its own are kept.

Source: Gutmann and Hyvarinen, JMLR 13, 2012 (noise-contrastive estimation).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from ebm_app.utils.fitting import fit

#: rows of p_1 in a step
BATCH_SIZE = 256
LEARNING_RATE, WEIGHT_DECAY = 1e-2, 0.1
HIDDEN = (64, 64, 32)
#: share of the new weights in the averaged ones, which are evaluated
AVERAGE = 0.02
#: steps between validations, and how many of them without a smaller loss end the training
CHECK_EVERY, PATIENCE = 100, 5
#: nats, and standard errors of the difference row by row, by which a loss is smaller: few rows
#: would choose weights by chance
TOLERANCE, MIN_ERRORS = 5e-4, 2.0


class Draws(NamedTuple):
    """Draws for F classifiers: ``base`` b (F, 1 + S, B) and ``inputs`` (F, 1 + S, B, d). The first
    of the 1 + S sets is of p_1, the others of p_0; beyond ``sizes`` (F,) there is nothing."""

    base: Tensor
    inputs: Tensor
    sizes: Tensor

    @classmethod
    def padded(cls, bases: Sequence[Tensor], inputs: Sequence[Tensor]) -> "Draws":
        """From b (1 + S, B_k) and the inputs (1 + S, B_k, d) of every classifier."""
        sizes = torch.tensor([base.shape[1] for base in bases])
        missing = (sizes.max() - sizes).tolist()
        bases = [functional.pad(b, (0, n)) for b, n in zip(bases, missing, strict=True)]
        inputs = [functional.pad(x, (0, 0, 0, n)) for x, n in zip(inputs, missing, strict=True)]
        return cls(torch.stack(bases).float(), torch.stack(inputs).float(), sizes)


class Classifiers:
    """F classifiers with d inputs; ``best_steps`` are of each the step of least validation loss,
    0 being b alone."""

    def __init__(self, num: int, dim: int, steps: int, generator: torch.Generator) -> None:
        self.steps, self.best_steps = steps, [0] * num
        self.weights = networks(num, dim, generator)
        self.average, self.best = ([part.clone() for part in self.weights] for _ in range(2))

    def train(self, draw: Callable[[], Draws], validation: Draws) -> Iterator[int]:
        """Train on fresh draws to the end; yields the step after every validation."""
        with torch.no_grad():
            best_losses = losses(self.average, validation)
        parameters = [part.requires_grad_() for part in self.weights]

        def loss(step: int) -> Tensor:
            draws = draw()
            return (losses(parameters, draws).sum(1) / draws.sizes).sum()

        for step in fit(parameters, loss, self.steps, LEARNING_RATE, WEIGHT_DECAY):
            with torch.no_grad():
                torch._foreach_lerp_(self.average, parameters, AVERAGE)
            if step % CHECK_EVERY == 0 or step == self.steps:
                self._keep_the_best(step, validation, best_losses)
                yield step
                if step - max(self.best_steps) >= PATIENCE * CHECK_EVERY:
                    return

    @torch.no_grad()
    def residual(self, members: slice, inputs: Tensor) -> Tensor:
        """The mean of f of some classifiers at inputs (n, d): (n,), float64."""
        return outputs([part[members] for part in self.best], inputs.float()).double().mean(0)

    @torch.no_grad()
    def _keep_the_best(self, step: int, validation: Draws, best_losses: Tensor) -> None:
        now, sizes = losses(self.average, validation), validation.sizes
        gain = best_losses - now
        mean = gain.sum(1) / sizes
        error = (gain.square().sum(1) / sizes - mean.square()).clamp(min=0).sqrt() / sizes.sqrt()
        least = torch.clamp(MIN_ERRORS * error, min=TOLERANCE)
        for number in (mean > least).nonzero().flatten().tolist():
            self.best_steps[number], best_losses[number] = step, now[number]
            for best, average in zip(self.best, self.average, strict=True):
                best[number] = average[number]


def networks(num: int, dim: int, generator: torch.Generator) -> list[Tensor]:
    """The matrices (F, in, out) of multilayer perceptrons with SiLU, and then their offsets
    (F, 1, out), as PyTorch begins a linear layer; the last layer begins at 0."""
    sizes = list(pairwise([dim, *HIDDEN, 1]))
    shapes = [(num, *size) for size in sizes] + [(num, 1, out) for _, out in sizes]
    weights = []
    for shape, (of_in, out) in zip(shapes, 2 * sizes, strict=True):
        values = (2 * torch.rand(shape, generator=generator) - 1) / math.sqrt(of_in)
        weights.append(values * (out > 1))
    return weights


def outputs(weights: Sequence[Tensor], x: Tensor) -> Tensor:
    """f (F, n) of networks at inputs (F, n, d), or at the same (n, d) for all."""
    depth = len(weights) // 2
    for layer, (matrix, offset) in enumerate(zip(weights[:depth], weights[depth:], strict=True)):
        x = x @ matrix + offset
        x = functional.silu(x) if layer < depth - 1 else x
    return x[..., 0]


def losses(weights: Sequence[Tensor], draws: Draws) -> Tensor:
    """The logistic loss of every classifier by draw, (F, B); 0 beyond the sizes."""
    logits = draws.base + outputs(weights, draws.inputs.flatten(1, 2)).view_as(draws.base)
    inside = torch.arange(draws.base.shape[2]) < draws.sizes[:, None]
    of1, of0 = functional.softplus(-logits[:, 0]), functional.softplus(logits[:, 1:]).mean(1)
    return (of1 + of0) * inside

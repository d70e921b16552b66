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
from torch import Tensor, nn
from torch.nn import functional

from ebm_app.numerics.fitting import fit

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

Weights = dict[str, Tensor]


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
        self.steps = steps
        self.net, self.weights = networks(num, dim, generator)
        self.average = {name: weight.clone() for name, weight in self.weights.items()}
        self.best = {name: weight.clone() for name, weight in self.weights.items()}
        self.best_steps = [0] * num

    def train(self, draw: Callable[[], Draws], validation: Draws) -> Iterator[int]:
        """Train on fresh draws to the end; yields the step after every validation."""
        with torch.no_grad():
            best_losses = self._losses(self.average, validation)
        parameters = [weight.requires_grad_() for weight in self.weights.values()]

        def loss(step: int) -> Tensor:
            draws = draw()
            return (self._losses(self.weights, draws).sum(1) / draws.sizes).sum()

        for step in fit(parameters, loss, self.steps, LEARNING_RATE, WEIGHT_DECAY):
            with torch.no_grad():
                torch._foreach_lerp_(list(self.average.values()), parameters, AVERAGE)
            if step % CHECK_EVERY == 0 or step == self.steps:
                self._keep_the_best(step, validation, best_losses)
                yield step
                if step - max(self.best_steps) >= PATIENCE * CHECK_EVERY:
                    return

    @torch.no_grad()
    def residual(self, members: slice, inputs: Tensor) -> Tensor:
        """The mean of f of some classifiers at inputs (n, d): (n,), float64."""
        chosen = {name: weight[members] for name, weight in self.best.items()}
        return self._outputs(chosen, inputs.float(), None).double().mean(0)

    def _outputs(self, weights: Weights, inputs: Tensor, axis: int | None = 0) -> Tensor:
        """f (F, n) at inputs (F, n, d), or at the same (n, d) for all with the axis None."""

        def single(weights: Weights, inputs: Tensor) -> Tensor:
            return torch.func.functional_call(self.net, weights, inputs)[..., 0]

        return torch.func.vmap(single, (0, axis))(weights, inputs)

    def _losses(self, weights: Weights, draws: Draws) -> Tensor:
        """The logistic loss of every classifier by draw, (F, B); 0 beyond the sizes."""
        logits = draws.base + self._outputs(weights, draws.inputs)
        inside = torch.arange(draws.base.shape[2]) < draws.sizes[:, None]
        of1, of0 = functional.softplus(-logits[:, 0]), functional.softplus(logits[:, 1:]).mean(1)
        return (of1 + of0) * inside

    @torch.no_grad()
    def _keep_the_best(self, step: int, validation: Draws, best_losses: Tensor) -> None:
        losses, sizes = self._losses(self.average, validation), validation.sizes
        gain = best_losses - losses
        mean = gain.sum(1) / sizes
        error = (gain.square().sum(1) / sizes - mean.square()).clamp(min=0).sqrt() / sizes.sqrt()
        least = torch.clamp(MIN_ERRORS * error, min=TOLERANCE)
        for number in (mean > least).nonzero().flatten().tolist():
            self.best_steps[number], best_losses[number] = step, losses[number]
            for name, best in self.best.items():
                best[number] = self.average[name][number]


def networks(num: int, dim: int, generator: torch.Generator) -> tuple[nn.Module, Weights]:
    """A multilayer perceptron with SiLU, and the weights of ``num`` of them as PyTorch begins a
    linear layer; the last layer begins at 0."""
    widths = [dim, *HIDDEN]
    with torch.device("meta"):  # its own weights are never used
        layers = [layer for pair in pairwise(widths) for layer in (nn.Linear(*pair), nn.SiLU())]
        net = nn.Sequential(*layers, nn.Linear(widths[-1], 1))
    linear = {name: part for name, part in net.named_children() if isinstance(part, nn.Linear)}
    weights = {}
    for name, layer in linear.items():
        values = _begun((num, *layer.weight.mT.shape), layer, generator)
        weights[f"{name}.weight"] = values.mT.contiguous()
    for name, layer in linear.items():
        weights[f"{name}.bias"] = _begun((num, layer.out_features), layer, generator)
    return net, weights


def _begun(shape: tuple[int, ...], layer: nn.Linear, generator: torch.Generator) -> Tensor:
    values = (2 * torch.rand(shape, generator=generator) - 1) / math.sqrt(layer.in_features)
    return values * (layer.out_features > 1)

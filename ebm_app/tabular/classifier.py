r"""A stack of classifiers between draws of two densities, over a log ratio to start from.

    f minimises E_{p_1} softplus(-(b + f)) + E_{p_0} softplus(b + f)
    b + f -> log p_1 / p_0,   in nats,

with b in closed form, so that a network learns what b misses. Several classifiers of one shape, on
different rows, are trained side by side as one stack of matrices. Of each the averaged weights of
the step with the least loss on rows of its own are kept.

Source: Gutmann and Hyvarinen, JMLR 13, 2012 (noise-contrastive estimation).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class ClassifierTraining:
    """How the classifiers are trained.

    Args:
        steps: at most. batch_size: rows of p_1 in a step. num_shuffles: draws of p_0 for each.
        learning_rate: the largest of one cycle of AdamW. weight_decay: of AdamW.
        hidden: widths of the hidden layers. average: share of the new weights in the averaged
            ones, which are evaluated. check_every: steps between validations.
        patience: validations without a smaller loss after which the training ends.
        tolerance: nats, and ``min_errors`` standard errors of the difference row by row, by which
            a loss is smaller; few rows would choose weights by chance.
    """

    steps: int = 2_000
    batch_size: int = 256
    num_shuffles: int = 4
    learning_rate: float = 1e-2
    weight_decay: float = 0.1
    hidden: tuple[int, ...] = (64, 64, 32)
    average: float = 0.02
    check_every: int = 100
    patience: int = 5
    tolerance: float = 5e-4
    min_errors: float = 2.0


class Batch(NamedTuple):
    """Draws for F classifiers: ``base`` b (F, 1 + S, B) and ``inputs`` (F, 1 + S, B, d). The first
    of the 1 + S sets is of p_1, the others of p_0; beyond ``sizes`` (F,) there is nothing."""

    base: Tensor
    inputs: Tensor
    sizes: Tensor

    @classmethod
    def padded(cls, bases: Sequence[Tensor], inputs: Sequence[Tensor]) -> "Batch":
        """From b (1 + S, B_k) and the inputs (1 + S, B_k, d) of every classifier."""
        sizes = torch.tensor([base.shape[1] for base in bases])
        missing = (sizes.max() - sizes).tolist()
        return cls(
            torch.stack([functional.pad(x, (0, n)) for x, n in zip(bases, missing, strict=True)]),
            torch.stack(
                [functional.pad(x, (0, 0, 0, n)) for x, n in zip(inputs, missing, strict=True)]
            ),
            sizes,
        )


def stacked_weights(
    num: int, dim: int, hidden: Sequence[int], generator: torch.Generator
) -> list[Tensor]:
    """Weights (F, in, out) of every layer of F multilayer perceptrons, then biases (F, 1, out), as
    PyTorch begins a linear layer; the last layer begins at 0."""
    widths = [dim, *hidden, 1]
    layers = list(zip(widths[:-1], widths[1:], strict=True))
    shapes = [(num, *layer) for layer in layers] + [(num, 1, layer[1]) for layer in layers]
    return [
        (2 * torch.rand(shape, generator=generator) - 1) / math.sqrt(fan_in) * (shape[2] > 1)
        for shape, (fan_in, _) in zip(shapes, 2 * layers, strict=True)
    ]


def stacked_mlp(x: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """The perceptrons of ``stacked_weights`` with SiLU: (F, B, d) -> (F, B)."""
    num_layers = len(weights) // 2
    for number in range(num_layers):
        values = functional.silu(x) if number else x
        x = torch.baddbmm(weights[num_layers + number], values, weights[number])
    return x[..., 0]


class Classifiers:
    """F classifiers with d inputs.

    Args:
        num, dim: F and d. training: how. generator: of the weights.

    Attributes:
        best_steps: of every classifier, the step of least validation loss; 0 is b alone.
    """

    def __init__(
        self, num: int, dim: int, training: ClassifierTraining, generator: torch.Generator
    ) -> None:
        self.training = training
        self.weights = stacked_weights(num, dim, training.hidden, generator)
        self.average = [weight.clone() for weight in self.weights]
        self.best = [weight.clone() for weight in self.weights]
        self.best_steps = [0] * num

    def train(self, draw: Callable[[], Batch], validation: Batch) -> Iterator[int]:
        """Train on fresh draws to the end; yields the step after every validation."""
        plan = self.training
        best_losses = self._validate(validation)
        parameters = [weight.requires_grad_() for weight in self.weights]
        optimiser = torch.optim.AdamW(parameters, weight_decay=plan.weight_decay)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimiser, max_lr=plan.learning_rate, total_steps=plan.steps
        )
        for step in range(1, plan.steps + 1):
            batch = draw()
            loss = (_losses(parameters, batch).sum(1) / batch.sizes).sum()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
            torch._foreach_lerp_(self.average, [p.detach() for p in parameters], plan.average)
            if step % plan.check_every == 0 or step == plan.steps:
                self._keep_the_best(step, validation, best_losses)
                yield step
                if step - max(self.best_steps) >= plan.patience * plan.check_every:
                    return

    @torch.no_grad()
    def residual(self, members: slice, inputs: Tensor) -> Tensor:
        """The mean of f of some classifiers at inputs (n, d): (n,), float64."""
        chosen = [weight[members] for weight in self.best]
        return stacked_mlp(inputs.expand(len(chosen[0]), -1, -1), chosen).double().mean(0)

    def _keep_the_best(self, step: int, validation: Batch, best_losses: Tensor) -> None:
        losses, sizes = self._validate(validation), validation.sizes
        gain = best_losses - losses
        mean = gain.sum(1) / sizes
        error = (gain.square().sum(1) / sizes - mean.square()).clamp(min=0).sqrt() / sizes.sqrt()
        least = torch.clamp(self.training.min_errors * error, min=self.training.tolerance)
        for number in (mean > least).nonzero().flatten().tolist():
            self.best_steps[number], best_losses[number] = step, losses[number]
            for best, average in zip(self.best, self.average, strict=True):
                best[number] = average[number]

    @torch.no_grad()
    def _validate(self, validation: Batch) -> Tensor:
        return _losses(self.average, validation)


def _losses(weights: Sequence[Tensor], batch: Batch) -> Tensor:
    """The logistic loss of every classifier by draw, (F, B); 0 beyond the sizes."""
    logits = batch.base + stacked_mlp(batch.inputs.flatten(1, 2), weights).view(batch.base.shape)
    inside = torch.arange(batch.inputs.shape[2]) < batch.sizes[:, None]
    of1, of0 = functional.softplus(-logits[:, 0]), functional.softplus(logits[:, 1:]).mean(1)
    return (of1 + of0) * inside

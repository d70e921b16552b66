r"""Classifiers between pairs and shuffled pairs, over a log ratio in closed form.

    f minimises E_{p(x,y)} softplus(-(b + f)) + E_{p(x)p(y)} softplus(b + f)
    b + f -> log p(x, y) / (p(x) p(y)),   in nats,

with b the Student-t copula of ranks, so that a network learns what the copula misses. Shuffled
pairs are those of a batch, its y moved on by a few places. Several fits on different rows are
trained side by side as one stack of matrices.

Source: Gutmann and Hyvarinen, JMLR 13, 2012 (noise-contrastive estimation), with the shuffled
pairs of Belghazi et al. 2018, arXiv:1801.04062.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from ebm_app.ratios.t_copula import TCopula


@dataclass(frozen=True)
class ClassifierTraining:
    """How the classifiers are trained.

    Args:
        steps: at most. batch_size: rows of a step. num_shuffles: shuffled pairs for each row.
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


class Pairs(NamedTuple):
    """What the networks read of N rows: features ``x`` (N, fx) and ``y`` (N, fy)."""

    x: Tensor
    y: Tensor


class Fit(NamedTuple):
    """A ratio to learn: its ``copula``, the quantiles ``s`` (N, D) of all rows by it, float64, and
    the numbers of the rows it is learned from and validated on."""

    copula: TCopula
    s: Tensor
    train: Tensor
    validation: Tensor


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
    """A stack of classifiers, one for each fit.

    Args:
        pairs: of all rows, float32. fits: what to learn, F of them. training: how.
        generator: of weights, batches and shuffles.
        num_members: M classifiers of every fit, whose log ratios are averaged.

    Attributes:
        best_steps: of every classifier, member by member of a fit, the step of least validation
            loss; 0 is the copula alone.
    """

    def __init__(
        self,
        pairs: Pairs,
        fits: Sequence[Fit],
        training: ClassifierTraining,
        generator: torch.Generator,
        num_members: int = 1,
    ) -> None:
        self.pairs, self.fits, self.training, self.generator = pairs, fits, training, generator
        self.num_members = num_members
        self._learners = [fit for fit in fits for _ in range(num_members)]
        dim = pairs.x.shape[1] + pairs.y.shape[1]
        self.weights = stacked_weights(len(self._learners), dim, training.hidden, generator)
        self.average = [weight.clone() for weight in self.weights]
        self.best = [weight.clone() for weight in self.weights]
        self._validation = self._batch([fit.validation for fit in self._learners])
        self.best_steps = [0] * len(self._learners)
        self._best_losses = self._validate()

    def train(self) -> Iterator[int]:
        """Train to the end; yields the step after every validation."""
        plan = self.training
        parameters = [weight.requires_grad_() for weight in self.weights]
        optimiser = torch.optim.AdamW(parameters, weight_decay=plan.weight_decay)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimiser, max_lr=plan.learning_rate, total_steps=plan.steps
        )
        for step in range(1, plan.steps + 1):
            batch = self._batch(self._draw_rows())
            loss = (_losses(parameters, *batch).sum(1) / batch[2]).sum()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
            torch._foreach_lerp_(self.average, [p.detach() for p in parameters], plan.average)
            if step % plan.check_every == 0 or step == plan.steps:
                self._keep_the_best(step)
                yield step
                if step - max(self.best_steps) >= plan.patience * plan.check_every:
                    return

    @torch.no_grad()
    def log_ratio(self, number: int, x_rows: Tensor, y_rows: Tensor) -> Tensor:
        """The log ratio of one fit at pairs of rows (n,) and (n,): (n,), float64."""
        base = self._base(self.fits[number], x_rows, y_rows)
        inputs = torch.cat([self.pairs.x[x_rows], self.pairs.y[y_rows]], 1)
        members = slice(number * self.num_members, (number + 1) * self.num_members)
        chosen = [weight[members] for weight in self.best]
        residual = stacked_mlp(inputs.expand(self.num_members, -1, -1), chosen)
        return base + residual.double().mean(0)

    def _keep_the_best(self, step: int) -> None:
        losses, sizes = self._validate(), self._validation[2]
        gain = self._best_losses - losses
        mean = gain.sum(1) / sizes
        error = (gain.square().sum(1) / sizes - mean.square()).clamp(min=0).sqrt() / sizes.sqrt()
        least = torch.clamp(self.training.min_errors * error, min=self.training.tolerance)
        for number in (mean > least).nonzero().flatten().tolist():
            self.best_steps[number], self._best_losses[number] = step, losses[number]
            for best, average in zip(self.best, self.average, strict=True):
                best[number] = average[number]

    @torch.no_grad()
    def _validate(self) -> Tensor:
        return _losses(self.average, *self._validation)

    def _draw_rows(self) -> list[Tensor]:
        rows = []
        for fit in self._learners:
            size = min(self.training.batch_size, len(fit.train))
            place = torch.randint(len(fit.train), (size,), generator=self.generator)
            rows.append(fit.train[place])
        return rows

    def _batch(self, rows: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Base (F, 1 + S, B) and inputs (F, 1 + S, B, f) of rows of every fit and their shuffles,
        padded to the longest, and how many rows each fit has (F,)."""
        sizes = torch.tensor([len(part) for part in rows])
        longest = int(sizes.max())
        shifts = torch.randint(
            1, int(sizes.min()), (self.training.num_shuffles,), generator=self.generator
        )
        bases, inputs = [], []
        for fit, part in zip(self._learners, rows, strict=True):
            y_rows = torch.stack([part] + [part.roll(-int(shift)) for shift in shifts])
            x_rows = part.expand_as(y_rows)
            base = self._base(fit, x_rows.reshape(-1), y_rows.reshape(-1)).float()
            both = torch.cat([self.pairs.x[x_rows], self.pairs.y[y_rows]], 2)
            missing = longest - len(part)
            bases.append(functional.pad(base.view(y_rows.shape), (0, missing)))
            inputs.append(functional.pad(both, (0, 0, 0, missing)))
        return torch.stack(bases), torch.stack(inputs), sizes

    @staticmethod
    def _base(fit: Fit, x_rows: Tensor, y_rows: Tensor) -> Tensor:
        dim_x = fit.copula.dim_x
        return fit.copula.log_ratio(torch.cat([fit.s[x_rows, :dim_x], fit.s[y_rows, dim_x:]], 1))


def _losses(weights: Sequence[Tensor], base: Tensor, inputs: Tensor, sizes: Tensor) -> Tensor:
    """The logistic loss of every classifier by row, (F, B): of a batch, the first of the 1 + S
    sets are pairs, the others shuffled ones; 0 beyond ``sizes`` (F,)."""
    logits = base + stacked_mlp(inputs.flatten(1, 2), weights).view(base.shape)
    inside = torch.arange(inputs.shape[2]) < sizes[:, None]
    joint, apart = functional.softplus(-logits[:, 0]), functional.softplus(logits[:, 1:]).mean(1)
    return (joint + apart) * inside

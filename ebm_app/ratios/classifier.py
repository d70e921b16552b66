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
from torch import Tensor, nn
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


class StackedMLP(nn.Module):
    """F multilayer perceptrons of one shape with SiLU, (F, B, d) -> (F, B); all begin at 0."""

    def __init__(self, num: int, dim: int, hidden: Sequence[int], seed: torch.Generator) -> None:
        super().__init__()
        widths = [dim, *hidden, 1]
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for fan_in, fan_out in zip(widths[:-1], widths[1:], strict=True):
            bound = 0.0 if fan_out == 1 else 1 / math.sqrt(fan_in)
            for shape, target in (
                ((num, fan_in, fan_out), self.weights),
                ((num, 1, fan_out), self.biases),
            ):
                start = (2 * torch.rand(shape, generator=seed) - 1) * bound
                target.append(nn.Parameter(start))

    def forward(self, x: Tensor) -> Tensor:
        for number, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, x if not number else functional.silu(x), weight)
        return x[..., 0]


class Classifiers:
    """A stack of classifiers, one for each fit.

    Args:
        pairs: of all rows, float32. fits: what to learn. training: how. generator: of weights,
            batches and shuffles.

    Attributes:
        best_steps: of every fit, the step of least validation loss; 0 is the copula alone.
        best_losses: that loss, (F,).
    """

    def __init__(
        self,
        pairs: Pairs,
        fits: Sequence[Fit],
        training: ClassifierTraining,
        generator: torch.Generator,
    ) -> None:
        self.pairs, self.fits, self.training, self.generator = pairs, fits, training, generator
        dim = pairs.x.shape[1] + pairs.y.shape[1]
        self.net = StackedMLP(len(fits), dim, training.hidden, generator)
        self.average = [weight.detach().clone() for weight in self.net.parameters()]
        self.best = [weight.clone() for weight in self.average]
        self._validation = self._batch([fit.validation for fit in fits])
        self.best_steps = [0] * len(fits)
        self.best_losses = self._validate()

    def train(self) -> Iterator[int]:
        """Train to the end; yields the step after every validation."""
        plan = self.training
        parameters = list(self.net.parameters())
        optimiser = torch.optim.AdamW(parameters, weight_decay=plan.weight_decay)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimiser, max_lr=plan.learning_rate, total_steps=plan.steps
        )
        for step in range(1, plan.steps + 1):
            loss = self._loss(self.net, *self._batch(self._draw_rows())).sum()
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
        values = torch.cat([self.pairs.x[x_rows], self.pairs.y[y_rows]], 1)
        layers = len(self.net.weights)
        for layer, (weight, bias) in enumerate(
            zip(self.best[:layers], self.best[layers:], strict=True)
        ):
            values = functional.silu(values) if layer else values
            values = values @ weight[number] + bias[number]
        return base + values[:, 0].double()

    def _keep_the_best(self, step: int) -> None:
        losses = self._validate()
        for number in (losses < self.best_losses).nonzero().flatten().tolist():
            self.best_steps[number], self.best_losses[number] = step, losses[number]
            for best, average in zip(self.best, self.average, strict=True):
                best[number] = average[number]

    @torch.no_grad()
    def _validate(self) -> Tensor:
        weights = dict(zip(dict(self.net.named_parameters()), self.average, strict=True))

        def averaged(x: Tensor) -> Tensor:
            return torch.func.functional_call(self.net, weights, (x,))

        return self._loss(averaged, *self._validation)

    def _loss(self, net: nn.Module, base: Tensor, inputs: Tensor, sizes: Tensor) -> Tensor:
        """The logistic loss of every fit, (F,); the first part of a row of ``inputs`` are pairs,
        the others shuffled ones, and beyond ``sizes`` (F,) there is nothing."""
        logits = base + net(inputs.flatten(1, 2)).unflatten(1, inputs.shape[1:3])
        inside = (torch.arange(inputs.shape[2]) < sizes[:, None]) / sizes[:, None]
        joint = (functional.softplus(-logits[:, 0]) * inside).sum(1)
        apart = (functional.softplus(logits[:, 1:]).mean(1) * inside).sum(1)
        return joint + apart

    def _draw_rows(self) -> list[Tensor]:
        rows = []
        for fit in self.fits:
            size = min(self.training.batch_size, len(fit.train))
            place = torch.randint(len(fit.train), (size,), generator=self.generator)
            rows.append(fit.train[place])
        return rows

    def _batch(self, rows: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Base (F, 1 + S, B) and inputs (F, 1 + S, B, f) of rows of every fit and their shuffles,
        padded to the longest, and how many rows each fit has (F,)."""
        sizes = torch.tensor([len(part) for part in rows])
        longest = int(sizes.max())
        shifts = torch.randint(1, int(sizes.min()), (self.training.num_shuffles,), generator=self.generator)
        bases, inputs = [], []
        for fit, part in zip(self.fits, rows, strict=True):
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

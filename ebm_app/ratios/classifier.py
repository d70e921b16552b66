r"""Log density ratios by classification.

A classifier of n_0 rows of p_0 and n_1 rows of p_1 gives the log ratio

    log p_1(x) / p_0(x) = log P(1 | x) / P(0 | x) - log n_1 / n_0,   in nats.

The default classifier is a network f on top of the log ratio b of two Gaussians, which minimises

    E_{p_1} softplus(-(b + f)) + E_{p_0} softplus(b + f).

Source: Gutmann and Hyvarinen, JMLR 13, 2012 (noise-contrastive estimation).
"""

import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.utils.validation import has_fit_parameter
from torch import Tensor, nn
from torch.nn.functional import softplus

from ebm_app.ratios.cross_fit import CrossFitRatio, LogRatio, Sample
from ebm_app.ratios.gaussians import GaussianRatio, select_shrinkage
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import Seed, Steps, check_argument
from ebm_app.utils.fitting import fit, select_average
from ebm_app.utils.random import initial_weights, make_generator
from ebm_app.utils.tensors import standard_error

#: Rows of each class in a training step; peak learning rate and weight decay of AdamW
BATCH_SIZE, LEARNING_RATE, WEIGHT_DECAY = 256, 5e-3, 0.1
WIDTH = 64
#: Decay of the moving average of the weights that is validated
DECAY = 0.98
#: Steps between validations, and steps without improvement before training stops
CHECK_EVERY, PATIENCE = 50, 200
#: Max number of axes of the Gaussians whose standardised coordinates are inputs of the network
MAX_AXES = 8


class ClassifierRatio(CrossFitRatio):
    """Log ratio of the densities of two samples, by a classifier.

    For densities that overlap and for discrete columns. If they hardly overlap, use ``CTSMRatio``.

    Args:
        classifier: classifier of scikit-learn with ``predict_proba``; None for a
            ``NetworkClassifier``. If its ``fit`` has an argument ``groups``, it gets the fold of
            each row: rows of different folds are independent. A probability of 0 counts as 1 / 2n
            for n training rows.
        num_folds: K, at least 3; each of K classifiers is trained without one fold of the rows.
        random_state: seed of the folds and of the default classifier.

    Attributes:
        estimate_: ``RatioEstimate`` of KL(p_1 || p_0), after ``fit``.

    >>> generator = np.random.default_rng(0)
    >>> x0, x1 = (generator.normal(shift, 1, (900, 2)) for shift in (0, 0.5))
    >>> ratio = ClassifierRatio().fit(x0, x1)  # (x_1 + x_2) / 2 - 1 / 4
    >>> abs(ratio.log_ratio([[1.0, 1.0]]).item() - 0.75) < 0.3
    True
    >>> ratio.estimate_.interval[0] < 0.25 < ratio.estimate_.interval[1]
    True
    """

    def __init__(self, classifier: Any = None, num_folds: int = 5, random_state: int = 0) -> None:
        self.classifier = classifier
        self.num_folds, self.random_state = num_folds, random_state

    def learn(self, p0: Sample, p1: Sample, seed: int) -> LogRatio:
        """Train a copy of the classifier on the rows of both samples."""
        if self.classifier is None:
            classifier = NetworkClassifier(random_state=seed)
        elif not hasattr(self.classifier, "predict_proba"):
            raise UserError(
                f"{type(self.classifier).__name__} has no probabilities. Use a classifier with "
                "predict_proba."
            )
        else:
            classifier = clone(self.classifier)
        rows = np.concatenate([p0.rows, p1.rows])
        labels = np.repeat([0, 1], [len(p0.rows), len(p1.rows)])
        options = {}
        if has_fit_parameter(classifier, "groups"):
            options["groups"] = np.concatenate([p0.fold, p1.fold])
        classifier.fit(rows, labels, **options)
        if isinstance(classifier, NetworkClassifier):
            return classifier.log_ratio
        return ClassifierLogRatio(classifier, len(p0.rows), len(p1.rows))


@dataclass(frozen=True)
class ClassifierLogRatio:
    """Log ratio of a classifier trained on ``num0`` rows of p_0 and ``num1`` rows of p_1."""

    classifier: Any
    num0: int
    num1: int

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return the log ratio at rows (n, D): (n,), in nats."""
        probability = self.classifier.predict_proba(x)
        floor = 1 / (2 * (self.num0 + self.num1))
        logs = np.log(np.where(probability == 0, floor, probability))
        return logs[:, 1] - logs[:, 0] - math.log(self.num1 / self.num0)


class NetworkClassifier(ClassifierMixin, BaseEstimator):
    """Classifier of two classes: a network on top of the log ratio of two Gaussians.

    A fifth of the rows, or the first group, selects the Gaussians and the training step. The
    network is used if it reduces the loss of the Gaussians there by more than a standard error.

    Args:
        steps: max training steps.
        random_state: seed of the weights and batches.
    """

    def __init__(self, steps: int = 1_000, random_state: int = 0) -> None:
        self.steps, self.random_state = steps, random_state

    def fit(self, x: Any, y: Any, groups: Any = None) -> Self:
        """Train on standardised rows (N, D) with two classes (N,).

        Args:
            groups: (N,); the rows of the smallest group are held out for validation.
        """
        x = torch.tensor(np.asarray(x, np.float64))
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) != 2:
            raise UserError(f"Expected two classes, got {len(self.classes_)}.")
        generator = make_generator("cpu", check_argument(Seed, "random_state", self.random_state))
        if groups is None:
            groups = torch.randint(5, (len(x),), generator=generator)
        groups, labels = torch.as_tensor(groups), torch.from_numpy(labels)
        held_out = groups == groups.min()
        train, validation = (
            [x[part & (labels == number)] for number in (0, 1)] for part in (~held_out, held_out)
        )
        counts = [len(rows) for rows in (*train, *validation)]
        if min(counts) < 2:
            raise UserError(
                f"Got {counts[:2]} rows of the two classes to train on, and {counts[2:]} to "
                "validate. Use at least two of each."
            )
        self.prior_ = math.log(counts[1] / counts[0])
        num_steps = check_argument(Steps, "steps", self.steps)
        self.ratio_ = train_network(train, validation, generator, num_steps)
        return self

    def log_ratio(self, x: Any) -> np.ndarray:
        """Return the log ratio of the densities of both classes at rows (n, D): (n,), in nats."""
        return self.ratio_(torch.tensor(np.asarray(x, np.float64))).numpy()

    def predict_proba(self, x: Any) -> np.ndarray:
        """Return the probabilities of both classes at rows (n, D): (n, 2)."""
        logits = self.log_ratio(x) + self.prior_
        return np.stack([expit(-logits), expit(logits)], 1)

    def predict(self, x: Any) -> np.ndarray:
        """Return the likelier class of each row."""
        return self.classes_[self.predict_proba(x).argmax(1)]


class NetworkRatio(nn.Module):
    """Log ratio of Gaussians plus a network, initially the Gaussians alone."""

    def __init__(self, base: GaussianRatio) -> None:
        super().__init__()
        self.base, dim = base, len(base.centre)
        last = nn.Linear(WIDTH, 1)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        first = nn.Linear(2 * dim + min(dim, MAX_AXES), WIDTH)
        self.layers = nn.Sequential(first, nn.SiLU(), nn.Linear(WIDTH, WIDTH), nn.SiLU(), last)

    def inputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inputs of the network at rows x (N, D), float32, and the log ratio of the
        Gaussians (N,). Inputs are the rows, their squares less 1, and the asinh of the coordinates
        along the first axes, standardised by p_1."""
        base = self.base
        along = (base.coordinates(x) - base.means[1]) / base.variances[1].sqrt()
        inputs = torch.cat([x, x.square() - 1, along[:, :MAX_AXES].asinh()], 1)
        return inputs.float(), base(x)

    def logits(self, inputs: Tensor, offset: Tensor) -> Tensor:
        """Return the log ratio (N,) at ``inputs`` of the network."""
        return offset + self.layers(inputs)[:, 0]

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Return the log ratio in nats: (N, D) -> (N,), float64."""
        return self.logits(*self.inputs(x))


def train_network(
    train: list[Tensor],
    validation: list[Tensor],
    generator: torch.Generator,
    num_steps: int,
) -> NetworkRatio:
    """Learn log p_1 / p_0 from standardised samples of (p_0, p_1), each (N, D)."""
    base = GaussianRatio.fit(*train, select_shrinkage(train, validation))
    with initial_weights(int(torch.randint(2**31, (), generator=generator))):
        ratio = NetworkRatio(base)
    batches, held_out = ([ratio.inputs(x) for x in rows] for rows in (train, validation))
    start = logistic_losses(*(offset for _, offset in held_out))

    def loss_of_step(_: int) -> Tensor:
        logits = []
        for inputs, offset in batches:
            rows = torch.randint(len(inputs), (BATCH_SIZE,), generator=generator)
            logits.append(ratio.logits(inputs[rows], offset[rows]))
        return sum(losses.mean() for losses in logistic_losses(*logits))

    def validate(average: NetworkRatio) -> float:
        losses = logistic_losses(*(average.logits(*part) for part in held_out))
        gains = [before - after for before, after in zip(start, losses, strict=True)]
        error = sum(standard_error(gain).square() for gain in gains).sqrt().item()
        gain = sum(part.mean() for part in gains)
        return -gain.item() if gain > error else math.inf

    steps = fit(ratio.parameters(), loss_of_step, num_steps, LEARNING_RATE, WEIGHT_DECAY)
    best, _ = select_average(ratio, steps, num_steps, validate, DECAY, CHECK_EVERY, PATIENCE)
    return best


def logistic_losses(logits0: Tensor, logits1: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logistic losses of the rows of p_0 (N0,) and of p_1 (N1,), in nats."""
    return softplus(logits0), softplus(-logits1)

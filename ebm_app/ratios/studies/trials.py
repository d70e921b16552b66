"""One training of a log ratio, watched while it runs.

A trial is a problem, a path, a method and a seed. Trials of one problem and seed see the same
draws, and are judged at the same points, so that methods can be compared.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from ebm_app.errors import UserError
from ebm_app.numerics import seeded
from ebm_app.ratios.data.pairs import KnownPair, MixturePair, Pair
from ebm_app.ratios.data.plane_pairs import PICTURE_PAIRS, PicturePair
from ebm_app.ratios.methods import Method, MixtureResidual, TimeScores
from ebm_app.ratios.stacks import RatioStack
from ebm_app.ratios.studies.marginals import Plane
from ebm_app.ratios.studies.problems import TOY_PROBLEMS, classifiers, score_methods
from ebm_app.ratios.studies.study import Points, row
from ebm_app.ratios.training import TEST, VALIDATION, RatioTrainer, RatioTraining, draw
from ebm_app.registry import choose

#: what an evaluation costs: it must not take much longer than the steps between two of them
NUM_POINTS, NUM_LOSS_DRAWS, NUM_PLANE_DRAWS, PICTURE_MODES = 600, 2_048, 40_000, 16
PAIRS: dict[str, Pair] = {
    **{name: problem.pair for name, problem in TOY_PROBLEMS.items() if "sigma" not in name},
    **PICTURE_PAIRS,
}
#: the sigma of the Schrodinger bridge; None is the variance-preserving path
SIGMAS: dict[str, float | None] = {
    "variance_preserving": None,
    "bridge_sigma1": 1.0,
    "bridge_sigma1.41": math.sqrt(2),
}
_WEIGHTINGS = {
    "uniform": {"weighting": "uniform"},
    "stein": {"weighting": "stein_score"},
    "time0": {"moment": "data"},
    "time1": {},
}


def paths_of(problem: str) -> list[str]:
    """The paths that suit a problem: the variance-preserving one starts at N(0, I)."""
    is_any = isinstance(PAIRS[problem], MixturePair)
    return [name for name, sigma in SIGMAS.items() if not (is_any and sigma is None)]


def methods_of(sigma: float | None) -> dict[str, Method]:
    """Every objective under every weighting, by the names of the tables, and the baselines."""
    scores = {
        f"{objective}_{name}": TimeScores(sigma, objective=objective, **settings)
        for objective in ("ctsm_v", "ctsm", "tsm")
        for name, settings in _WEIGHTINGS.items()
    }
    return {**scores, **score_methods(sigma), **classifiers(sigma)}


METHODS = tuple(methods_of(None))


@dataclass(frozen=True)
class Trial:
    """What is trained.

    Args:
        problem: a key of ``PAIRS``. path: one of :func:`paths_of`. method: one of ``METHODS``.
        learning_rate: of Adam. training: the budget. seed: of the weights and the draws.

    Raises:
        UserError: for an unknown name, a path that does not suit the problem, and a learning rate
            that is not positive.
    """

    problem: str
    path: str
    method: str
    learning_rate: float = 2e-3
    training: RatioTraining = RatioTraining(1_000, eval_every=50)
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what is no trial."""
        choose("problem", self.problem, PAIRS)
        choose("path", self.path, SIGMAS)
        choose("method", self.method, METHODS)
        if self.path not in paths_of(self.problem):
            raise UserError(
                f"the path {self.path} starts at N(0, I), which {self.problem} does not: choose "
                f"one of {', '.join(paths_of(self.problem))}"
            )
        if not 0 < self.learning_rate < math.inf:
            raise UserError(f"the learning rate is {self.learning_rate}: give a positive number")

    @property
    def pair(self) -> Pair:
        """The two densities."""
        return PAIRS[self.problem]

    def build(self) -> Method:
        """The method on its path; a picture takes more modes than the tables' mixtures have."""
        method = methods_of(SIGMAS[self.path])[self.method]
        if isinstance(self.pair, PicturePair) and isinstance(method, MixtureResidual):
            return replace(method, max_modes=PICTURE_MODES, fit_draws=5_000)
        return method


class DataPoints:
    """Draws of a picture, at which log ratios are judged; as :class:`Points`, which takes half of
    them from p_0, where the log ratio of a picture may be -inf.

    ``truth`` is None where the picture has no closed form.
    """

    def __init__(self, pair: PicturePair, num: int, generator: torch.Generator) -> None:
        self.x = pair.sample1(num, generator)
        self.truth = pair.log_ratio(self.x) if isinstance(pair, KnownPair) else None

    def figures(self, log_ratio: Tensor) -> dict[str, Tensor]:
        """Of estimates (M, N): "divergence", and where there is a truth "error"."""
        found = {"divergence": log_ratio.mean(1)}
        if self.truth is not None:
            found["error"] = (log_ratio - self.truth).square().mean(1)
        return found


class Judge:
    """Draws that stay the same, by which a method is judged.

    Args:
        pair: the densities. method: gives the path and the times of the loss.
        generator: of the draws; the same one gives every method the same.
    """

    def __init__(self, pair: Pair, method: Method, generator: torch.Generator) -> None:
        kind = DataPoints if isinstance(pair, PicturePair) else Points
        self.points = kind(pair, NUM_POINTS, generator)
        times = method.sampler.sample
        self.draw = draw(pair, times, NUM_LOSS_DRAWS, generator)
        self.plane = None
        if pair.dim == 2:
            rows = draw(pair, times, NUM_PLANE_DRAWS, generator)
            self.plane = Plane(pair, method.path, rows)

    def criterion(self, ratio: RatioStack) -> dict[str, Tensor]:
        """Figures by name: "loss"; "error", the mean squared error in nats^2, or the loss where
        there is no truth; "divergence" in nats, the mean log ratio over p_1; "estimate" (M, N),
        the log ratios; and on the plane "log_densities" (M, T, side, side) and "mass" (M,), the
        integral of the learned p_1."""
        loss = ratio.loss(self.draw).detach().double().unflatten(0, (ratio.stack.num_members, -1))
        estimate = ratio.log_ratio(self.points.x)
        figures = {"loss": loss.mean(1), "error": loss.mean(1)}
        figures |= self.points.figures(estimate) | {"estimate": estimate}
        if self.plane is not None:
            figures["log_densities"] = self.plane.log_densities(ratio)
            figures["mass"] = self.plane.mass(figures["log_densities"][:, -1])
        return figures


class Snapshot(NamedTuple):
    """Where a trial stands.

    Attributes:
        step: steps done. seconds: they took, without the evaluations. best_step: with the least
            error so far. judge: gave the figures. is_final: whether they are those of the best
            weights on fresh draws, not of the present ones.
        scalars: the figures of one number; None where not finite.
        curve: the scalars of every evaluation, with "step".
        estimate: (N,) at the judge's points. log_densities: (T, side, side), on the plane.
    """

    trial: Trial
    step: int
    seconds: float
    best_step: int
    judge: Judge
    is_final: bool
    scalars: dict[str, float | None]
    curve: list[dict[str, float | None]]
    estimate: Tensor
    log_densities: Tensor | None

    @property
    def has_truth(self) -> bool:
        """Whether the true log ratio is known."""
        return self.judge.points.truth is not None

    @property
    def step_ms(self) -> float | None:
        """Milliseconds a step so far."""
        return 1e3 * self.seconds / self.step if self.step else None


def watch(trial: Trial, device: str = "cpu") -> Iterator[Snapshot]:
    """Train: a snapshot at every evaluation and, after the last one, that of the best weights on
    fresh draws."""
    method, curve = trial.build(), []
    validation = Judge(trial.pair, method, seeded(device, 0, VALIDATION))
    trainer = RatioTrainer(
        *(method, trial.pair, [trial.seed], torch.tensor([trial.learning_rate])),
        trial.training,
        validation.criterion,
        device,
    )

    def snapshot(judge: Judge, is_final: bool, figures: dict[str, Tensor]) -> Snapshot:
        arrays = {name: value for name, value in figures.items() if value.ndim > 1}
        scalars = row({name: v for name, v in figures.items() if name not in arrays}, 0)
        if not is_final:
            curve.append({"step": trainer.step, **scalars})
        densities = arrays.get("log_densities")
        return Snapshot(
            *(trial, trainer.step, trainer.seconds, trainer.best_step[0].item()),
            *(judge, is_final, scalars, list(curve), arrays["estimate"][0].cpu()),
            None if densities is None else densities[0].cpu(),
        )

    for evaluation in trainer.run():
        yield snapshot(validation, False, evaluation.figures)
    test = Judge(trial.pair, method, seeded(device, 0, TEST))
    with trainer.best_weights() as ratio:
        figures = test.criterion(ratio)
    yield snapshot(test, True, figures)

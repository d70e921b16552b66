"""How annealed chains come from the distribution of one temperature to that of the next."""

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

from torch import Tensor

from ebm_app.annealing.denoising import DenoisingStep
from ebm_app.nets.protocols import SteinScore
from ebm_app.paths.midpoint import ImplicitMidpoint
from ebm_app.paths.probability_flow import ProbabilityFlow
from ebm_app.sampling.annealing import Move, stay

#: time at which the first step of the probability flow takes N(0, I) for p_t: its alpha exceeds 0
FLOW_START = 1e-4


class Moves(NamedTuple):
    """To each next temperature, and back from there; and how pilot chains go there, by which a
    move may find what it needs."""

    there: list[Move]
    back: list[Move]
    pilot: list[Move]


#: (energy, times (K + 1,)) -> the K moves between them
Transport = Callable[[SteinScore, Tensor], Moves]


def none(energy: SteinScore, times: Tensor) -> Moves:
    """The chains stay where they are."""
    return Moves(*[[stay] * (len(times) - 1)] * 3)


def flow(energy: SteinScore, times: Tensor) -> Moves:
    """Steps of the probability-flow ODE, whose determinants cost D backward passes each."""
    field = ProbabilityFlow(energy.score, energy.path)
    first, *others = times.tolist()
    steps = [
        ImplicitMidpoint(field, *ends) for ends in pairwise([max(first, FLOW_START), *others])
    ]
    there = [_determined(step.forward) for step in steps]
    return Moves(there, [_determined(step.backward) for step in steps], there)


def diffusion(energy: SteinScore, times: Tensor) -> Moves:
    """Steps of the reversed diffusion, one evaluation each; none where alpha may be 0."""
    score = energy.score
    steps = [DenoisingStep(score, energy.path, *ends) for ends in pairwise(times[1:].tolist())]
    there, back = [stay, *(s.forward for s in steps)], [stay, *(s.backward for s in steps)]
    return Moves(there, back, pilot=[stay, *(s.fit for s in steps)])


def _determined(move: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Move:
    return lambda x, generator: move(x)

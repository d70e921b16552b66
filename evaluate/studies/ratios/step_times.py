"""Milliseconds a training step, of several methods in turns within one run.

Beside the methods stands what they are measured against: for networks on vectors the "floor", the
forward and backward pass of the same network on random input and nothing else; for a covariance
matrix "inverse_each", CTSM-v with an inverse for every example instead of a few for all.
"""

from collections.abc import Callable, Sequence

import torch

from ebm_app.ratios.methods import CovarianceScores, Method, seeded_mlp
from ebm_app.ratios.problems import Problem
from ebm_app.ratios.training import RatioTrainer
from studies.timing import seconds_in_turns


def step_times(
    problem: Problem, methods: Sequence[str], device: str = "cpu", rounds: int = 10, steps: int = 3
) -> dict[str, float]:
    """Milliseconds a step by method, after those of what they are measured against."""
    chosen = {name: problem.methods[name] for name in methods}
    if all(isinstance(method, CovarianceScores) for method in chosen.values()):
        actions = {"inverse_each": _step(problem, CovarianceScores(num_times=0), device)}
    else:
        actions = {"floor": _floor(problem, device)}
    actions |= {name: _step(problem, method, device) for name, method in chosen.items()}
    times = seconds_in_turns(actions, device, rounds, steps)
    return {name: 1e3 * seconds for name, seconds in times.items()}


def _step(problem: Problem, method: Method, device: str) -> Callable[[], None]:
    pair, training = problem.pair, problem.training
    return RatioTrainer(method, pair, 0, 1e-4, training, lambda ratio: {}, device).train_step


def _floor(problem: Problem, device: str) -> Callable[[], None]:
    dim, num = problem.pair.dim, problem.training.batch_size
    net = seeded_mlp(dim, dim, 0).to(device)
    x, t = torch.randn(num, dim, device=device), torch.rand(num, device=device)

    def step() -> None:
        net.zero_grad(set_to_none=True)
        net(x, t).square().mean().backward()

    return step

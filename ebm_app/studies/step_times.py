"""Milliseconds a training step, of several methods in turns within one run.

A machine is never equally fast twice, so only times taken in turns are compared, and of each the
tenth percentile, which other work on the machine does not reach. Beside the methods stands what
they are measured against: for networks on vectors the "floor", the forward and backward pass of
the same network on random input and nothing else; for a covariance matrix "inverse_each", CTSM-v
with an inverse for every example instead of a few for all.
"""

import time
from collections.abc import Callable, Mapping, Sequence

import torch

from ebm_app.ratios.methods import CovarianceScores, Method, seeded_mlp
from ebm_app.ratios.training import RatioTrainer
from ebm_app.studies.problems import Problem


def step_times(
    problem: Problem,
    methods: Sequence[str],
    device: str = "cpu",
    rounds: int = 10,
    steps: int = 3,
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


def seconds_in_turns(
    actions: Mapping[str, Callable[[], None]], device: str, rounds: int, steps: int = 1
) -> dict[str, float]:
    """Tenth percentile of the seconds of every action, ``steps`` times in each of ``rounds`` turns
    after one that warms up."""
    times: dict[str, list[float]] = {name: [] for name in actions}
    for turn in range(rounds + 1):
        for name, action in actions.items():
            for _ in range(steps if turn else 1):
                seconds = _seconds(action, device)
                if turn:
                    times[name].append(seconds)
    return {name: sorted(values)[len(values) // 10] for name, values in times.items()}


def _seconds(action: Callable[[], None], device: str) -> float:
    begin = time.perf_counter()
    action()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def _step(problem: Problem, method: Method, device: str) -> Callable[[], None]:
    rate = torch.tensor([1e-4])
    trainer = RatioTrainer(
        *(method, problem.pair, [0], rate, problem.training), lambda ratio: {}, device
    )
    return trainer.train_step


def _floor(problem: Problem, device: str) -> Callable[[], None]:
    dim, num = problem.pair.dim, problem.training.batch_size
    net = seeded_mlp(dim, dim, 0).to(device)
    x, t = torch.randn(num, dim, device=device), torch.rand(num, device=device)

    def step() -> None:
        net.zero_grad(set_to_none=True)
        net(x, t).square().mean().backward()

    return step

"""Seconds of actions, taken in turns.

A machine is never equally fast twice, so only times taken in turns are compared, and of each the
tenth percentile, which other work on the machine does not reach.
"""

import time
from collections.abc import Callable, Mapping

import torch


def seconds_in_turns(
    actions: Mapping[str, Callable[[], None]], device: str, rounds: int, steps: int = 1
) -> dict[str, float]:
    """Tenth percentile of the seconds of every action, ``steps`` times in each of ``rounds`` turns
    after one that warms up."""
    times: dict[str, list[float]] = {name: [] for name in actions}
    for turn in range(rounds + 1):
        for name, action in actions.items():
            for _ in range(steps if turn else 1):
                begin = time.perf_counter()
                action()
                if device == "cuda":
                    torch.cuda.synchronize()
                if turn:
                    times[name].append(time.perf_counter() - begin)
    return {name: sorted(values)[len(values) // 10] for name, values in times.items()}

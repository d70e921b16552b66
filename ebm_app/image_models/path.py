"""The path of a model of images."""

import torch

from ebm_app.io.errors import UserError
from ebm_app.io.registry import make
from ebm_app.models.config import EBMConfig
from ebm_app.models.time_score import TIME_INPUTS
from ebm_app.numerics.tensors import find_time
from ebm_app.paths import PATHS, GaussianPath


def build_path(config: EBMConfig) -> GaussianPath:
    """The path of a configuration.

    Raises:
        UserError: for an unknown name or argument.
    """
    path = config.path
    if "c" in path.arguments:
        raise UserError(
            "the arguments of a path hold c, which is a setting of its own: leave it out"
        )
    return make(PATHS, "path", path.name, {"c": path.c, **path.arguments})


def switch_time(config: EBMConfig, path: GaussianPath) -> float:
    """What a network reads as the time at which the early one ends."""
    ends, last = path.interval(config.eps), config.early.max_log_snr
    least, most = path.log_snr(torch.tensor(ends, dtype=torch.float64, device="cpu")).tolist()
    if not least < last < most:
        raise UserError(
            f"the early network ends at a log signal-to-noise ratio of {last:g}, which the "
            f"path does not pass between {least:g} and {most:g}: give another"
        )
    time = find_time(lambda t: path.log_snr(t) - last, *ends)
    time = torch.tensor([time], dtype=torch.float64, device="cpu")
    return TIME_INPUTS[config.time_input].read(path, ends, time).item()

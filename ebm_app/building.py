"""The path and the networks that the configuration of a model of images says."""

import torch

from ebm_app.config import EBMConfig
from ebm_app.nets.density import TimeScoreDensity, density_of
from ebm_app.nets.early import EarlyNet, SplitNet
from ebm_app.nets.energy_net import EnergyDensity, EnergyModel
from ebm_app.nets.inputs import NET_INPUTS, Decoded
from ebm_app.nets.parametrisation import ENERGY
from ebm_app.nets.time_score import TIME_INPUTS, TimeScoreModel
from ebm_app.nets.unet import NETS
from ebm_app.paths import PATHS, GaussianPath
from ebm_app.spaces import Space
from ebm_app.utils.errors import UserError
from ebm_app.utils.registry import choose, make
from ebm_app.utils.tensors import find_time


def build_path(config: EBMConfig) -> GaussianPath:
    """The path of a configuration.

    Raises:
        UserError: for an unknown name.
    """
    return make(PATHS, GaussianPath, "path", config.path.name, {"c": config.path.c})


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
    return TIME_INPUTS[config.time_input](path, ends, time).item()


def build_density(config: EBMConfig, space: Space) -> TimeScoreDensity:
    """Build the density of a configuration, with freshly initialised weights.

    Raises:
        UserError: for settings that do not fit one another.
    """
    channels, height, width = config.image_shape
    choose("net_input", config.net_input, NET_INPUTS)
    net_channels = channels * (1 + 2 * len(config.input_frequencies)) + config.condition_dim
    heads = 2 if config.stein_head else 1
    num_classes = 0 if config.early else config.num_classes
    kind = choose("network", config.network, NETS)
    net = NETS[kind]((net_channels, height, width), heads * channels, config.net, num_classes)
    if config.net_input == "x":
        net = Decoded(net, space.decode, channels)
    path = build_path(config)
    if config.early:
        early = EarlyNet(config.image_shape, heads * channels, config.early, config.num_classes)
        net = SplitNet(early, net, switch_time(config, path))
    names = ("time_input", "input_frequencies", "condition_dim")
    inputs = {name: getattr(config, name) for name in names}
    if config.prediction == ENERGY:
        model = EnergyModel(net, path, config.eps, **inputs)
        return EnergyDensity(model, config.num_nodes, config.residual)
    model = TimeScoreModel(
        net,
        path,
        config.eps,
        prediction=config.prediction,
        stein_channels=channels if config.stein_head else 0,
        **inputs,
    )
    return density_of(model, config.num_nodes)

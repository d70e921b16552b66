"""Path and model of a configuration, with random weights."""

from dataclasses import replace

import torch

from ebm_app.config import EBMConfig
from ebm_app.nets.composite import NET_INPUTS, Decoded, EarlyNet, SplitNet
from ebm_app.nets.energy_net import EnergyModel
from ebm_app.nets.level_mixture import NUM_FREQUENT
from ebm_app.nets.networks import time_score_net
from ebm_app.nets.parametrisation import ENERGY
from ebm_app.nets.path_model import TIME_INPUTS
from ebm_app.nets.time_score import TimeScoreModel
from ebm_app.nets.unet import NETS
from ebm_app.paths import PATHS, GaussianPath, require_one_sided
from ebm_app.spaces import Space
from ebm_app.utils.errors import UserError
from ebm_app.utils.registry import choose, make

#: Settings of ``NetworkInputs`` in the configuration
INPUTS = ("time_input", "input_frequencies", "condition_dim")


def build_path(config: EBMConfig) -> GaussianPath:
    """Build the path of a configuration."""
    return make(PATHS, GaussianPath, "path", config.path.name, {"c": config.path.c})


def build_model(config: EBMConfig, space: Space) -> TimeScoreModel:
    """Build the model of a configuration, with random weights.

    Raises:
        UserError: for incompatible settings.
    """
    channels, height, width = config.image_shape
    choose("net_input", config.net_input, NET_INPUTS)
    net_channels, out_channels = num_channels(config)
    num_classes = 0 if config.early else config.num_classes
    kind = NETS[choose("network", config.network, NETS)]
    net = kind((net_channels, height, width), out_channels, config.net, num_classes)
    if config.net_input == "x":
        net = Decoded(net, space.decode, channels)
    path, switch = build_path(config), None
    if config.early:
        early = EarlyNet(config.image_shape, out_channels, config.early, config.num_classes)
        switch = switch_time(config, path)
        net = SplitNet(early, net, switch)
    if config.prediction in ("levels", ENERGY) and config.space != EBMConfig.space:
        raise UserError(
            f"The prediction {config.prediction} needs the ambient space, got {config.space}. Use "
            "moments."
        )
    settings = {name: getattr(config, name) for name in (*INPUTS, "num_levels", "num_nodes")}
    if config.prediction == ENERGY:
        decoder = replace(config, prediction=config.decoder, decoder=None, calibration=None)
        settings |= {"channels": channels, "decoder": build_model(decoder, space)}
        return EnergyModel(net, path, config.t_margin, calibration=config.calibration, **settings)
    settings |= {"stein_channels": channels if config.stein_head else 0, "labels_end": switch}
    return time_score_net(net, path, config.t_margin, config.prediction, **settings)


def num_channels(config: EBMConfig) -> tuple[int, int]:
    """Return the number of input and output channels of the network."""
    inputs, outputs = 1 + 2 * len(config.input_frequencies), 2 if config.stein_head else 1
    if config.prediction == ENERGY:
        features = 1 + min(NUM_FREQUENT, config.num_levels)
        inputs, outputs = inputs + features, 1 + features
    channels = config.image_shape[0]
    return channels * inputs + config.condition_dim, channels * outputs


def switch_time(config: EBMConfig, path: GaussianPath) -> float:
    """Return the time input at which the late network takes over from the early network."""
    end = torch.tensor([config.early.max_log_snr], dtype=torch.float64, device="cpu")
    time = require_one_sided(path).log_snr_inverse(end)
    return TIME_INPUTS[config.time_input](path, path.interval(config.t_margin), time).item()

"""Path and model of a configuration, with random weights."""

from dataclasses import replace

from ebm_app.config import EBMConfig
from ebm_app.nets.energy import NUM_FREQUENT, EnergyModel
from ebm_app.nets.model import TimeScoreModel
from ebm_app.nets.prediction import ENERGY
from ebm_app.nets.unet import NET_INPUTS, NETS, Decoded
from ebm_app.paths import PATHS, GaussianPath
from ebm_app.spaces import Space
from ebm_app.utils.errors import UserError
from ebm_app.utils.registry import choose, make

#: Settings of the inputs of a network in the configuration
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
    kind = NETS[choose("network", config.network, NETS)]
    net = kind((net_channels, height, width), out_channels, config.net, config.num_classes)
    if config.net_input == "x":
        net = Decoded(net, space.decode, channels)
    path = build_path(config)
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
    settings["stein_channels"] = channels if config.stein_head else 0
    return TimeScoreModel(net, path, config.t_margin, config.prediction, **settings)


def num_channels(config: EBMConfig) -> tuple[int, int]:
    """Return the number of input and output channels of the network."""
    inputs, outputs = 1 + 2 * len(config.input_frequencies), 2 if config.stein_head else 1
    if config.prediction == ENERGY:
        features = 1 + min(NUM_FREQUENT, config.num_levels)
        inputs, outputs = inputs + features, 1 + features
    channels = config.image_shape[0]
    return channels * inputs + config.condition_dim, channels * outputs

"""``DensityModel``: base class of ``EBM``, with densities and scores at points."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ebm_app.config import EBMConfig
from ebm_app.folders import ENERGY_MODEL
from ebm_app.likelihood.bits import checked_levels
from ebm_app.likelihood.dequantisation import DEQUANTISERS, Cells, Dequantised
from ebm_app.likelihood.noise import noise_for
from ebm_app.nets.composite import NET_INPUTS, Decoded, EarlyNet, SplitNet
from ebm_app.nets.density import PathDensity, TimeScoreDensity, density_of
from ebm_app.nets.energy_net import EnergyDensity, EnergyModel
from ebm_app.nets.level_mixture import NUM_FREQUENT
from ebm_app.nets.parametrisation import ENERGY
from ebm_app.nets.protocols import LogDensity, Score, SteinScore, TimeScore, require
from ebm_app.nets.time_score import TIME_INPUTS, TimeScoreModel
from ebm_app.nets.unet import NETS
from ebm_app.paths import PATHS, GaussianPath, require_one_sided
from ebm_app.pretrained import PretrainedModel
from ebm_app.spaces import Space, build_space
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import NonNegative, PositiveInt, Probability, check_argument
from ebm_app.utils.random import make_generator
from ebm_app.utils.registry import choose, make
from ebm_app.utils.tensors import as_tensor

#: Settings of ``PathNetwork`` in the configuration
INPUTS = ("time_input", "input_frequencies", "condition_dim")
#: Value of ``labels`` for random labels with equal class frequencies
RANDOM = "random"
Labels = int | str | Sequence[int | str] | Tensor


class DensityModel(PretrainedModel):
    """Densities p_t of images in the space of a path, for 0 <= t <= 1.

    Args:
        config: configuration.
        density: density of the model. Default: built from ``config`` with random weights.

    Raises:
        UserError: for incompatible settings.
    """

    config_class, kind = EBMConfig, ENERGY_MODEL

    def __init__(self, config: EBMConfig, density: PathDensity | None = None) -> None:
        super().__init__(config)
        choose("dequantisation", config.dequantisation, DEQUANTISERS)
        self.space = build_space(config.space, config.image_shape, config.num_levels)
        self.cells = Cells(config.num_levels, self.space)
        self.dequantiser = DEQUANTISERS[config.dequantisation]()
        if density is None:
            density = build_density(config, self.space)
        self.density = check_argument(PathDensity, "density", density)
        self.model = self.density.model

    def energy(self, x: Tensor, t: float = 1.0) -> Tensor:
        """Return the energy -log p_t(x) in nats, up to log Z if the model is unnormalised.

        >>> from ebm_app import EBM
        >>> ebm = EBM.from_pretrained("digits-energy")
        >>> ebm.energy(ebm.encode(torch.zeros(2, 1, 8, 8))).shape
        torch.Size([2])

        Args:
            x: (B, C, H, W), points in the space of the model, not images in [0, 1]; ``encode``
                maps images to points. Gradients are computed if ``x`` requires them.
            t: time from 0 (reference) to 1 (data), clamped to the model's last time 1 - eps.

        Returns:
            (B,) float64.

        Raises:
            UserError: for points of the wrong shape, a time outside [0, 1], and a diffusers
                pipeline, which has no log density.
        """
        density = require(self.density, LogDensity, "EBM.energy")
        return -self._evaluate(density.log_density, x, t)

    def score(self, x: Tensor, t: float = 1.0) -> Tensor:
        """Return the Stein score grad_x log p_t(x), (B, C, H, W), in nats per unit of x.

        Args:
            x, t: as for ``energy``.

        Raises:
            UserError: for points of the wrong shape, and a time outside [0, 1].
        """
        density = require(self.density, SteinScore, "EBM.score")
        return self._evaluate(density.score, x, t)

    def time_score(self, x: Tensor, t: float) -> Tensor:
        """Return the time score d/dt log p_t(x), (B,) float64, in nats per unit of t.

        Args:
            x, t: as for ``energy``.

        Raises:
            UserError: for points of the wrong shape, a time outside [0, 1], and a diffusers
                pipeline, which has no time score.
        """
        density = require(self.density, TimeScore, "EBM.time_score")
        return self._evaluate(density.time_score, x, t)

    def _evaluate(self, function: Score, x: Tensor, t: float) -> Tensor:
        """Evaluate a function of (x, t) in the dtype of the model, with gradients only if ``x``
        requires them."""
        x = self.points(x).to(self.dtype)
        t = min(check_argument(Probability, "t", t), self.density.end)
        with torch.set_grad_enabled(torch.is_grad_enabled() and x.requires_grad):
            return function(x, t)

    def encode(self, images: Tensor, seed: int = 0) -> Tensor:
        """Dequantise images, and map them to points in the space of the model.

        >>> from ebm_app import EBM
        >>> EBM.from_pretrained("digits").encode(torch.zeros(2, 1, 8, 8)).shape
        torch.Size([2, 1, 8, 8])

        Args:
            images: (B, C, H, W), as for ``EBM.likelihood``.
            seed: seed of the dequantisation noise.

        Returns:
            (B, C, H, W), points for ``energy``, ``score`` and ``time_score``.
        """
        levels = self.levels_of(images)
        return self.dequantise(levels, noise_for(levels, self.dtype, seed)[0]).y

    def levels_of(self, images: Any) -> Tensor:
        """Return the grey levels (B, C, H, W) of images, see ``checked_levels``."""
        return checked_levels(images, self.config.image_shape, self.config.num_levels)

    def dequantise(self, levels: Tensor, noise: Tensor) -> Dequantised:
        """Draw points (B, *) from the model's dequantiser, on the model's device.

        Args:
            levels: (B, C, H, W) grey levels.
            noise: (B, C, H, W) uniform numbers in [0, 1).
        """
        levels, noise = levels.to(self.device), noise.to(self.device)
        return self.dequantiser.points(levels, self.cells, noise, self.density)

    def density_for(
        self, num: int, labels: Labels | None, guidance: float = 1.0, seed: int = 0
    ) -> PathDensity:
        """Return the density for ``num`` points, conditional on ``labels`` if any.

        Args:
            labels, guidance, seed: as for ``EBM.sample``.
        """
        if labels is not None:
            labels = class_labels(labels, num, self.config.classes(), seed)
            return self.density.conditioned_on(labels, guidance)
        if check_argument(NonNegative, "guidance", guidance) != 1:
            raise UserError("Guidance needs class labels. Pass labels.")
        return self.density


def build_path(config: EBMConfig) -> GaussianPath:
    """Build the path of a configuration."""
    return make(PATHS, GaussianPath, "path", config.path.name, {"c": config.path.c})


def build_density(config: EBMConfig, space: Space) -> TimeScoreDensity:
    """Build the density of a configuration, with random weights."""
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
    inputs = {name: getattr(config, name) for name in INPUTS}
    if config.prediction in ("levels", ENERGY) and config.space != EBMConfig.space:
        raise UserError(
            f"The prediction {config.prediction} needs the ambient space, got {config.space}. Use "
            "moments."
        )
    if config.prediction == ENERGY:
        decoder = replace(config, prediction=config.decoder, decoder=None, calibration=None)
        inputs |= {"channels": channels, "num_levels": config.num_levels}
        inputs |= {"decoder": build_density(decoder, space).model}
        model = EnergyModel(net, path, config.eps, **inputs)
        return EnergyDensity(model, config.num_nodes, config.calibration)
    stein_channels = channels if config.stein_head else 0
    outputs = (config.prediction, stein_channels, config.num_levels, switch)
    return density_of(TimeScoreModel(net, path, config.eps, *outputs, **inputs), config.num_nodes)


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
    return TIME_INPUTS[config.time_input](path, path.interval(config.eps), time).item()


def class_labels(labels: Labels, num: int, names: Sequence[str], seed: int = 0) -> Tensor:
    """Return class labels (num,) int64 for ``num`` points.

    >>> class_labels(["dog", 0], 4, names=["cat", "dog"])
    tensor([1, 0, 1, 0])

    Args:
        labels: one label for all points, several used in turn, or "random" for the mixture of
            p(x | y) over all classes. A label is an integer or the name of a class.
        names: names of all classes.
        seed: seed of random labels.

    Raises:
        UserError: for a model without classes, unknown names, and labels out of range.
    """
    num = check_argument(PositiveInt, "num", num)
    if not names:
        raise UserError("This model was trained without labels. Leave out labels.")
    if isinstance(labels, str):
        if labels == RANDOM:
            return torch.randint(len(names), (num,), generator=make_generator("cpu", seed, num))
        labels = [labels]
    if isinstance(labels, Sequence):
        labels = [_number(label, names) for label in labels]
    values = torch.atleast_1d(as_tensor(labels, "labels"))
    is_integer = torch.can_cast(values.dtype, torch.long)
    if not is_integer or values.ndim != 1 or not 0 < len(values) <= num:
        raise UserError(
            f"Expected 1 to {num} integer labels, got {values.dtype} of shape "
            f"{tuple(values.shape)}."
        )
    if values.min() < 0 or values.max() >= len(names):
        raise UserError(
            f"Expected labels from 0 to {len(names) - 1}, got {values.min()} to {values.max()}."
        )
    return values.long().repeat(-(-num // len(values)))[:num]


def _number(label: Any, names: Sequence[str]) -> Any:
    """Return the number of a class, given its name or its number, which may be a string."""
    if not isinstance(label, str):
        return label
    if label.isdecimal() and label not in names:
        return int(label)
    return names.index(choose("class", label, names))

"""``EBM``: what a user imports. A folder with config.json and model.safetensors, and what it can
do."""

import os
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ebm_app.data.levels import quantise, to_levels
from ebm_app.errors import UserError
from ebm_app.likelihood import ESTIMATORS, Estimator
from ebm_app.likelihood.bits import Likelihood, log_likelihood
from ebm_app.likelihood.dequantisation import DEQUANTISERS, dequantisation_noise
from ebm_app.models.config import EBMConfig
from ebm_app.models.energy import TimeScoreEnergy
from ebm_app.models.folders import (
    WEIGHTS_FILE,
    find_folder,
    load_weights,
    read_config,
    write_folder,
)
from ebm_app.models.time_score import TimeScoreModel
from ebm_app.nets.inputs import NET_INPUTS
from ebm_app.nets.unet import UNet
from ebm_app.paths import PATHS, GaussianPath
from ebm_app.registry import choose, make
from ebm_app.sampling.samplers import SAMPLERS, Frame, Sampler
from ebm_app.spaces import build_space


def build_path(config: EBMConfig) -> GaussianPath:
    """The path of a configuration.

    Raises:
        UserError: for an unknown name or argument.
    """
    choose("path", config.path.name, PATHS)
    try:
        return PATHS[config.path.name](c=config.path.c, **config.path.arguments)
    except TypeError as error:
        raise UserError(f"path '{config.path.name}': {error}") from None


class EBM(nn.Module):
    """An energy-based model of images, built from its configuration with fresh weights."""

    def __init__(self, config: EBMConfig) -> None:
        super().__init__()
        self.config = config
        channels, height, width = config.image_shape
        reader = NET_INPUTS[choose("net_input", config.net_input, NET_INPUTS)]
        net_channels = channels * (1 + 2 * len(config.input_frequencies)) + config.condition_dim
        heads = 2 if config.stein_head else 1
        choose("dequantisation", config.dequantisation, DEQUANTISERS)
        self.space = build_space(
            config.space, config.image_shape, config.num_levels, config.space_arguments
        )
        self.dequantiser = DEQUANTISERS[config.dequantisation]()
        if reader is not None:
            net_channels += reader.more * channels
        net: nn.Module = UNet((net_channels, height, width), heads * channels, config.net)
        if reader is not None:
            net = reader(net, self.space.decode, channels)
        self.model = TimeScoreModel(
            net,
            build_path(config),
            config.eps,
            prediction=config.prediction,
            time_input=config.time_input,
            stein_channels=channels if config.stein_head else 0,
            input_frequencies=config.input_frequencies,
            condition_dim=config.condition_dim,
        )
        self.energy = TimeScoreEnergy(self.model, config.num_nodes)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    @classmethod
    def from_pretrained(cls, name_or_path: str | os.PathLike, device: str = "cpu") -> "EBM":
        """Load a folder, a bundled model by name, or a repository of the Hugging Face hub by its
        id.

        Raises:
            UserError: for a folder that is missing or incomplete, weights that are damaged or do
                not fit the configuration, or a format of another version.
        """
        folder = find_folder(name_or_path)
        ebm = cls(read_config(EBMConfig, folder))
        load_weights(ebm, folder / WEIGHTS_FILE)
        return ebm.to(device).eval()

    def save_pretrained(self, folder: str | os.PathLike) -> None:
        """Write config.json and model.safetensors, each aside first and then renamed."""
        write_folder(self, self.config, folder)

    def log_prob(
        self,
        images: Tensor,
        repeats: int = 1,
        seed: int = 0,
        estimator: str | Estimator = "ratio",
        **settings: Any,
    ) -> Likelihood:
        """Log-likelihood of quantised images; see :func:`ebm_app.likelihood.bits.log_likelihood`.

        Args:
            images: (B, C, H, W) in [0, 1] on the grid of the model's levels.
            repeats: dequantisation draws that are averaged. seed: of their noise.
            estimator: of log p_t, by name in ``ESTIMATORS`` with its ``settings``, or an object.

        Raises:
            UserError: for images of another shape, or values off the grid.
        """
        if tuple(images.shape[1:]) != tuple(self.config.image_shape):
            raise UserError(
                f"the model takes images of shape {tuple(self.config.image_shape)} (channels, "
                f"height, width), not {tuple(images.shape[1:])}"
            )
        levels = to_levels(images, self.config.num_levels)
        noise = dequantisation_noise(repeats, levels, seed)
        return log_likelihood(
            self.energy,
            self.space,
            levels.to(self.device),
            self.config.num_levels,
            noise.to(self.device),
            self.dequantiser,
            make(ESTIMATORS, "estimator", estimator, settings),
        )

    def sample(
        self, num_images: int, sampler: str | Sampler = "pf_ode", seed: int = 0, **settings: Any
    ) -> Tensor:
        """Draw images (num_images, C, H, W), quantised to the model's levels, in [0, 1].

        Args:
            sampler: a name in ``SAMPLERS``, with its ``settings``, or a sampler.
            seed: of the start and of the sampler's own noise.
        """
        *_, last = self.iterate_sample(num_images, sampler, seed, **settings)
        return self.to_images(last.x)

    def iterate_sample(
        self, num_images: int, sampler: str | Sampler = "pf_ode", seed: int = 0, **settings: Any
    ) -> Iterator[Frame]:
        """The frames of :meth:`sample`, in the space of the path."""
        if num_images < 1:
            raise UserError(f"at least 1 image can be sampled, not {num_images}")
        generator = torch.Generator(self.device).manual_seed(seed)
        shape = (num_images, *self.config.image_shape)
        x0 = torch.randn(shape, device=self.device, generator=generator)
        return make(SAMPLERS, "sampler", sampler, settings).iterate(self.energy, x0, generator)

    def to_images(self, x: Tensor) -> Tensor:
        """Points of the path's space as quantised images in [0, 1], on the CPU."""
        return quantise(self.space.decode(x), self.config.num_levels).cpu()

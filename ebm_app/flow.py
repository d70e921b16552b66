"""``Flow``: a fitted space as a model of its own, and the folder that holds it."""

import math
import os
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ebm_app.data.levels import dequantise, quantise
from ebm_app.models.config import FORMAT_VERSION
from ebm_app.models.folders import (
    FLOW,
    WEIGHTS_FILE,
    find_folder,
    load_weights,
    read_config,
    write_folder,
)
from ebm_app.numerics import seeded, standard_normal_log_density, sum_except_batch
from ebm_app.spaces import build_space


@dataclass(frozen=True)
class FlowConfig:
    """What a flow is: the images it is for, its kind and the arguments of that."""

    dataset: str
    image_shape: tuple[int, ...]
    num_levels: int
    space: str
    space_arguments: dict[str, float] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION


class Flow(nn.Module):
    """A space x -> u whose base density is N(0, I), not fitted yet; frozen once it is."""

    def __init__(self, config: FlowConfig) -> None:
        super().__init__()
        self.config = config
        self.space = build_space(
            config.space, config.image_shape, config.num_levels, config.space_arguments
        )

    @classmethod
    def from_pretrained(cls, name_or_path: str | os.PathLike, device: str = "cpu") -> "Flow":
        """Load a folder that :meth:`save_pretrained` wrote.

        Raises:
            UserError: where it is missing, damaged, or another kind of model.
        """
        folder = find_folder(name_or_path)
        flow = cls(read_config(FlowConfig, folder, FLOW))
        load_weights(flow, folder / WEIGHTS_FILE)
        return flow.to(device).eval()

    def save_pretrained(self, folder: str | os.PathLike) -> None:
        """Write config.json and model.safetensors, each aside first and then renamed."""
        write_folder(self, self.config, folder, FLOW)

    def latent_space(self) -> dict[str, Any]:
        """The settings of a model whose path lives in this flow's space."""
        return {"space": self.config.space, "space_arguments": self.config.space_arguments}

    def dequantise(self, levels: Tensor, noise: Tensor) -> Tensor:
        """x of levels (B, C, H, W) by uniform ``noise``, (B, C, H, W)."""
        return dequantise(levels, self.config.num_levels, noise)

    def log_density(self, x: Tensor) -> Tensor:
        """log p(x) = log N(f^-1(x); 0, I) + log |det du/dx| in nats: (B, C, H, W) -> (B,)
        float64."""
        u, log_abs_det = self.space.encode_with_log_abs_det(x)
        return sum_except_batch(standard_normal_log_density(u.double())) + log_abs_det

    @torch.no_grad()
    def log_prob(self, levels: Tensor, noise: Tensor) -> Tensor:
        """The bound on log P of levels (B, C, H, W) by the uniform dequantisations ``noise``
        (K, B, C, H, W): the mean over K of log p(x) - D log L in nats, (B,) float64."""
        offset = levels[0].numel() * math.log(self.config.num_levels)
        draws = [self.log_density(self.dequantise(levels, u)) for u in noise]
        return torch.stack(draws).mean(0) - offset

    @torch.no_grad()
    def sample(self, num_images: int, seed: int = 0) -> Tensor:
        """Images (num_images, C, H, W) of the flow, quantised to its levels, in [0, 1]."""
        shape = (num_images, *self.config.image_shape)
        u = torch.randn(shape, generator=seeded("cpu", seed))
        x = self.space.decode(u.to(next(self.buffers()).device))
        return quantise(x, self.config.num_levels).cpu()

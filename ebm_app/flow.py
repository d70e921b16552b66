"""``Flow``: a normalising flow, which is a fitted space with a base density."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ebm_app.config import FORMAT_VERSION
from ebm_app.data.levels import checked_levels, dequantise, quantise_samples
from ebm_app.likelihood.bits import Likelihood, checked_indices, mean_likelihood
from ebm_app.nets.model import LogDensityEstimate
from ebm_app.pretrained import FLOW, PretrainedModel
from ebm_app.spaces import build_space
from ebm_app.utils.fields import (
    ImageShape,
    NumLevels,
    PositiveInt,
    Seed,
    check_argument,
    configuration,
)
from ebm_app.utils.random import SAMPLES, ImageNoise
from ebm_app.utils.tensors import standard_normal_log_density, sum_except_batch


@configuration
class FlowConfig:
    """Configuration of a flow: format of its images, and its space in ``SPACES``."""

    dataset: str
    image_shape: ImageShape
    num_levels: NumLevels
    space: str
    format_version: int = FORMAT_VERSION


class Flow(PretrainedModel):
    """Normalising flow: a space x -> u with base density N(0, I). Fit a new flow with
    ``space.fit``.

    >>> flow = Flow(FlowConfig("digits", (1, 8, 8), 17, "gaussian"))
    >>> x = torch.rand(500, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    >>> flow.space.fit(x)
    >>> flow.sample(2).shape, flow.likelihood(flow.sample(2)).bits_per_dim.shape
    (torch.Size([2, 1, 8, 8]), torch.Size([2]))
    """

    config_class, kind = FlowConfig, FLOW

    def __init__(self, config: FlowConfig) -> None:
        super().__init__(config)
        self.space = build_space(config.space, config.image_shape, config.num_levels)

    def log_density(self, x: Tensor) -> Tensor:
        """Return log p(x) = log N(u(x); 0, I) + log |det du/dx| in nats: (B, C, H, W) -> (B,)
        float64."""
        u, log_abs_det = self.space.encode_with_log_abs_det(self.points(x))
        return sum_except_batch(standard_normal_log_density(u.double())) + log_abs_det

    def forward(self, x: Tensor) -> Tensor:
        """Return -log p(x) / D in nats, the training loss: (B, C, H, W) -> (B,)."""
        return -self.log_density(x) / math.prod(self.config.image_shape)

    @torch.no_grad()
    def likelihood(
        self,
        images: Tensor,
        repeats: int = 1,
        seed: int = 0,
        indices: Sequence[int] | None = None,
    ) -> Likelihood:
        """Return a lower bound on the log-likelihood of quantised images by uniform
        dequantisation: the mean over draws of log p(x) - D log L. Its ``error`` is
        unknown (NaN) for one draw, and the error over draws for several.

        Args:
            images: (B, C, H, W), uint8 grey levels, or floats level / (num_levels - 1) in [0, 1].
            repeats, seed, indices: as for ``EBM.likelihood``.

        Raises:
            UserError: for images of the wrong shape, values that are not grey levels, and a
                non-finite likelihood.
        """
        config = self.config
        levels = checked_levels(images, config.image_shape, config.num_levels)
        indices, num_dims = checked_indices(indices, len(levels)), levels[0].numel()

        def draw(rows: slice, noise: ImageNoise) -> LogDensityEstimate:
            batch = levels[rows].to(self.device)
            x = dequantise(batch, config.num_levels, noise.uniform_like(batch.to(self.dtype)))
            value = self.log_density(x) - num_dims * math.log(config.num_levels)
            return LogDensityEstimate(value, torch.zeros_like(value), None, 1)

        rows = [slice(len(levels))]
        result = mean_likelihood(draw, rows, seed, indices, repeats, False, num_dims, "flow")
        return result._replace(error=result.error * math.nan) if repeats == 1 else result

    @torch.no_grad()
    def sample(self, num_images: int, seed: int = 0) -> Tensor:
        """Draw images (num_images, C, H, W) in [0, 1], quantised to the grey levels."""
        num_images = check_argument(PositiveInt, "num_images", num_images)
        noise = ImageNoise(check_argument(Seed, "seed", seed), range(num_images), SAMPLES)
        u = noise.normal(*self.config.image_shape)
        x = self.space.decode(u.to(self.device, self.dtype))
        return quantise_samples(x, self.config.num_levels).cpu()

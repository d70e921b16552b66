"""What the training of a normalising flow learns."""

import math

from accelerate import Accelerator
from torch import Tensor, nn

from ebm_app.data.images import ImageData
from ebm_app.data.levels import dequantise
from ebm_app.data.row_noise import RowNoise
from ebm_app.image_models.flow import Flow
from ebm_app.models.config import LoopConfig
from ebm_app.training.tasks import Task


class NegativeLogDensity(nn.Module):
    """-log p(x) / D in nats: the loss of a flow."""

    def __init__(self, flow: Flow) -> None:
        super().__init__()
        self.flow = flow

    def forward(self, x: Tensor) -> Tensor:
        """x (B, C, H, W) -> (B,)."""
        return -self.flow.log_density(x) / x[0].numel()


class FlowTask(Task):
    """The weights of a flow by maximum likelihood, on images with fresh uniform dequantisation;
    what it has in closed form is fitted before.

    Args:
        accelerator, config, data: as for ``Task``. flow: fitted.
    """

    name = "flow"

    def __init__(
        self, accelerator: Accelerator, flow: Flow, config: LoopConfig, data: ImageData
    ) -> None:
        flow.requires_grad_(True).to(accelerator.device)
        loss = NegativeLogDensity(flow)
        super().__init__(accelerator, flow, loss, config, data)

    def points(self, levels: Tensor, noise: RowNoise) -> tuple[Tensor]:
        uniform = noise.uniform(*levels.shape)
        return (dequantise(levels, self.model.config.num_levels, uniform),)

    def validate(self) -> dict[str, float]:
        """The loss is that of the bits: -log p(x) / D in nats."""
        bits = self.bits()
        nats = bits["validation_bits_per_dim"] * math.log(2)
        return {"validation_loss": nats - math.log(self.model.config.num_levels), **bits}

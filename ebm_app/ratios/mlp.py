"""A multilayer perceptron (x, t) -> vector for data of shape (B, D)."""

import torch
from torch import Tensor, nn


class MLP(nn.Module):
    """The paper's network for vectors: [D + 1, 256, 256, 256, out] with ELU, t appended to x.

    Args:
        dim: D. out_dim: components of the output, 1 for a scalar time score, D for a vector of
            them.
        hidden: widths of the hidden layers.

    Source: paper, appendix F.3.
    """

    def __init__(self, dim: int, out_dim: int, hidden: tuple[int, ...] = (256, 256, 256)) -> None:
        super().__init__()
        widths = [dim + 1, *hidden]
        layers: list[nn.Module] = []
        for width_in, width_out in zip(widths[:-1], widths[1:], strict=True):
            layers += [nn.Linear(width_in, width_out), nn.ELU()]
        self.layers = nn.Sequential(*layers, nn.Linear(widths[-1], out_dim))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """x (B, D), t (B,) in the dtype of x -> (B, out_dim)."""
        return self.layers(torch.cat([x, t[:, None]], dim=1))

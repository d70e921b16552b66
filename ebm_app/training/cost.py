"""What a step of training costs, found before anything is trained."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from ebm_app.config import EBMConfig
from ebm_app.nets.unet import NETS


class Cost(NamedTuple):
    """Weights of a network; operations (two for a multiplication and its addition) of a forward
    and a backward pass of one image; and numbers that the first keeps for the second."""

    weights: int
    operations: int
    kept_numbers: int


def network_cost(config: EBMConfig) -> Cost:
    """The cost of the network of a model, counted without memory or time spent on its numbers.

    >>> cost = network_cost(EBMConfig("digits", (1, 8, 8), num_levels=17))
    >>> cost.weights, cost.operations
    (634562, 90087424)
    """
    channels, height, width = config.image_shape
    inputs = channels * (1 + 2 * len(config.input_frequencies)) + config.condition_dim
    heads = 2 if config.stein_head else 1
    with torch.device("meta"):
        net = NETS[config.network]((inputs, height, width), heads * channels, config.net)
        x, t = torch.zeros(1, inputs, height, width), torch.zeros(1)
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        if not isinstance(tensor, nn.Parameter):
            kept[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes() // 4
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with FlopCounterMode(display=False) as counter, hooks:
        net(x, t).sum().backward()
    weights = sum(weight.numel() for weight in net.parameters())
    return Cost(weights, counter.get_total_flops(), sum(kept.values()))

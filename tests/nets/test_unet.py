"""U-Net: shapes, continuous time, second derivatives, and sizes that do not fit."""

from dataclasses import replace

import pytest
import torch
from conftest import error_of
from exact import F64, normal

from ebm_app.config import UNetConfig
from ebm_app.nets.unet import UNet

IMAGES = {(1, 28, 28): (8, 16, 16), (3, 32, 32): (8, 8, 16)}
PLAIN = UNetConfig(block_out_channels=(8, 16), num_heads=2)
ATTENTION = replace(PLAIN, attention_levels=(0, 1))
both = pytest.mark.parametrize("config", [PLAIN, ATTENTION], ids=["plain", "attention"])


def unet(shape=(1, 8, 8), config=PLAIN, out_channels=2, dtype=F64):
    """Return a U-Net with random weights in the last convolution."""
    torch.manual_seed(0)
    net = UNet(shape, out_channels, config).to(dtype)
    torch.nn.init.normal_(net.unet.conv_out.weight, std=0.2)
    return net


@pytest.mark.parametrize("attention", [(), (1,)], ids=["plain", "attention"])
@pytest.mark.parametrize("shape", IMAGES)
def test_output_is_zero_at_initialisation(shape, attention):
    net = UNet(shape, 2 * shape[0], UNetConfig(IMAGES[shape], 1, attention, num_heads=2))
    inputs = torch.randn(2, *shape), torch.tensor([0.1, 0.9])
    assert torch.equal(net(*inputs), torch.zeros(2, 2 * shape[0], *shape[1:]))
    torch.nn.init.normal_(net.unet.conv_out.weight)
    out = net(*inputs)
    gradients = torch.autograd.grad(out.square().sum(), list(net.parameters()))
    assert out.abs().max() > 0 and all(g.isfinite().all() for g in gradients)


@both
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_examples_are_independent_and_time_continuous(config, dtype):
    net = unet(config=config, dtype=dtype)
    x, t = normal((4, 1, 8, 8)).to(dtype), torch.tensor([0.0, 0.3, 0.5, 1.0], dtype=dtype)
    out = net(x, t)
    assert out.dtype == dtype and out.shape == (4, 2, 8, 8)
    assert torch.allclose(net(x[1:2], t[1:2]), out[1:2], rtol=1e-4, atol=1e-5)
    same = x[:1].expand(4, -1, -1, -1)
    distinct = net(same, t)
    assert (distinct.diff(dim=0).flatten(1).abs().amax(1) > 1e-3).all()
    near = net(same, t + 1e-5) - distinct
    assert 0 < near.abs().max() < 1e-2 * (distinct[0] - distinct[2]).abs().max()


@both
def test_second_derivatives_match_differences(config):
    """Grad in x of d/dt, and of grad in x, by autograd and by central differences along a line.

    The time embedding and the softmax of diffusers are float32 throughout, hence the tolerance.
    """
    net, t = unet(config=config), torch.tensor([0.2, 0.7], dtype=F64).requires_grad_()
    x, along, h = normal((2, 1, 8, 8)), normal((2, 1, 8, 8), 1), 1e-3

    def slopes(point):
        """Derivatives in t and along the line."""
        value = net(point, t).square().sum()
        by_t, by_x = torch.autograd.grad(value, (t, point), create_graph=True)
        return by_t.sum(), (by_x * along).sum()

    sides = [slopes((x + side * along).requires_grad_()) for side in (h, -h)]
    point = x.clone().requires_grad_()
    for slope, right, left in zip(slopes(point), *sides, strict=True):
        exact = (torch.autograd.grad(slope, point, retain_graph=True)[0] * along).sum()
        assert exact.abs() > 1
        assert torch.allclose(exact, (right - left) / (2 * h), rtol=1e-3)


@pytest.mark.parametrize(
    ("word", "settings"),
    [
        ("norm_num_groups", {"block_out_channels": (8, 12)}),
        ("between", {"attention_levels": (2,)}),
        ("num_heads", {"attention_levels": (1,), "num_heads": 3}),
        ("attention", {"attention_levels": (0,), "block_out_channels": (8, 48)}),
    ],
)
def test_invalid_sizes_are_reported(word, settings):
    assert word in error_of(UNet, (1, 8, 8), 1, UNetConfig(**settings))

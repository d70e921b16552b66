"""The spline flow: couplings against autograd and quadrature, and what they learn."""

import math

import pytest
import torch
from exact import F64, generator, normal

from ebm_app.image_models.flow import Flow, FlowConfig
from ebm_app.spaces import SplineSpace
from ebm_app.spaces.conditioner import Conditioner
from ebm_app.spaces.logit import Logit
from ebm_app.spaces.spline import Coupling

SHAPES = [(1, 2, 4), (3, 2, 2)]
#: shapes whose checkerboard over rows and columns alone, or over channels alone, has an empty half
NARROW = [(1, 1, 2), (1, 2, 1), (3, 1, 1)]
SMALL = {"layers": 4, "hidden": 8, "bins": 5}


def images(shape, num=4, seed=0):
    return torch.rand((num, *shape), generator=generator(seed), dtype=F64)


def perturb(module, size=0.08):
    """Other weights than those of the identity."""
    g = generator(7)
    for parameter in module.parameters():
        parameter.data += size * torch.randn(parameter.shape, generator=g)
    return module


def perturbed(shape):
    space = SplineSpace.build(shape, 5, **SMALL)
    space.fit(images(shape, 500).square())
    return perturb(space)


def log_abs_det(space, x):
    return space.encode_with_log_abs_det(x)[1]


def jacobian_of(encode, image):
    jacobian = torch.autograd.functional.jacobian(lambda i: encode(i[None])[0], image)
    return jacobian.reshape(image.numel(), image.numel())


@pytest.mark.parametrize("shape", [*SHAPES, *NARROW, (1, 1, 1)], ids=str)
def test_encode_and_decode_are_inverse_to_each_other(shape):
    space, x, u = perturbed(shape), images(shape, 50), normal((50, *shape))
    single = space.encode(x.float())
    assert single.dtype == space.decode(single).dtype == torch.float32
    assert torch.allclose(space.decode(single), x.float(), rtol=0, atol=1e-5)
    assert space.encode(x).dtype == F64  # with weights in float32
    space = space.double()
    assert torch.allclose(space.decode(space.encode(x)), x, rtol=0, atol=1e-10)
    assert torch.allclose(space.encode(space.decode(u)), u, rtol=0, atol=1e-8)


@pytest.mark.parametrize("shape", [*SHAPES, *NARROW], ids=str)
def test_log_abs_det_is_that_of_the_jacobian(shape):
    space, x = perturbed(shape).double(), images(shape, 1)
    expected = [torch.linalg.slogdet(jacobian_of(space.encode, i)).logabsdet for i in x]
    result = log_abs_det(space, x)
    assert result.shape == (1,) and result.dtype == F64
    assert torch.allclose(result, torch.stack(expected), rtol=0, atol=1e-6)
    u, logit = space.parts[0].encode_with_log_abs_det(x)
    affine = logit + space.parts[1].encode_with_log_abs_det(u)[1]
    assert (result - affine).abs().max() > 0.05  # the couplings have their share


@pytest.mark.parametrize("shape", [*SHAPES, *NARROW], ids=str)
def test_a_coupling_moves_one_half_by_the_other(shape):
    halves = []
    for parity in (0, 1):
        part = perturb(Coupling(shape, parity, 8, 5)).double()
        x = normal((1, *shape))
        jacobian = jacobian_of(part.encode, x[0])
        moved = part.moved
        kept = torch.tensor([i for i in range(x.numel()) if i not in moved])
        assert torch.equal(part.encode(x).flatten()[kept], x.flatten()[kept])
        assert torch.equal(jacobian[kept], torch.eye(x.numel(), dtype=F64)[kept])
        assert (jacobian[moved][:, kept] != 0).any()
        # given the other half every component moves on its own
        block = jacobian[moved][:, moved]
        assert torch.equal(block, block.diag().diag()) and (block.diag() > 0).all()
        assert torch.allclose(log_abs_det(part, x), block.diag().log().sum(), atol=1e-6)
        halves.append(moved)
    assert sorted(torch.cat(halves).tolist()) == list(range(math.prod(shape)))
    assert min(len(half) for half in halves) > 0


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_couplings_start_as_the_identity(shape):
    space = SplineSpace.build(shape, 5, **SMALL)
    for part in space.parts[2:]:
        x = 3 * normal((20, *shape))
        assert torch.allclose(part.encode(x), x, rtol=1e-12, atol=1e-12)
        assert torch.allclose(log_abs_det(part, x), torch.zeros(20, dtype=F64), atol=1e-12)


def test_a_conditioner_reads_what_is_inside_its_mask_and_where_it_is():
    mask = torch.tensor([[[True, False, True, False], [False, True, False, True]]])
    x, noise = normal((3, 1, 2, 4)).float(), normal((3, 1, 2, 4), 1).float()
    net = Conditioner(mask, 5, 8)
    assert torch.equal(net(x), torch.zeros(3, 5, 2, 4))
    perturb(net)
    assert torch.equal(net(torch.where(mask, x, noise)), net(x))
    assert ((net(torch.where(mask, noise, x)) - net(x)).abs() > 1e-3).any()
    assert torch.allclose(net(x[1:2]), net(x)[1:2], atol=1e-6)
    wide = Conditioner(torch.ones(1, 20, 20, dtype=torch.bool), 5, 8)
    inside = perturb(wide)(torch.ones(1, 1, 20, 20))[0, 0, 8:12, 8:12]  # far from the padding
    assert inside.flatten().unique().numel() == 16


def spline_flow(shape, **arguments):
    return Flow(FlowConfig("test", shape, 5, "spline", SMALL | arguments))


def test_a_density_of_two_components_integrates_to_one():
    flow = spline_flow((1, 1, 2))
    flow.space.fit(images((1, 1, 2), 500).square())
    perturb(flow).double()
    # on an even grid of logits v: the density of v is smooth, that of x is not near its ends
    logit = Logit(1e-3)
    v = torch.linspace(-14, 14, 101, dtype=F64)
    x = logit.decode(torch.cartesian_prod(v, v).view(-1, 1, 1, 2))
    density = (flow.log_density(x) - log_abs_det(logit, x)).exp().view(len(v), len(v))
    mass = torch.trapezoid(torch.trapezoid(density, v), v).item()
    assert mass == pytest.approx(1, abs=1e-3)


def test_decoding_can_be_differentiated_twice():
    part = perturb(Coupling((1, 2, 2), 0, 4, 4)).double().requires_grad_(False)
    u = normal((2, 1, 2, 2)).requires_grad_()
    assert torch.autograd.gradcheck(part.decode, (u,), atol=1e-5)
    assert torch.autograd.gradgradcheck(part.decode, (u,), atol=1e-4)

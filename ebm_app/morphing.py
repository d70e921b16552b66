"""Morphs between images along the probability flow."""

from collections.abc import Iterator

import torch
from torch import Tensor

from ebm_app.ebm import EBM
from ebm_app.likelihood.noise import noise_for
from ebm_app.paths import require_one_sided
from ebm_app.paths.base import LOG_SNR
from ebm_app.paths.probability_flow import solve_flow
from ebm_app.sampling import DPMSampler
from ebm_app.sampling.base import Frame
from ebm_app.sampling.flow import START

#: Steps of the flow from an image to noise
ENCODE_STEPS = 20


def slerp(a: Tensor, b: Tensor, shares: Tensor) -> Tensor:
    """Interpolate spherically between points a and b, at ``shares`` (n,) in [0, 1]: (n, *).

    >>> slerp(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]), torch.tensor([0.5]))
    tensor([[0.7071, 0.7071]])
    """
    cosine = torch.cosine_similarity(a.flatten(), b.flatten(), 0)
    # at angle 0 the weights 0 / 0 of equal points
    angle = cosine.clamp(-1, 1).acos().clamp(min=1e-4)
    shares = shares.to(a).view(-1, *[1] * a.ndim)
    return (torch.sin((1 - shares) * angle) * a + torch.sin(shares * angle) * b) / angle.sin()


def iterate_morph(ebm: EBM, images: Tensor, num_images: int = 8, seed: int = 0) -> Iterator[Frame]:
    """Morph the first of two images (2, C, H, W) in [0, 1] into the second one.

    The probability-flow ODE maps both images to noise. Points between the two, interpolated
    spherically, are mapped back by DPM-Solver++. Yields its steps as frames of ``num_images``
    points in the space of the path; ``EBM.to_images`` decodes them.

    Args:
        seed: seed of the dequantisation.
    """
    levels = ebm.levels_of(images)
    points = ebm.dequantise(levels, noise_for(levels, ebm.dtype, seed)[0])
    path, ends = require_one_sided(ebm.density.path), (points.t, START)
    score = ebm.density.score
    *_, noise = solve_flow(score, path, LOG_SNR, points.y, ends, ENCODE_STEPS)
    x0 = slerp(*noise.x, torch.linspace(0, 1, num_images))
    yield from DPMSampler().iterate(ebm.density, x0, torch.Generator())

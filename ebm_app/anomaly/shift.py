"""Whether two sets of images are drawn alike, by what a model says of them."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ebm_app.anomaly.passes import levels_of, passes
from ebm_app.ebm import EBM
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import PositiveInt, Seed, check_argument


class Shift(NamedTuple):
    """Of sets of N and M images: the energy distance of their features, its p-value by
    permutations, and how much nearer the other set than its own each image lies, (N,) and (M,):
    the least drive the distance."""

    distance: float
    p_value: float
    a: np.ndarray
    b: np.ndarray


def two_sample_test(
    model: EBM, a: Any, b: Any, num_permutations: int = 999, seed: int = 0
) -> Shift:
    r"""Test that images a and b are draws of one distribution. With features f(x) of both, their
    residuals by cell of the image and noise level in units of their spread, it is

        D = 2 E|f(a) - f(b)| - E|f(a) - f(a')| - E|f(b) - f(b')|,

    and the p-value the share of ``num_permutations`` exchanges of the images, and none, whose D is
    as large: exact for any number of images.

    >>> ebm = EBM.from_pretrained("digits")
    >>> grey, black = torch.rand(2, 8, 1, 8, 8).mul(2).floor().div(2)
    >>> two_sample_test(ebm, grey, 0 * black, num_permutations=99).p_value
    0.01

    Args:
        model: with a Stein head. a, b: (N, C, H, W) and (M, C, H, W), in [0, 1] or uint8 levels.

    Raises:
        UserError: for fewer than 2 images in a set, and images that are not of the model's form.

    Source: Szekely and Rizzo 2013, https://doi.org/10.1016/j.jspi.2013.03.018.
    """
    num = check_argument(PositiveInt, "num_permutations", num_permutations)
    seed = check_argument(Seed, "seed", seed)
    a, b = levels_of(model, a), levels_of(model, b)
    if min(len(a), len(b)) < 2:
        raise UserError(f"sets of {len(a)} and {len(b)} images are too few: give at least 2 each")
    found = [passes(model, images) for images in (a, b)]
    features = torch.cat([torch.cat([one.cells(), one.losses[:, :1]], 1) for one in found])
    features = (features - features.mean(0)) / (features.std(0) + 1e-9)
    distances = torch.cdist(features, features)
    in_a = torch.arange(len(features)) < len(a)
    generator = torch.Generator().manual_seed(seed)
    orders = [torch.randperm(len(features), generator=generator) for _ in range(num)]
    members = torch.stack([in_a, *(in_a[order] for order in orders)]).double()
    statistics = energy_distances(distances, members)
    nearness = distances[:, in_a].mean(1) - distances[:, ~in_a].mean(1)
    p_value = (statistics >= statistics[0] - 1e-12).double().mean().item()
    return Shift(statistics[0].item(), p_value, nearness[in_a].numpy(), -nearness[~in_a].numpy())


def energy_distances(distances: Tensor, members: Tensor) -> Tensor:
    """D (K,) of K divisions of n points in two, by their distances (n, n) and by which of them
    are in the first part, (K, n) of 0 and 1."""
    first, second = members.sum(1), (1 - members).sum(1)
    to_first = members @ distances
    within, across = (to_first * members).sum(1), (to_first * (1 - members)).sum(1)
    others = distances.sum() - within - 2 * across
    return 2 * across / (first * second) - within / first**2 - others / second**2

"""Completion of images: sampling unknown pixels given known pixels."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ebm_app.data.levels import dequantise
from ebm_app.ebm import EBM, Labels
from ebm_app.nets.density import MomentsDensity
from ebm_app.nets.protocols import SteinScore
from ebm_app.paths import require_one_sided
from ebm_app.sampling import AnnealedHMC
from ebm_app.sampling.base import Frame
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import check_argument
from ebm_app.utils.registry import build
from ebm_app.utils.tensors import as_tensor, leaves

#: Default number of temperatures, a third of the default for whole images
NUM_TEMPERATURES = 60


class KnownPixels:
    r"""Stein score of p_t times a likelihood of the known pixels y of x_1,

        p_t(x) N(y; E[x_1 | x], V_t(x) + s v_t I),    V_t = Var[x_1 | x] per dimension.

    This is the score of the model plus J^T (y - E[x_1 | x]) / (V_t + s v_t), where J is the
    Jacobian of the mean. It costs one backward pass. As v_t decreases to 0, the known pixels of x
    converge to y, so annealed HMC ends at p_1(unknown | known). The weights of modes that separate
    early are only correct if the intermediate distributions are close to p_t(x | y).

    Args:
        model: density of all pixels. known: y (B, *), used where ``mask`` (B, *) is true.

    Source: moment-matching guidance of Rozet et al. 2024, arXiv:2405.13712, with a diagonal
    covariance and an accept step.
    """

    #: s, which bounds the curvature of the likelihood if the predicted variance is near 0
    slack = 0.1

    def __init__(self, model: SteinScore, known: Tensor, mask: Tensor) -> None:
        self.path = require_one_sided(model.path)
        self.start, self.end = model.start, model.end
        self.model, self.known, self.mask = model, known, mask

    def score(self, x: Tensor, t: float) -> Tensor:
        """Return the score (B, *), without gradients."""
        time = torch.tensor(t, dtype=torch.float64)
        v, alpha = self.path.variance(time), self.path.alpha(time)
        with leaves(x.detach()) as (point,):
            if isinstance(self.model, MomentsDensity):
                score, variance = self.model.score_and_variance(point, t)
            else:  # prior variance of eps
                score, variance = self.model.score(point, t), torch.ones_like(point)
            mean = self.path.denoise(point, score, time)
            excess = torch.where(self.mask.clone(), self.known.to(x.dtype) - mean, 0.0)
            spread = variance.detach() * v / alpha**2 + self.slack * v
            (gradient,) = torch.autograd.grad((excess.square() / spread).sum() / 2, point)
        return score.detach() - gradient

    def score_cost(self, t: float) -> int:
        """Return the number of network passes per call of ``score``."""
        return self.model.score_cost(t)

    def at(self, rows: Tensor) -> "KnownPixels":
        """Return the posterior for the points with indices ``rows`` (b,) in the batch."""
        return KnownPixels(self.model.at(rows), self.known[rows], self.mask[rows])


def complete(ebm: EBM, images: Tensor, mask: Tensor, seed: int = 0, **options: Any) -> Tensor:
    """Sample unknown pixels from p(unknown | known) by annealed HMC with the score of
    ``KnownPixels``. Return the completed images (B, C, H, W) in [0, 1].

    >>> ebm = EBM.from_pretrained("digits")
    >>> upper = torch.arange(8)[:, None].expand(8, 8) < 4
    >>> complete(ebm, torch.zeros(1, 1, 8, 8), upper, num_temperatures=5)[0, 0, :4].sum()
    tensor(0.)

    Args:
        images: (B, C, H, W), as for ``EBM.likelihood``. Unknown pixels are ignored.
        mask: bool (H, W), (C, H, W) or (B, C, H, W), true for known pixels.
        seed: seed of the noise.
        options: ``labels`` and ``guidance`` as for ``EBM.sample``, and settings of
            ``AnnealedHMC``; ``num_temperatures`` is 60 by default.

    Raises:
        UserError: for a mask of the wrong shape or dtype, a model in a latent space, and as in
            ``EBM.sample``.
    """
    *_, last = iterate_completion(ebm, images, mask, seed, **options)
    return ebm.to_images(last.x)


def iterate_completion(
    ebm: EBM,
    images: Tensor,
    mask: Tensor,
    seed: int = 0,
    labels: Labels | None = None,
    guidance: float = 1.0,
    **settings: Any,
) -> Iterator[Frame]:
    """Yield the steps of ``complete`` as frames in the space of the path, with its arguments and
    errors."""
    config = check_argument(EBM, "ebm", ebm).config
    if ebm.space.scale is None:
        raise UserError(
            f"This model is in the latent space {config.space}, whose dimensions are not pixels. "
            "Use a model in the ambient space."
        )
    levels = ebm.levels_of(images)
    mask = as_tensor(mask, "the mask")
    if mask.dtype != torch.bool or mask.ndim < 2 or mask.shape != levels.shape[-mask.ndim :]:
        raise UserError(
            "Expected a bool mask of shape (H, W), (C, H, W) or (B, C, H, W) for images of shape "
            f"{tuple(levels.shape)}, got {mask.dtype} of shape {tuple(mask.shape)}."
        )
    is_known = mask.expand(levels.shape).to(ebm.device)
    middle = dequantise(levels, config.num_levels, torch.full(levels.shape, 0.5))
    known = ebm.space.encode(middle.to(ebm.device))
    model = KnownPixels(ebm.density_for(len(levels), labels, guidance, seed), known, is_known)
    generator, x0 = ebm.start(len(levels), seed)
    settings = {"num_temperatures": NUM_TEMPERATURES, **settings}
    sampler = build(AnnealedHMC, "sampler", settings)
    for frame in sampler.iterate(model, x0, generator):
        yield frame._replace(x=torch.where(is_known, known.to(frame.x), frame.x))

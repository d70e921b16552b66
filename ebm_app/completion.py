"""Images of which a part is known: draws of the rest."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ebm_app.config import EBMConfig
from ebm_app.data.levels import dequantise
from ebm_app.ebm import EBM, Labels
from ebm_app.likelihood.bits import checked_levels
from ebm_app.sampling.base import Frame
from ebm_app.sampling.known import KnownEnergy
from ebm_app.sampling.samplers import AnnealedHMC
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import check_argument
from ebm_app.utils.registry import build
from ebm_app.utils.tensors import as_tensor

#: a third of what draws of whole images take: the known pixels lead the way
NUM_TEMPERATURES = 60


def complete(
    ebm: EBM,
    images: Tensor,
    mask: Tensor,
    seed: int = 0,
    labels: Labels | None = None,
    guidance: float = 1.0,
    **settings: Any,
) -> Tensor:
    """Draw the unknown pixels of images from p(unknown | known), by annealed HMC through
    ``KnownEnergy``: (B, C, H, W) in [0, 1].

    >>> ebm = EBM.from_pretrained("digits")
    >>> upper = torch.arange(8)[:, None].expand(8, 8) < 4
    >>> complete(ebm, torch.zeros(1, 1, 8, 8), upper, num_temperatures=5)[0, 0, :4].sum()
    tensor(0.)

    Args:
        images: (B, C, H, W), as for ``EBM.likelihood``; what is unknown is not read.
        mask: bool, (H, W), (C, H, W) or (B, C, H, W), true where a pixel is known.
        seed, labels, guidance: as for ``EBM.sample``.
        settings: of ``AnnealedHMC``, whose temperatures are 60 if not given.

    Raises:
        UserError: for a mask of another shape, a model in a latent space, whose components are no
            pixels, and as ``EBM.sample``.
    """
    *_, last = iterate_completion(ebm, images, mask, seed, labels, guidance, **settings)
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
    """The frames of ``complete``, in the space of the path, with the known pixels as they are."""
    config = check_argument(EBM, "ebm", ebm).config
    if config.space != EBMConfig.space:
        raise UserError(
            f"this model lives in the latent space {config.space}, where no component is a pixel: "
            "take a model of the ambient space"
        )
    levels = checked_levels(images, config.image_shape, config.num_levels)
    where = known_mask(mask, levels.shape).to(ebm.device)
    middle = dequantise(levels, config.num_levels, torch.full(levels.shape, 0.5))
    energy = ebm.density_for(len(levels), labels, guidance)
    known = ebm.space.encode(middle.to(ebm.device))
    energy = KnownEnergy(energy, known, where)
    generator, x0 = ebm.start(len(levels), seed)
    settings = {"num_temperatures": NUM_TEMPERATURES, **settings}
    sampler = build(AnnealedHMC, "sampler", settings)
    for frame in sampler.iterate(energy, x0, generator):
        yield frame._replace(x=torch.where(where, known.to(frame.x), frame.x))


def known_mask(mask: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A mask of known pixels for images of ``shape`` (B, C, H, W).

    Raises:
        UserError: for a mask of another shape or kind.
    """
    mask = as_tensor(mask, "the mask")
    if mask.dtype != torch.bool or not 2 <= mask.ndim <= 4:
        raise UserError("a mask is a bool tensor (H, W), (C, H, W) or (B, C, H, W): true is known")
    try:
        return mask.expand(shape)
    except RuntimeError as error:
        raise UserError(
            f"the mask of shape {tuple(mask.shape)} does not fit images of shape {shape[1:]}"
        ) from error

r"""What the scores of anomaly detection read: residuals of the Stein head and time scores at a few
noise levels, of an image and of its turned and mirrored copies.

A point x = alpha_r y + deviation e, e ~ N(0, I), is y under noise; the Stein score s predicts
e_s = -deviation s(x, r), with residual e - e_s. The same e is taken for every image, so that two
images differ by what they show. A level is the log signal-to-noise ratio of x.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from ebm_app.ebm import EBM
from ebm_app.likelihood.bits import checked_levels
from ebm_app.likelihood.dequantisation import dequantisation_noise
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import check_argument
from ebm_app.utils.tensors import sum_except_batch

#: levels of images of 28 x 28, of all copies and of the image alone; more pixels show the same at
#: more noise
SHAPE_LEVELS, PLAIN_LEVELS, PIXELS = (-1.0, -0.1), (-1.5, -1.0, -0.5, 2.5, 6.0), 784
#: rows that a network gets together, and cells of a side of an image
ROWS, CELLS = 128, 7
SEED = 0


class Passes(NamedTuple):
    """Of B images at n levels: mean squared residuals e - e_s by pixel, and the variance that the
    model expects of them, (B, n, H, W); time scores (B, n) in nats per unit of t; and losses
    (B, G) in nats of the image, first, and of its turned and mirrored copies, which are -log p up
    to a constant, as far as the levels at which shapes are decided tell."""

    squares: Tensor
    expected: Tensor
    time_scores: Tensor
    losses: Tensor

    def normalised(self) -> Tensor:
        """Squared residuals over what the model expects, (B, n, H, W): 1 on average."""
        return self.squares / (self.expected + 1e-3)

    def cells(self) -> Tensor:
        """Log normalised residuals of square cells, (B, n * cells) float64."""
        side = min(CELLS, *(max(1, n // 2) for n in self.squares.shape[-2:]))
        return (adaptive_avg_pool2d(self.normalised(), side).double() + 1e-3).log().flatten(1)


def copies(images: Tensor) -> list[Tensor]:
    """Images (*, H, W) and their turned and mirrored copies of the same size: 8, or 4 where the
    images are not square."""
    turns = range(4) if images.shape[-1] == images.shape[-2] else (0, 2)
    return [x.rot90(k, (-2, -1)) for x in (images, images.flip(-1)) for k in turns]


def noise_levels(ebm: EBM) -> tuple[list[float], int]:
    """The times of the levels, and at how many of them, the first ones, copies are read too.

    Raises:
        UserError: for a model without a Stein head, or of a path between two data sets.
    """
    if not ebm.config.stein_head:
        raise UserError(
            "this model has no Stein head, whose residuals tell odd images: give one with a head"
        )
    path = ebm.energy.path
    shift = math.log(PIXELS / math.prod(ebm.config.image_shape[1:]))
    levels = torch.tensor((*SHAPE_LEVELS, *PLAIN_LEVELS), dtype=torch.float64) + shift
    path.check_reference()
    return path.log_snr_inverse(levels).tolist(), len(SHAPE_LEVELS)


def levels_of(ebm: EBM, images: Any) -> Tensor:
    """Images (B, C, H, W), in [0, 1] or uint8 levels, as levels of the model; raises as
    ``passes`` does."""
    config = check_argument(EBM, "model", ebm).config
    return checked_levels(images, config.image_shape, config.num_levels)


@torch.no_grad()
def passes(ebm: EBM, images: Any) -> Passes:
    """One pass of images (B, C, H, W), in [0, 1] or uint8 levels, over the noise levels.

    >>> from ebm_app import EBM
    >>> passes(EBM.from_pretrained("digits"), torch.zeros(2, 1, 8, 8)).losses.shape
    torch.Size([2, 8])

    Raises:
        UserError: for images that are not of the model's form, and as ``noise_levels``.
    """
    config, levels = ebm.config, levels_of(ebm, images)
    times, num_shapes = noise_levels(ebm)
    generator = torch.Generator().manual_seed(SEED)
    noises = torch.randn((len(times), *config.image_shape), generator=generator).to(ebm.dtype)
    cell_noise = dequantisation_noise(1, levels[:1], SEED)[0, 0].to(ebm.dtype)
    size = max(1, ROWS // len(copies(levels[:1])))
    parts = [
        _pass(ebm, part, times, num_shapes, noises, cell_noise) for part in levels.split(size)
    ]
    return Passes(*(torch.cat(column).cpu() for column in zip(*parts, strict=True)))


def _pass(
    ebm: EBM,
    levels: Tensor,
    times: list[float],
    num_shapes: int,
    noises: Tensor,
    cell_noise: Tensor,
) -> Passes:
    """``passes`` of images that the network takes together."""
    turned, num = copies(levels), len(levels)
    y = ebm.dequantise(torch.cat(turned), noise_of_copies(cell_noise, num)).y
    squares, expected, scores, losses = [], [], [], []
    for index, time in enumerate(times):
        rows = y if index < num_shapes else y[:num]
        noise = noise_of_copies(noises[index], num)[: len(rows)].to(rows.device)
        t = torch.tensor(time, dtype=torch.float64)
        alpha, variance = ebm.energy.path.alpha(t).item(), ebm.energy.path.variance(t).item()
        output = ebm.energy.output(alpha * rows + math.sqrt(variance) * noise, time)
        square = (noise + math.sqrt(variance) * output.score).square()
        if index < num_shapes:
            losses.append(sum_except_batch(square.double()).view(-1, num).T / 2)
        squares.append(square[:num].mean(1))
        known = output.variance is not None
        expected.append(output.variance[:num].mean(1) if known else torch.ones_like(squares[-1]))
        scores.append(sum_except_batch(output.components[:num].double()))
    columns = [torch.stack(column, 1) for column in (squares, expected, scores)]
    return Passes(*columns, torch.stack(losses).sum(0))


def noise_of_copies(noise: Tensor, num: int) -> Tensor:
    """The noise (C, H, W) of an image for ``num`` images and, turned and mirrored as they are,
    their copies: (num * copies, C, H, W)."""
    return torch.stack(copies(noise)).repeat_interleave(num, 0)

"""The log-likelihood of one image with its uncertainty, what each pixel adds to it, and its place
among those of held-out images."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from ebm_app.ebm import EBM
from ebm_app.evaluation.likelihood_plots import plot_place, plot_shares
from ebm_app.likelihood import ESTIMATORS
from ebm_app.likelihood.bits import Likelihood
from ebm_app.models.config import EBMConfig

from ..shared import Load, mean_over_draws, render
from .held_out import ABSENT, HeldOutImages, describe
from .uploads import repeated

RUNNING = "Computing the log-likelihood"
STOPPED = "Stopped before there was a log-likelihood"
WAITING = "Waiting for the log-likelihoods of held-out images"
CAVEAT = (
    "A high likelihood does not mean that an image is like the training data: smooth or empty "
    "images can have a higher one than any of them."
)
REPORT = """Log-likelihood: {mean.log_prob:.1f} ± {mean.log_prob_error:.1f} nats
Bits per dim: {mean.bits_per_dim:.4f} ± {mean.bits_error:.4f} at eps {eps:g}
By {estimator}: {note}.
± is the standard error over {repeats} draws of all noise, with {nfe} evaluations of the network \
each.
{caveat}"""

#: what a visitor hands over, as an image (1, C, H, W) for the model of a configuration
ImageSource = Callable[[EBMConfig], Tensor]


class ShownLikelihood(NamedTuple):
    """What the page shows of an image's log-likelihood, as far as it is known: the image as the
    model sees it, the report, the map of the pixels' shares, the place among held-out images in
    words and drawn."""

    seen: Image.Image | None = None
    text: str = ""
    shares: Figure | None = None
    place: str = ""
    histogram: Figure | None = None


def find_likelihood(
    load: Load,
    model: str,
    source: ImageSource,
    repeats: int,
    held_out: HeldOutImages,
    seed: int = 0,
) -> Iterator[ShownLikelihood]:
    """First the image as the model sees it, then its log-likelihood, then its place among
    held-out images.

    The uncertainty is that of dequantisation: the log-likelihood is found ``repeats`` times, each
    time with other noise inside the levels.

    Args:
        load: the model of a name. source: the image for a configuration.
        held_out: what it is compared with. seed: of the noise.

    Raises:
        UserError: for an image that cannot be used, and fewer than two repeats.
    """
    ebm = load(model)
    image = source(ebm.config)
    shown = ShownLikelihood(render(image, min_pixels=256), RUNNING)
    yield shown
    estimator = ebm.default_estimator
    result = ebm.log_prob(repeated(image, repeats), estimator=estimator, seed=seed)
    shares = None if result.components is None else plot_shares(result.components.mean(0).cpu())
    text = report(result, estimator, image.numel(), ebm.config.eps)
    shown = shown._replace(text=text, shares=shares, place=WAITING)
    yield shown
    for place, histogram in compared(ebm, result.log_prob.mean().item(), held_out):
        yield shown._replace(place=place, histogram=histogram)


def compared(
    ebm: EBM, value: float, held_out: HeldOutImages
) -> Iterator[tuple[str, Figure | None]]:
    """The place of a log-likelihood in nats among those of held-out images, in words and drawn,
    while these are computed."""
    place = None
    for found in held_out.likelihoods(ebm):
        place = describe(value, found), plot_place(found.log_prob, value)
        yield place
    if place is None:
        yield ABSENT, None


def report(result: Likelihood, estimator: str, num_dims: int, eps: float) -> str:
    """The text on the log-likelihoods of one image, by an estimator of that name, under several
    draws of the noise."""
    return REPORT.format(
        mean=mean_over_draws(result.log_prob, num_dims),
        eps=eps,
        repeats=len(result.log_prob),
        estimator=estimator,
        note=ESTIMATORS[estimator].note,
        nfe=result.nfe,
        caveat=CAVEAT,
    )


def stopped(text: str, place: str) -> tuple[str, str]:
    """The report and the place of a run that was stopped; others stay as they are."""
    return STOPPED if text == RUNNING else text, "" if place == WAITING else place

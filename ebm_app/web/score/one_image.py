"""The score of one image: its log-likelihood with an uncertainty, where in the image it comes
from, and its place among held-out images."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from ebm_app.ebm import EBM
from ebm_app.evaluation.likelihood_plots import plot_place, plot_shares
from ebm_app.likelihood.bits import Likelihood
from ebm_app.models.config import EBMConfig
from ebm_app.numerics import standard_error

from ..shared import Load, render
from .held_out import ABSENT, HeldOut, describe
from .uploads import repeated

RUNNING, STOPPED = "Scoring", "Stopped before there was a score"
WAITING = "Waiting for the scores of held-out images"
CAVEAT = (
    "A high likelihood does not mean that an image is like the training data: smooth or empty "
    "images can score higher than any of them."
)
REPORT = """Log-likelihood: {log_prob:.2f} ± {log_prob_error:.2f} nats
Bits per dim: {bits:.4f} ± {bits_error:.4f} at eps {eps:g}
± is the standard error over {repeats} dequantisation draws, whose mean is a lower bound; \
integrating over time adds about {error:.1g} nats, with {nfe} evaluations a draw.
{caveat}"""

#: what a visitor hands over, as an image (1, C, H, W) for the model of a configuration
Source = Callable[[EBMConfig], Tensor]


class Score(NamedTuple):
    """What the page shows of a score, as far as it is known: the image as the model sees it, the
    report, the map of the pixels' shares, the place among held-out images in words and drawn."""

    seen: Image.Image | None = None
    text: str = ""
    shares: Figure | None = None
    place: str = ""
    histogram: Figure | None = None


def score(
    load: Load, model: str, source: Source, repeats: int, held_out: HeldOut, seed: int = 0
) -> Iterator[Score]:
    """Score an image: first the image as the model sees it, then the score, then its place among
    held-out images.

    The uncertainty is that of dequantisation: the image is scored ``repeats`` times, each time
    with other noise inside its levels.

    Args:
        load: the model of a name. source: the image for a configuration.
        held_out: what the score is compared with. seed: of the noise.

    Raises:
        UserError: for an image that cannot be used, and fewer than two repeats.
    """
    ebm = load(model)
    image = source(ebm.config)
    shown = Score(render(image, min_pixels=256), RUNNING)
    yield shown
    result = ebm.log_prob(repeated(image, repeats), seed=seed)
    shares = None if result.components is None else plot_shares(result.components.mean(0).cpu())
    shown = shown._replace(text=report(result, ebm.config.eps), shares=shares, place=WAITING)
    yield shown
    for place, histogram in compared(ebm, result.log_prob.mean().item(), held_out):
        yield shown._replace(place=place, histogram=histogram)


def compared(ebm: EBM, value: float, held_out: HeldOut) -> Iterator[tuple[str, Figure | None]]:
    """The place of a log-likelihood in nats among those of held-out images, in words and drawn,
    while they are scored."""
    images = held_out.images(ebm.config)
    if images is None:
        yield ABSENT, None
        return
    for scores in held_out.scores(ebm, images):
        yield describe(value, scores), plot_place(scores.log_prob, value)


def report(result: Likelihood, eps: float) -> str:
    """The text on the scores of one image under several draws of the noise."""
    return REPORT.format(
        log_prob=result.log_prob.mean(),
        log_prob_error=standard_error(result.log_prob),
        bits=result.bits_per_dim.mean(),
        bits_error=standard_error(result.bits_per_dim),
        eps=eps,
        repeats=len(result.log_prob),
        error=result.error.mean(),
        nfe=result.nfe,
        caveat=CAVEAT,
    )


def stopped(text: str, place: str) -> tuple[str, str]:
    """The report and the place of a run that was stopped; others stay as they are."""
    return STOPPED if text == RUNNING else text, "" if place == WAITING else place

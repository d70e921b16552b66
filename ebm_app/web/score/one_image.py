"""The log-likelihood of one image with its uncertainty, what each pixel adds to it, and its place
among those of held-out images."""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from PIL import Image

from ebm_app.evaluation.plots import plot_place, plot_shares
from ebm_app.image_models.ebm import EBM
from ebm_app.models.config import EBMConfig

from ..shared import Load, render
from .held_out import ABSENT, HeldOutImages, describe
from .prepared import Prepared
from .report import metrics, report
from .uploads import repeated

RUNNING = "Computing the log-likelihood"
STOPPED = "Stopped before there was a log-likelihood"
WAITING = "Waiting for the log-likelihoods of held-out images"

#: what a visitor gives, as an image for the model of a configuration
ImageSource = Callable[[EBMConfig], Prepared]


class ShownLikelihood(NamedTuple):
    """What the page shows of an image's log-likelihood, as far as it is known: the image as the
    model sees it, the report, the map of the pixels' shares, the place among held-out images in
    words and drawn, and the numbers."""

    seen: Image.Image | None = None
    text: str = ""
    shares: Figure | None = None
    place: str = ""
    histogram: Figure | None = None
    metrics: dict[str, Any] | None = None


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

    The log-likelihood is found ``repeats`` times, each time with other noise inside the levels,
    by the model's default estimator.

    Args:
        load: the model of a name. source: the image for a configuration.
        held_out: what it is compared with. seed: of the noise.

    Raises:
        UserError: for an image that cannot be used, and fewer than two repeats.
    """
    ebm = load(model)
    prepared = source(ebm.config)
    shown = ShownLikelihood(render(prepared.image, min_pixels=256), RUNNING)
    yield shown
    result = ebm.log_prob(repeated(prepared.image, repeats), seed=seed)
    shares = None if result.components is None else plot_shares(result.components.mean(0).cpu())
    numbers = metrics(result, ebm, prepared)
    text = report(numbers, ebm.config.num_levels)
    shown = shown._replace(text=text, shares=shares, place=WAITING, metrics=numbers)
    yield shown
    places = compared(ebm, model, result.log_prob.mean().item(), held_out)
    for place, histogram in places:
        yield shown._replace(place=place, histogram=histogram)


def compared(
    ebm: EBM, name: str, value: float, held_out: HeldOutImages
) -> Iterator[tuple[str, Figure | None]]:
    """The place of a log-likelihood in nats among those of held-out images of the model of a name,
    in words and drawn, while these are found."""
    place, num_dims = None, math.prod(ebm.config.image_shape)
    for found in held_out.likelihoods(ebm, name):
        place = describe(value, found, num_dims), plot_place(found.log_prob, value)
        yield place
    if place is None:
        yield ABSENT, None


def stopped(text: str, place: str) -> tuple[str, str]:
    """The report and the place of a run that was stopped; others stay as they are."""
    return STOPPED if text == RUNNING else text, "" if place == WAITING else place

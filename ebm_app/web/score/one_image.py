"""The log-likelihood of one image with its uncertainty, what each pixel adds to it, and its place
among those of held-out images."""

import math
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

from annotated_types import Ge, Le
from matplotlib.figure import Figure
from PIL import Image
from pydantic import BeforeValidator

from ebm_app.evaluation.plots import plot_place, plot_shares
from ebm_app.image_models.ebm import EBM
from ebm_app.likelihood import ESTIMATORS
from ebm_app.likelihood.bits import Likelihood

from ..models import Models
from ..runs import Upload
from ..shared import mean_of, render
from .uploads import Prepared, drawn_path, read_drawing, read_upload

MAX_REPEATS = 64
Repeats = Annotated[int, Ge(2), Le(MAX_REPEATS)]
ABSENT = (
    "There is no percentile: held-out images of this model's data, in the form that it takes, are "
    "not on the server."
)
CAVEAT = (
    "A high likelihood does not mean that an image is like the training data: smooth or empty "
    "images can have a higher one than any of them."
)
#: what the estimators that lead are called
NAMES = {"elbo": "the variational bound", "ratio": "the integral of the time score"}


class ShownLikelihood(NamedTuple):
    """What the page shows of an image's log-likelihood, as far as it is known: the image as the
    model sees it, the report, the map of the pixels' shares, the place among held-out images in
    words and drawn, the probabilities of the classes that the model knows, and the numbers."""

    seen: Image.Image | None = None
    text: str = ""
    shares: Figure | None = None
    place: str = ""
    histogram: Figure | None = None
    classes: dict[str, float] | None = None
    metrics: dict[str, Any] | None = None


def score(
    model: str,
    image: Upload | None,
    repeats: Repeats,
    invert: bool = False,
    frame: bool = False,
    *,
    models: Models,
    seed: int,
) -> Iterator[ShownLikelihood]:
    """The log-likelihood of an image file, which may be inverted and whose digit may be framed
    first; returns the image as the model sees it, the log-likelihood as text, a map of the
    pixels' shares, the place among held-out images as text and drawn, the probabilities of the
    classes, and the numbers."""
    prepared = read_upload(image, models.load(model).config, invert, frame)
    yield from find_likelihood(models, model, prepared, repeats, seed)


def score_drawing(
    model: str,
    drawing: Annotated[str | None, BeforeValidator(drawn_path)],
    repeats: Repeats,
    *,
    models: Models,
    seed: int,
) -> Iterator[ShownLikelihood]:
    """The log-likelihood of a drawing, light strokes on a dark ground; returns what /score
    does."""
    prepared = read_drawing(drawing, models.load(model).config)
    yield from find_likelihood(models, model, prepared, repeats, seed)


def find_likelihood(
    models: Models, model: str, prepared: Prepared, repeats: int, seed: int
) -> Iterator[ShownLikelihood]:
    """First the image as the model of a name sees it, then its log-likelihood under ``repeats``
    draws of the noise by the default estimator, then its place among held-out images."""
    ebm = models.load(model)
    shown = ShownLikelihood(render(prepared.image, 256), "Computing the log-likelihood")
    yield shown
    result = ebm.log_prob(prepared.image.expand(repeats, -1, -1, -1), seed=seed)
    shares = None if result.components is None else plot_shares(result.components.mean(0).cpu())
    numbers = metrics(result, ebm, prepared)
    text = report(numbers, ebm.config.num_levels)
    shown = shown._replace(text=text, shares=shares, metrics=numbers)
    yield shown
    if ebm.config.num_classes:
        (told,) = ebm.classify(prepared.image, seed=seed).probabilities.tolist()
        shown = shown._replace(classes={str(label): p for label, p in enumerate(told)})
        yield shown
    found, value = None, result.log_prob.mean().item()
    for found in models.likelihoods(model):
        place = found.describe(value, prepared.image.numel())
        yield shown._replace(place=place, histogram=plot_place(found.log_prob, value))
    if found is None:
        yield shown._replace(place=ABSENT)


def metrics(result: Likelihood, ebm: EBM, prepared: Prepared) -> dict[str, Any]:
    """The mean over draws by the default estimator, in nats and bits per dim with its errors, and
    what it depends on."""
    estimator = ebm.default_estimator
    return {
        **mean_of(result, estimator, prepared.image.numel())._asdict(),
        "estimator": estimator,
        "normalised": ESTIMATORS[estimator].normalised,
        "eps": ebm.config.eps,
        "repeats": len(result.log_prob),
        "nfe": result.nfe,
        "notes": list(prepared.notes),
    }


def report(found: dict[str, Any], num_levels: int) -> str:
    """``metrics`` in words."""
    name, kind = found["estimator"], ESTIMATORS[found["estimator"]]
    bits = with_error(found["bits_per_dim"], found["bits_error"])
    nats = with_error(found["log_prob"], found["log_prob_error"])
    unnormalised = "" if kind.normalised else ", not normalised"
    lines = [
        f"Bits per dim: {bits} ({nats} nats), by {NAMES.get(name, name)} ({name}){unnormalised}",
        f"Fewer bits are better: were all {num_levels} levels equally likely, every image would "
        f"cost {math.log2(num_levels):.2f}.",
        *found["notes"],
        f"{name}: {kind.note}.",
        f"± is one standard error over {found['repeats']} draws of the noise of dequantisation, "
        f"with what the estimator itself may be off by. Each took {found['nfe']} evaluations of "
        f"the network, up to eps {found['eps']:g}.",
        CAVEAT,
    ]
    return "\n".join(lines)


def with_error(value: float, error: float) -> str:
    """A value and its error, the error to two digits and the value to the same place, never as a
    power of ten; an exact value to 4 decimals.

    >>> with_error(-505.73, 10.49), with_error(0.92814, 0.0175), with_error(-2137.0, 134.0)
    ('-506 ± 10', '0.928 ± 0.018', '-2140 ± 130')
    """
    if not error or not math.isfinite(error):
        return f"{value:z.4f} ± {error:g}"
    place = 1 - int(f"{error:.1e}".partition("e")[2])  # once rounded: 0.0996 is 0.10
    return " ± ".join(f"{round(part, place):z.{max(place, 0)}f}" for part in (value, error))

"""Whether an image is ordinary or odd, and where; its class and its log-likelihood."""

import math
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NamedTuple

import numpy as np
from annotated_types import Ge, Le
from matplotlib.figure import Figure
from torch import Tensor

from ebm_app.data.levels import to_display
from ebm_app.evaluation.plots import plot_over
from ebm_app.likelihood import ESTIMATORS

from ..models import Models
from ..runs import Upload
from ..shared import mean_of, render
from .uploads import Prepared, read_drawing, read_upload

MAX_REPEATS = 64
Repeats = Annotated[int, Ge(2), Le(MAX_REPEATS)]
#: an image is odd where p is no higher, and one simpler than all held-out images where it is not
#: above the second
ODD, SIMPLE = 0.02, 0.05
ABSENT = (
    "No detector of odd images is fitted to this model, and its held-out images are not on the "
    "server, so that nothing says whether this is ordinary."
)
#: of a map, by thirds of its height and width
ROWS, COLUMNS = ("upper", "", "lower"), ("left", "", "right")


class ShownLikelihood(NamedTuple):
    """What the page shows of an image, as far as it is known: the image as the model sees it, the
    answer in words, where it is odd, the details, the probabilities of the classes that the model
    knows, the numbers, and what ``plot_over`` is given."""

    seen: str | None = None
    answer: str = ""
    where: Figure | None = None
    details: str = ""
    classes: dict[str, float] | None = None
    metrics: dict[str, Any] | None = None
    compared: tuple[Tensor, np.ndarray, Tensor] | None = None


def score(
    model: str,
    image: Upload | None,
    repeats: Repeats,
    as_it_is: bool = False,
    *,
    models: Models,
    seed: int,
) -> Iterator[ShownLikelihood]:
    """Whether an image file is ordinary or odd; a digit on paper is found and framed first, unless
    it is taken as it is. Returns the image as the model sees it, the answer in words, a map of
    where it is odd beside the nearest held-out images, the details, the probabilities of the
    classes, and the numbers."""
    prepared = read_upload(image, models.load(model).config, as_it_is)
    yield from find_likelihood(models, model, prepared, repeats, seed)


def score_drawing(
    model: str,
    drawing: Upload | None,
    repeats: Repeats,
    *,
    models: Models,
    seed: int,
) -> Iterator[ShownLikelihood]:
    """Whether a drawing, light strokes on a dark ground, is ordinary or odd; returns what /score
    does."""
    prepared = read_drawing(drawing, models.load(model).config)
    yield from find_likelihood(models, model, prepared, repeats, seed)


def find_likelihood(
    models: Models, model: str, prepared: Prepared, repeats: int, seed: int
) -> Iterator[ShownLikelihood]:
    """First the image as the model of a name sees it; then the answer with two draws of noise, by
    one pass of an energy network where the model is one; then with ``repeats`` draws, by the
    default estimator."""
    ebm, image = models.load(model), prepared.image
    quick = "energy" if ESTIMATORS["energy"].suits(ebm.energy) else ebm.default_estimator
    with TemporaryDirectory() as folder:  # the page keeps one copy, however often it is shown
        seen = Path(folder) / "seen.png"
        render(image, 256).save(seen)
        shown = ShownLikelihood(str(seen), "Looking at the image")
        yield shown
        found: dict[str, Any] = dict.fromkeys(("p_value", "percentile", "oddest", "class"))
        if (detector := models.detector(model)) is not None:
            odd = detector.examine(image)
            found |= {"p_value": odd.p_value.item(), "oddest": place_of(odd.maps[0])}
            found["percentile"] = 100 * odd.p_values["likelihood"].item()
            nearest = to_display(detector.nearest(image), ebm.config.num_levels)
            compared = image[0], odd.maps[0], nearest
            shown = shown._replace(where=plot_over(*compared), compared=compared)
        if ebm.config.num_classes:
            (told,) = ebm.classify(image, seed=seed).probabilities.tolist()
            found["class"] = max(range(len(told)), key=told.__getitem__)
            shown = shown._replace(classes={str(label): p for label, p in enumerate(told)})
        for num, estimator in ((2, quick), (repeats, ebm.default_estimator)):
            draws = ebm.likelihood(image.expand(num, -1, -1, -1), estimator=estimator, seed=seed)
            found = {
                **found,
                **mean_of(draws, estimator, image.numel()),
                "estimator": estimator,
                "normalised": ESTIMATORS[estimator].normalised,
                "eps": ebm.config.eps,
                "num_dims": image.numel(),
                "repeats": num,
                "nfe": draws.nfe,
                "notes": list(prepared.notes),
                "answer": in_words(found),
            }
            answer = [found["answer"], f"{found['bits_per_dim']:.3f} bits per dim"]
            yield shown._replace(
                answer="\n".join([*answer, *found["notes"]]),
                details="\n".join(report(found, ebm.config.num_levels)),
                metrics=found,
            )


def in_words(found: dict[str, Any]) -> str:
    """Whether an image is ordinary, from its p-value, and whether it is odd because it is too
    simple, from the percentile of its likelihood."""
    if (p := found["p_value"]) is None:
        return ABSENT
    name = "image" if found["class"] is None else found["class"]
    if p <= SIMPLE and found["percentile"] == 100:
        return f"Suspiciously simple: it costs fewer bits than held-out images do (p = {p:.2g})"
    if p <= ODD:
        return f"Odd: p = {p:.2g}, mostly at the {found['oddest']}"
    return f"An ordinary {name}: more usual than {100 * p:.0f} percent of held-out images"


def place_of(excess: np.ndarray) -> str:
    """Where in an image a map (H, W) is highest, in words."""
    row, column = divmod(int(excess.argmax()), excess.shape[1])
    names = ROWS[3 * row // excess.shape[0]], COLUMNS[3 * column // excess.shape[1]]
    return " ".join(filter(None, names)) or "middle"


def report(found: dict[str, Any], num_levels: int) -> list[str]:
    """The log-likelihood in words."""
    bits, bits_error, nats, error = (
        found[key] for key in ("bits_per_dim", "bits_error", "log_prob", "log_prob_error")
    )
    return [
        f"Bits per dim: {bits:.3f} ± {bits_error:.3f} ({nats:.1f} ± {error:.1f} nats), by "
        f"{found['estimator']}: {ESTIMATORS[found['estimator']].note}.",
        f"Fewer bits are better: were all {num_levels} levels equally likely, every image would "
        f"cost {math.log2(num_levels):.2f}.",
        f"± is one standard error over {found['repeats']} draws of the noise of dequantisation, "
        "with what the estimator itself may be off by.",
    ]

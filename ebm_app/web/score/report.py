"""What the page says of the log-likelihood of one image, and of the words that it uses."""

import math
from typing import Any

from ebm_app.image_models.ebm import EBM
from ebm_app.likelihood import ESTIMATORS
from ebm_app.likelihood.bits import Likelihood

from ..shared import mean_of
from .numbers import with_error
from .prepared import Prepared

#: what the estimators that lead are called
NAMES = {"elbo": "the variational bound", "ratio": "the integral of the time score"}
CAVEAT = (
    "A high likelihood does not mean that an image is like the training data: smooth or empty "
    "images can have a higher one than any of them."
)
REPORT = """Bits per dim: {bits} ({nats} nats), by {name}
Fewer bits are better: were all {levels} levels equally likely, every image would cost \
{uniform:.2f}.
{account}
{estimator}: {note}.
± holds all that moves the number, as one standard error: {repeats} draws of the noise of \
dequantisation{own}. Each took {nfe} evaluations of the network, up to eps {eps:g}.
{caveat}"""
WORDS = """\
- **Nats**: the unit of a log-likelihood, the natural logarithm of the probability that the model \
gives to the image. Higher, nearer to 0, is better.
- **Bits per dim**: the same with the sign turned, in bits for every number of the image: what it \
would cost to store one of its pixels with the model's help. Fewer is better.
- **Dequantisation**: the grey levels of an image are whole numbers, the model's density is of \
real ones; so noise fills each level, and the mean over several draws of it is taken.
- **eps**: the share of the model's time that is left out at its end, where noise has become image.
- **Variational bound** (`elbo`): a lower bound on the log-likelihood by a density that is \
normalised, whatever the network has learned.
- **Not normalised**: the probabilities of all images need not add up to 1, so bits may look too \
good.
- **Shares of the pixels**: what each pixel adds to the log-likelihood, for most models to the \
variational bound. A share is no probability of its pixel: all pixels enter into each.
"""


def metrics(result: Likelihood, ebm: EBM, prepared: Prepared) -> dict[str, Any]:
    """The log-likelihoods of one image under several draws of the noise, by the model's default
    estimator: their mean in nats and bits per dim with its errors, and what it depends on."""
    estimator = ebm.default_estimator
    mean = mean_of(result, estimator, prepared.image.numel())
    return {
        **mean._asdict(),
        "estimator": estimator,
        "normalised": ESTIMATORS[estimator].normalised,
        "eps": ebm.config.eps,
        "repeats": len(result.log_prob),
        "nfe": result.nfe,
        "changes": prepared.lines(),
    }


def report(found: dict[str, Any], num_levels: int) -> str:
    """The text on the log-likelihoods of one image under several draws of the noise, from its
    ``metrics``."""
    estimator = found["estimator"]
    kind = ESTIMATORS[estimator]
    unnormalised = "" if kind.normalised else ", not normalised"
    own = " and of the estimator" if kind.error_is_drawn else ", and the estimator's own error"
    return REPORT.format(
        bits=with_error(found["bits_per_dim"], found["bits_error"]),
        nats=with_error(found["log_prob"], found["log_prob_error"]),
        name=f"{NAMES[estimator]} ({estimator}){unnormalised}",
        levels=num_levels,
        uniform=math.log2(num_levels),
        account="\n".join(found["changes"]),
        estimator=estimator,
        note=kind.note,
        repeats=found["repeats"],
        own=own,
        nfe=found["nfe"],
        eps=found["eps"],
        caveat=CAVEAT,
    )

"""A run of a sampler: the images and where it stands, after every step, and their
log-likelihoods."""

import json
import math
import re
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

from PIL import Image
from torch import Tensor

from ebm_app.image_models.ebm import EBM
from ebm_app.numerics.tensors import mixed_seed
from ebm_app.sampling.samplers import SAMPLERS, Frame

from ..shared import mean_of, progress, render
from .settings import PNG_KEY, RunSettings

#: frames of an animation, at most
MAX_FRAMES = 40
#: dequantisation draws of an image, and images whose log-likelihoods are found together
REPEATS, BATCH_SIZE = 4, 8
HEADERS = ("Image", "Log p (nats)", "± (nats)", "Bits per dim")
#: a mean acceptance below which the chains hardly move
FEW_ACCEPTED = 0.1
WARNING = (
    f"Fewer than {FEW_ACCEPTED:.0%} of the moves are accepted, so that the images may be far from "
    "the model's: take more steps or another sampler"
)


class ImageLikelihood(NamedTuple):
    """Of one image: its number from 1 on, the mean log-likelihood over dequantisation draws with
    its error as in the Score tab, both in nats, and bits per dim."""

    number: int
    log_prob: float
    error: float
    bits_per_dim: float


@dataclass(frozen=True)
class SampleRun:
    """A run after some of its steps.

    Args:
        images: (B, C, H, W) in [0, 1], on the levels of the model.
        frame: the sampler's state. seconds: since the run began.
        past: grids of the images after some of the earlier steps, none of their pixels repeated.
        likelihoods: of the first images, or of all of them; None where they are not asked for.
    """

    settings: RunSettings
    images: Tensor
    frame: Frame
    seconds: float
    past: tuple[Image.Image, ...] = ()
    likelihoods: tuple[ImageLikelihood, ...] | None = None

    @property
    def text(self) -> str:
        """JSON of the settings and the step."""
        return json.dumps({**asdict(self.settings), "step": self.frame.step})

    @property
    def stem(self) -> str:
        """The name of its files, without the ending; an unfinished run's has the step."""
        parts = [self.settings.model, self.settings.sampler, f"seed{self.settings.seed}"]
        if self.frame.step < self.frame.num_steps:
            parts.append(f"step{self.frame.step}")
        return "-".join(re.sub(r"[^\w.]+", "-", part).strip("-.") for part in parts)

    def grid(self) -> Image.Image:
        """The images in one picture, which carries the settings into a PNG."""
        picture = render(self.images)
        picture.info[PNG_KEY] = self.text
        return picture

    def caption(self, is_stopped: bool = False) -> str:
        """Where the run stands, what it cost so far and, unless it was stopped, how long it will
        take. Where few moves are accepted, a warning."""
        step, total, found = self.frame.step, self.frame.num_steps, self.likelihoods
        if step == total and found is not None:
            step, total = len(found), len(self.images)
        is_done = step == total
        parts = [f"{len(self.images)} images" if is_done else progress(step, total)]
        if is_stopped and not is_done:
            parts[0] = f"Stopped after s{parts[0][1:]}"
        elif step < total:
            parts[0] += time_left(self.seconds, max(step, 1), total)
        if found:
            parts.append(f"{len(found)} log-likelihoods")
        parts += [self.settings.model, f"seed {self.settings.seed}", f"{self.seconds:.1f} s"]
        parts.append(f"{self.frame.nfe} evaluations of the score")
        if self.frame.acceptance is not None:
            parts.append(f"acceptance {self.frame.acceptance:.2f}")
            if self.frame.acceptance < FEW_ACCEPTED:
                parts.append(WARNING)
        return " · ".join(parts)


def time_left(seconds: float, done: int, total: int) -> str:
    """What to write after the seconds that ``done`` of ``total`` equal parts of a run took.

    >>> time_left(3.0, 1, 5), time_left(100.0, 1, 5)
    (', about 12 s left', ', about 7 min left')
    """
    left = math.ceil(seconds / done * (total - done))
    return f", about {left} s left" if left < 120 else f", about {round(left / 60)} min left"


def draw(ebm: EBM, settings: RunSettings, with_likelihoods: bool = False) -> Iterator[SampleRun]:
    """Draw images: the run after every step, and after every batch of log-likelihoods if the
    images get theirs."""
    begin = time.perf_counter()
    past: tuple[Image.Image, ...] = ()
    every = math.ceil(settings.num_steps / (MAX_FRAMES - 1))  # the last step is a frame too
    steps = {SAMPLERS[settings.sampler].counts: settings.num_steps}
    for frame in ebm.iterate_sample(settings.num_images, settings.sampler, settings.seed, **steps):
        images, seconds = ebm.to_images(frame.x), time.perf_counter() - begin
        run = SampleRun(settings, images, frame, seconds, past, () if with_likelihoods else None)
        yield run
        if (frame.step - 1) % every == 0:
            past = (*past, render(images, min_pixels=1))
    if with_likelihoods:
        for batch in likelihood_batches(ebm, run.images, settings.seed):
            seconds = time.perf_counter() - begin
            run = replace(run, likelihoods=(*run.likelihoods, *batch), seconds=seconds)
            yield run


def likelihood_batches(ebm: EBM, images: Tensor, seed: int) -> Iterator[list[ImageLikelihood]]:
    """Log-likelihoods of images (B, C, H, W) in their order, some at a time.

    Args:
        seed: of the dequantisation noise.
    """
    num_dims = images[0].numel()
    for start in range(0, len(images), BATCH_SIZE):
        batch = images[start : start + BATCH_SIZE].repeat_interleave(REPEATS, 0)
        found = ebm.log_prob(batch, seed=mixed_seed(seed, start))
        parts = zip(found.log_prob.split(REPEATS), found.error.split(REPEATS), strict=True)
        means = [
            mean_of(found._replace(log_prob=values, error=errors), ebm.default_estimator, num_dims)
            for values, errors in parts
        ]
        yield [ImageLikelihood(number, *mean[:3]) for number, mean in enumerate(means, start + 1)]


def table(likelihoods: tuple[ImageLikelihood, ...] | None) -> list[list[float]]:
    """Rows under ``HEADERS``, rounded for the eye."""
    return [
        [number, round(log_prob, 2), round(error, 2), round(bits, 4)]
        for number, log_prob, error, bits in likelihoods or ()
    ]

"""A run of a sampler: the images and where it stands, after every step."""

import json
import re
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

from PIL import Image
from torch import Tensor

from ebm_app.image_models.ebm import EBM
from ebm_app.sampling.samplers import Frame

from ..buttons import RUNNING, time_left
from ..shared import Load, render
from .animation import is_kept
from .likelihoods import ImageLikelihood, likelihood_batches
from .settings import PNG_KEY, RunSettings

#: a mean acceptance below which the chains hardly move
FEW_ACCEPTED = 0.1
WARNING = (
    f"Fewer than {FEW_ACCEPTED:.0%} of the moves are accepted, so that the images may be far from "
    "the model's: take more steps or another sampler"
)


@dataclass(frozen=True)
class SampleRun:
    """A run after ``step`` of ``num_steps`` steps.

    Args:
        images: (B, C, H, W) in [0, 1], on the levels of the model.
        caption: where the run stands and what it cost.
        past: grids of the images after some of the earlier steps, none of their pixels repeated.
        likelihoods: of the first images, or of all of them.
    """

    settings: RunSettings
    images: Tensor
    step: int
    num_steps: int
    caption: str
    past: tuple[Image.Image, ...] = ()
    likelihoods: tuple[ImageLikelihood, ...] = ()

    @property
    def text(self) -> str:
        """JSON of the settings and the step."""
        return json.dumps({**asdict(self.settings), "step": self.step})

    @property
    def stem(self) -> str:
        """The name of its files, without the ending; an unfinished run's has the step."""
        parts = [self.settings.model, self.settings.sampler, f"seed{self.settings.seed}"]
        if self.step < self.num_steps:
            parts.append(f"step{self.step}")
        return "-".join(re.sub(r"[^\w.]+", "-", part).strip("-.") for part in parts)

    def grid(self) -> Image.Image:
        """The images in one picture, which carries the settings into a PNG."""
        picture = render(self.images)
        picture.info[PNG_KEY] = self.text
        return picture


def generate(
    load: Load, settings: RunSettings, with_likelihoods: bool = False
) -> Iterator[SampleRun]:
    """Draw images: the run after every step of the sampler, then after every batch of
    log-likelihoods.

    Whoever stops iterating stops the sampler, and keeps the last run.

    Args:
        load: the model of a name. with_likelihoods: whether the images get theirs.
    """
    ebm = load(settings.model)
    begin = time.perf_counter()
    past: tuple[Image.Image, ...] = ()
    for frame in ebm.iterate_sample(
        settings.num_images, settings.sampler, settings.seed, num_steps=settings.num_steps
    ):
        images = ebm.to_images(frame.x)
        text = caption(frame, label(settings), time.perf_counter() - begin)
        run = SampleRun(settings, images, frame.step, frame.num_steps, text, past)
        yield run
        if is_kept(frame.step, frame.num_steps):
            past = (*past, render(images, min_pixels=1))
    if with_likelihoods:
        yield from add_likelihoods(ebm, run)


def add_likelihoods(ebm: EBM, run: SampleRun) -> Iterator[SampleRun]:
    """The run with the log-likelihoods of more and more images, at last of all."""
    text, num, begin = run.caption, len(run.images), time.perf_counter()
    for batch in likelihood_batches(ebm, run.images, run.settings.seed):
        run = replace(run, likelihoods=(*run.likelihoods, *batch))
        done = len(run.likelihoods)
        left = time_left(time.perf_counter() - begin, done, num)
        yield replace(run, caption=f"{RUNNING} {done} of {num} log-likelihoods{left} · {text}")
    yield replace(run, caption=f"{text} · log-likelihoods at eps {ebm.config.eps:g}")


def label(settings: RunSettings) -> str:
    """Which run it is."""
    return f"{settings.model} · seed {settings.seed}"


def caption(frame: Frame, label: str, seconds: float) -> str:
    """Where a run stands, what it cost so far and how long it will take; ``label`` says which run.
    Where few moves are accepted, a warning."""
    done = frame.step == frame.num_steps
    parts = [f"{len(frame.x)} images" if done else f"{RUNNING} {frame.step} of {frame.num_steps}"]
    parts += [label, f"{seconds:.1f} s{time_left(seconds, frame.step, frame.num_steps)}"]
    parts.append(f"{frame.nfe} evaluations of the score")
    if frame.acceptance is not None:
        parts.append(f"acceptance {frame.acceptance:.2f}")
        if frame.acceptance < FEW_ACCEPTED:
            parts.append(WARNING)
    return " · ".join(parts)

"""A run of the Generate tab: what it has drawn so far, step by step."""

import json
import re
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

from PIL import Image
from torch import Tensor

from ebm_app.ebm import EBM
from ebm_app.sampling.samplers import Frame

from ..shared import Load, render
from .animation import is_kept
from .likelihoods import Score, score_batches
from .settings import PNG_KEY, RunSettings


@dataclass(frozen=True)
class Run:
    """A run after ``step`` of ``num_steps`` steps.

    Args:
        images: (B, C, H, W) in [0, 1], on the levels of the model.
        caption: where the run stands and what it cost.
        past: sheets of the images after some of the earlier steps, none of their pixels repeated.
        scores: of the first images, or of all of them.
    """

    settings: RunSettings
    images: Tensor
    step: int
    num_steps: int
    caption: str
    past: tuple[Image.Image, ...] = ()
    scores: tuple[Score, ...] = ()

    @property
    def text(self) -> str:
        """JSON of the settings and the step."""
        return json.dumps({**asdict(self.settings), "step": self.step})

    @property
    def stem(self) -> str:
        """The name of its files, without the ending; it tells the step of an unfinished run."""
        parts = [self.settings.model, self.settings.sampler, f"seed{self.settings.seed}"]
        if self.step < self.num_steps:
            parts.append(f"step{self.step}")
        return "-".join(re.sub(r"[^\w.]+", "-", part).strip("-.") for part in parts)

    def grid(self) -> Image.Image:
        """The images in one picture, which carries the settings into a PNG."""
        picture = render(self.images)
        picture.info[PNG_KEY] = self.text
        return picture


def generate(load: Load, settings: RunSettings, scored: bool = False) -> Iterator[Run]:
    """Draw images: the run after every step of the sampler, then after every batch of scores.

    Whoever stops iterating stops the sampler, and keeps the last run.

    Args:
        load: the model of a name. scored: whether the images get their log-likelihoods.
    """
    ebm = load(settings.model)
    begin = time.perf_counter()
    past: tuple[Image.Image, ...] = ()
    for frame in ebm.iterate_sample(
        settings.num_images, settings.sampler, settings.seed, num_steps=settings.num_steps
    ):
        images = ebm.to_images(frame.x)
        text = caption(frame, label(settings), time.perf_counter() - begin)
        run = Run(settings, images, frame.step, frame.num_steps, text, past)
        yield run
        if is_kept(frame.step, frame.num_steps):
            past = (*past, render(images, min_pixels=1))
    if scored:
        yield from add_scores(ebm, run)


def add_scores(ebm: EBM, run: Run) -> Iterator[Run]:
    """The run with more and more scores, at last with all of them."""
    text, num = run.caption, len(run.images)
    for scores in score_batches(ebm, run.images, run.settings.seed):
        run = replace(run, scores=(*run.scores, *scores))
        yield replace(run, caption=f"Score {len(run.scores)} of {num} · {text}")
    yield replace(run, caption=f"{text} · scored at eps {ebm.config.eps:g}")


def label(settings: RunSettings) -> str:
    """Which run it is."""
    return f"{settings.model} · seed {settings.seed}"


def caption(frame: Frame, label: str, seconds: float) -> str:
    """Where a run stands and what it cost so far; ``label`` says which run."""
    done = frame.step == frame.num_steps
    parts = [f"{len(frame.x)} images" if done else f"Step {frame.step} of {frame.num_steps}"]
    parts += [label, f"{seconds:.1f} s", f"{frame.nfe} evaluations of the score"]
    if frame.acceptance is not None:
        parts.append(f"acceptance {frame.acceptance:.2f}")
    return " · ".join(parts)

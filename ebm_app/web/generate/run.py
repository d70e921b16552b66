"""A run of a sampler: the images and where it stands, after every step, and their
log-likelihoods."""

import csv
import io
import json
import re
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from zipfile import ZipFile

from PIL import Image
from PIL.PngImagePlugin import PngInfo
from torch import Tensor

from ebm_app.data.png import to_picture, to_uint8
from ebm_app.image_models.ebm import EBM
from ebm_app.numerics.tensors import mixed_seed
from ebm_app.sampling.samplers import SAMPLERS, Frame

from ..shared import MeanLikelihood, mean_of, progress, render

#: where a PNG keeps the settings, as JSON
PNG_KEY = "ebm_app"
#: dequantisation draws of an image, and images whose log-likelihoods are found together
REPEATS, BATCH_SIZE = 4, 8
HEADERS = ("Image", "Log p (nats)", "± (nats)", "Bits per dim")
#: a mean acceptance below which the chains hardly move
FEW_ACCEPTED = 0.1
WARNING = (
    f"Fewer than {FEW_ACCEPTED:.0%} of the moves are accepted, so that the images may be far from "
    "the model's: take more steps or another sampler"
)


@dataclass(frozen=True)
class RunSettings:
    """What fixes the images of a run; without ``labels`` there is no guidance."""

    model: str
    sampler: str
    num_images: int
    num_steps: int
    seed: int
    labels: tuple[int, ...] | str = ()
    guidance: float = 1.0


@dataclass(frozen=True)
class SampleRun:
    """A run after some of its steps.

    Args:
        images: (B, C, H, W) in [0, 1], on the levels of the model.
        frame: the sampler's state. seconds: since the run began.
        likelihoods: of the first images, or of all of them.
    """

    settings: RunSettings
    images: Tensor
    frame: Frame
    seconds: float
    likelihoods: tuple[MeanLikelihood, ...] = ()

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

    def table(self) -> list[list[float]]:
        """Rows under ``HEADERS``, rounded for the eye."""
        return [[number, *found.rounded()[:3]] for number, found in enumerate(self.likelihoods, 1)]

    def caption(self) -> str:
        """Where the run stands and what it cost so far. Where few moves are accepted, a
        warning."""
        is_done = self.frame.step == self.frame.num_steps
        drawn = f"{len(self.images)} images"
        parts = [drawn if is_done else progress(self.frame.step, self.frame.num_steps)]
        if self.likelihoods:
            parts.append(f"{len(self.likelihoods)} log-likelihoods")
        if self.settings.labels:
            labels = self.settings.labels
            named = "any class" if isinstance(labels, str) else ", ".join(map(str, labels))
            parts.append(f"of {named} with guidance {self.settings.guidance:g}")
        parts += [self.settings.model, f"seed {self.settings.seed}", f"{self.seconds:.1f} s"]
        parts.append(f"{self.frame.nfe} evaluations of the score")
        if self.frame.acceptance is not None:
            parts.append(f"acceptance {self.frame.acceptance:.2f}")
            if self.frame.acceptance < FEW_ACCEPTED:
                parts.append(WARNING)
        return " · ".join(parts)


def draw(ebm: EBM, settings: RunSettings, with_likelihoods: bool = False) -> Iterator[SampleRun]:
    """Draw images: the run after every step, and after every batch of log-likelihoods if the
    images get theirs."""
    begin = time.perf_counter()
    steps = {SAMPLERS[settings.sampler].counts: settings.num_steps}
    if settings.labels:
        steps |= {"labels": settings.labels, "guidance": settings.guidance}
    for frame in ebm.iterate_sample(settings.num_images, settings.sampler, settings.seed, **steps):
        images = ebm.to_images(frame.x)
        run = SampleRun(settings, images, frame, time.perf_counter() - begin)
        yield run
    if with_likelihoods:
        for batch in likelihood_batches(ebm, run.images, settings.seed):
            seconds = time.perf_counter() - begin
            run = replace(run, likelihoods=(*run.likelihoods, *batch), seconds=seconds)
            yield run


def likelihood_batches(ebm: EBM, images: Tensor, seed: int) -> Iterator[list[MeanLikelihood]]:
    """Log-likelihoods of images (B, C, H, W) in their order, some at a time.

    Args:
        seed: of the dequantisation noise.
    """
    for start in range(0, len(images), BATCH_SIZE):
        batch = images[start : start + BATCH_SIZE].repeat_interleave(REPEATS, 0)
        found = ebm.log_prob(batch, seed=mixed_seed(seed, start))
        parts = zip(found.log_prob.split(REPEATS), found.error.split(REPEATS), strict=True)
        yield [
            mean_of(
                found._replace(log_prob=values, error=errors),
                ebm.default_estimator,
                images[0].numel(),
            )
            for values, errors in parts
        ]


def write_files(run: SampleRun, folder: Path) -> tuple[str, str]:
    """Write the grid of a run as a PNG, and an archive of it, of every image, of the settings and
    of the log-likelihoods; their paths."""
    grid, archive = (folder / f"{run.stem}{end}" for end in (".png", ".zip"))
    run.grid().save(grid, pnginfo=_info(run.text))
    with ZipFile(archive, "w") as file:
        file.write(grid, "grid.png")
        file.writestr("settings.json", run.text + "\n")
        for number, pixels in enumerate(to_uint8(run.images), 1):
            text = json.dumps({**json.loads(run.text), "image": number})
            with io.BytesIO() as data:
                to_picture(pixels).save(data, "PNG", pnginfo=_info(text))
                file.writestr(f"{number:02d}.png", data.getvalue())
        if run.likelihoods:
            with io.StringIO(newline="") as rows:
                csv.writer(rows).writerows([HEADERS, *run.table()])
                file.writestr("scores.csv", rows.getvalue())
    return str(grid), str(archive)


def _info(text: str) -> PngInfo:
    info = PngInfo()
    info.add_text(PNG_KEY, text)
    return info

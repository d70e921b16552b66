"""The files of a run that a visitor can download."""

import csv
import io
import json
from pathlib import Path
from tempfile import mkdtemp
from typing import NamedTuple
from zipfile import ZipFile

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from ebm_app.data.png import to_picture, to_uint8

from ..shared import render
from .animation import save_animation
from .likelihoods import HEADERS, ImageLikelihood
from .run import SampleRun
from .settings import PNG_KEY


class RunFiles(NamedTuple):
    """Paths: the grid, the animation, the settings, and an archive of these and every image."""

    grid: str
    animation: str
    settings: str
    archive: str


def write_files(run: SampleRun, cache: str | Path) -> RunFiles:
    """Write the files of a run into a new folder below ``cache``."""
    Path(cache).mkdir(parents=True, exist_ok=True)
    base = Path(mkdtemp(dir=cache)) / run.stem
    grid, animation, settings, archive = (
        base.with_name(base.name + end) for end in (".png", "-animation.png", ".json", ".zip")
    )
    run.grid().save(grid, pnginfo=_info(run.text))
    save_animation([*run.past, render(run.images, 1)], animation, _info(run.text))
    settings.write_text(run.text + "\n", encoding="utf-8")
    with ZipFile(archive, "w") as file:
        file.write(grid, "grid.png")
        file.write(animation, "animation.png")
        file.write(settings, "settings.json")
        for name, data in _images(run):
            file.writestr(name, data)
        if run.likelihoods:
            file.writestr("scores.csv", _csv(run.likelihoods))
    return RunFiles(*map(str, (grid, animation, settings, archive)))


def _images(run: SampleRun) -> list[tuple[str, bytes]]:
    settings = json.loads(run.text)
    pictures = [to_picture(pixels) for pixels in to_uint8(run.images)]
    return [
        (f"{number:02d}.png", _png(picture, json.dumps({**settings, "image": number})))
        for number, picture in enumerate(pictures, 1)
    ]


def _png(picture: Image.Image, text: str) -> bytes:
    with io.BytesIO() as file:
        picture.save(file, "PNG", pnginfo=_info(text))
        return file.getvalue()


def _info(text: str) -> PngInfo:
    info = PngInfo()
    info.add_text(PNG_KEY, text)
    return info


def _csv(likelihoods: tuple[ImageLikelihood, ...]) -> str:
    with io.StringIO(newline="") as file:
        csv.writer(file).writerows([HEADERS, *likelihoods])
        return file.getvalue()

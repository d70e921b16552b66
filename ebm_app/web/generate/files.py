"""The files of a run that a visitor can download."""

import csv
import io
import json
from pathlib import Path
from typing import NamedTuple
from zipfile import ZipFile

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from ebm_app.data.png import to_picture, to_uint8

from ..shared import render
from .run import HEADERS, SampleRun
from .settings import PNG_KEY

#: of an animation: pixels in a row after enlarging, and how long a frame and the last one stay
MAX_ENLARGED, FRAME_MS, LAST_FRAME_MS = 360, 100, 2000


class RunFiles(NamedTuple):
    """Paths: the grid, the animation, the settings, and an archive of these and every image."""

    grid: str
    animation: str
    settings: str
    archive: str


def write_files(run: SampleRun, folder: Path) -> RunFiles:
    """Write the files of a run into a folder."""
    ends = (".png", "-animation.png", ".json", ".zip")
    grid, animation, settings, archive = (folder / f"{run.stem}{end}" for end in ends)
    run.grid().save(grid, pnginfo=_info(run.text))
    save_animation([*run.past, render(run.images, 1)], animation, _info(run.text))
    settings.write_text(run.text + "\n", encoding="utf-8")
    with ZipFile(archive, "w") as file:
        file.write(grid, "grid.png")
        file.write(animation, "animation.png")
        file.write(settings, "settings.json")
        for number, pixels in enumerate(to_uint8(run.images), 1):
            text = json.dumps({**json.loads(run.text), "image": number})
            with io.BytesIO() as data:
                to_picture(pixels).save(data, "PNG", pnginfo=_info(text))
                file.writestr(f"{number:02d}.png", data.getvalue())
        if run.likelihoods:
            with io.StringIO(newline="") as rows:
                csv.writer(rows).writerows([HEADERS, *run.likelihoods])
                file.writestr("scores.csv", rows.getvalue())
    return RunFiles(*map(str, (grid, animation, settings, archive)))


def save_animation(sheets: list[Image.Image], path: Path, info: PngInfo) -> None:
    """Write sheets of one size as the frames of an endless animation that rests on the last.

    Pixels are repeated, none is blended; no colour is lost.
    """
    factor = max(1, MAX_ENLARGED // sheets[0].width)
    size = tuple(side * factor for side in sheets[0].size)
    first, *rest = [sheet.resize(size, Image.Resampling.NEAREST) for sheet in sheets]
    first.save(
        path,
        save_all=True,
        append_images=rest,
        duration=[FRAME_MS] * len(rest) + [LAST_FRAME_MS],
        loop=0,
        pnginfo=info,
    )


def _info(text: str) -> PngInfo:
    info = PngInfo()
    info.add_text(PNG_KEY, text)
    return info

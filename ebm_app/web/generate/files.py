"""The files of a run that a visitor can download."""

import csv
import io
import json
from pathlib import Path
from zipfile import ZipFile

from PIL.PngImagePlugin import PngInfo

from ebm_app.data.png import to_picture, to_uint8

from .run import HEADERS, PNG_KEY, SampleRun


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

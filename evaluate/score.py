"""Write the log-likelihood of each image in a folder to a CSV file.

python evaluate/score.py digits photos --output scores.csv

The table has one row per image: file, log_prob in nats, its error (stderr), bits_per_dim, and
p_value if the model has an anomaly detector. Rows are written after each batch. Images must have
the size, channels and grey levels of the model, or be converted with --resize.
"""

import csv
import math
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from ebm_app.anomaly import AnomalyDetector, UnfittedError
from ebm_app.command_line import (
    CommonFlags,
    ImageFileFlags,
    ModelFlag,
    Positional,
    argument,
    parse,
    run_script,
)
from ebm_app.data.files import SUFFIXES, is_image, list_files
from ebm_app.data.levels import ImageFormat
from ebm_app.data.pictures import read_images
from ebm_app.ebm import EBM
from ebm_app.likelihood.bits import images_per_batch
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import BatchSize, Draws, configuration, setting
from ebm_app.utils.files import name_in_errors
from ebm_app.utils.processes import resolve_device

COLUMNS = ["file", "log_prob", "stderr", "bits_per_dim"]


@configuration(kw_only=True)
class Arguments(CommonFlags, ImageFileFlags, ModelFlag):
    folder: Positional[Path] = argument("folder of images, searched recursively")
    output: Path = setting("CSV file to write", Path("scores.csv"))
    estimator: str | None = setting("estimator of log p; if not given, the model's", None)
    repeats: Draws = setting("dequantisation draws per image", 1)
    batch_size: BatchSize | None = setting(
        "images per batch, after which rows are written; if not given, as many as have 2^14 "
        "values in all draws on a CPU, or 2^17 on a GPU",
        None,
    )


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Score the images of a folder; return their number and mean bits per dim."""
    args = parse(Arguments, __doc__, argv)
    check_folder(args.folder)

    ebm = EBM.from_pretrained(args.model, resolve_device(args.device))
    detector = load_detector(args.model, ebm)
    columns = [*COLUMNS, "p_value"] if detector else COLUMNS
    files = list_images(args.folder)
    num_dims = math.prod(ebm.config.image_shape) * args.repeats
    size, rows = args.batch_size or images_per_batch(num_dims, ebm.device), []
    for begin in tqdm(range(0, len(files), size), desc="score"):
        images = read_levels(files, begin, size, ebm.config, args)
        names = [name_of(files[number], args.folder) for number in images]
        values = score(ebm, images, args)
        if detector:
            values.append(detector.p_value(torch.stack([*images.values()])).tolist())
        batch = [*zip(names, *values, strict=True)]
        write_rows(args.output, batch if rows else [columns, *batch], "a" if rows else "w")
        rows += batch
    return {
        "output": str(args.output),
        "images": len(rows),
        "estimator": args.estimator or ebm.default_estimator,
        "bits_per_dim": sum(row[3] for row in rows) / len(rows),
    }


def check_folder(folder: str | Path) -> None:
    """Raise a UserError for a path that is not a folder."""
    if not Path(folder).is_dir():
        raise UserError(f"'{folder}' is not a folder. Use the path of a folder of images.")


def read_levels(
    files: Sequence[Path], begin: int, num: int, form: ImageFormat, args: ImageFileFlags
) -> dict[int, Tensor]:
    """Return the levels (C, H, W) of ``num`` files from index ``begin``, by index."""
    chosen = files[begin : begin + num]
    levels = read_images(chosen, form.image_shape, form.num_levels, args.resize)
    return dict(enumerate(levels, begin))


def list_images(folder: Path) -> list[Path]:
    """Return the image files below a folder, at least one. Print the number of other files."""
    files = list_files(folder)
    images = [folder / name for name in files if is_image(name)]
    kinds = ", ".join(suffix[1:] for suffix in SUFFIXES)
    if not images:
        raise UserError(f"'{folder}' has {len(files)} files, but no images. Use {kinds} files.")
    if others := len(files) - len(images):
        print(f"Skipped {others} files that are not {kinds}.", file=sys.stderr)
    return images


def name_of(file: Path, folder: Path) -> str:
    """Return a path relative to a folder, with bytes that are not UTF-8 escaped."""
    return os.fsencode(file.relative_to(folder).as_posix()).decode("utf-8", "backslashreplace")


def load_detector(model: str, ebm: EBM) -> AnomalyDetector | None:
    """Return the anomaly detector in the folder of a model, or None if there is none."""
    with suppress(UnfittedError):
        return AnomalyDetector(ebm).load(model)
    return None


def write_rows(path: Path, rows: Sequence[Sequence[Any]], mode: str) -> None:
    """Write a new table (mode "w"), or append rows to it (mode "a")."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with name_in_errors(path), path.open(mode, encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerows(rows)


def score(ebm: EBM, images: dict[int, Tensor], args: Arguments) -> list[list[float]]:
    """Return the columns after the file name, for a batch of images.

    The noise of an image only depends on the seed and its number, so results do not depend on the
    batch size. Without indices, the first batch is also compared with "elbo".

    Args:
        images: number -> levels (C, H, W).
    """
    batch, indices = torch.stack([*images.values()]), None if 0 in images else [*images]
    result = ebm.likelihood(batch, args.estimator, args.repeats, args.seed, indices)
    return [each.tolist() for each in (result.log_prob, result.error, result.bits_per_dim)]


if __name__ == "__main__":
    raise SystemExit(run_script(main))

"""Detect unusual images in a folder with a model, or fit the anomaly detector of a model.

ebm anomaly digits photos --output anomaly.csv
ebm anomaly runs/mine --fit 600 --data_root data

The table has one row per image, sorted by p-value: file, p_value, and whether the image is unusual
at --false_alarm_rate (yes or no). Images must have the size, channels and grey levels of the
model, or be converted with the flags --resize, --grayscale, --rgb and --round_levels. With --fit,
a detector is fitted to the first validation images of the model's data set and saved.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ebm_app.cli.command_line import (
    CommonFlags,
    ConversionFlags,
    ModelFlag,
    Positional,
    parse,
)
from ebm_app.cli.score import list_images, name_of, write_rows
from ebm_app.folders import find_folder
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import Count, Fraction, configuration, setting

if TYPE_CHECKING:
    from ebm_app.anomaly import AnomalyDetector

COLUMNS = ("file", "p_value", "unusual")


@configuration(kw_only=True)
class Arguments(CommonFlags, ConversionFlags, ModelFlag):
    folder: Positional[Path | None] = setting("folder of images, searched recursively", None)
    output: Path = setting("CSV file to write", Path("anomaly.csv"))
    false_alarm_rate: Fraction = setting("share of ordinary images that may be flagged", 0.05)
    fit: Count = setting("number of validation images to fit a detector to", 0)
    data_root: str = setting("folder of the data sets, in torchvision's layout", "data")
    output_dir: Path | None = setting("folder for the detector; if not given, the model's", None)


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Fit a detector, or test the images of a folder; return the metrics."""
    args = parse(Arguments, __doc__, argv)
    # slow to import, and not needed for --help
    import torch

    from ebm_app.anomaly import AnomalyDetector
    from ebm_app.data.pictures import convert_image, read_image
    from ebm_app.utils.processes import resolve_device

    if args.folder is None and not args.fit:
        raise UserError("Expected a folder of images to test, or --fit N to fit a detector.")
    detector = AnomalyDetector(args.model, device=resolve_device(args.device))
    if args.fit:
        return fit(detector, args)
    threshold, config = detector.threshold(args.false_alarm_rate), detector.model.config
    files, allowed = list_images(args.folder), args.conversions()
    levels = [convert_image(read_image(file), str(file), config, allowed) for file in files]
    result = detector.examine(torch.stack(levels))
    is_unusual = (result.score < threshold).tolist()
    names = [name_of(file, args.folder) for file in files]
    words = ["yes" if unusual else "no" for unusual in is_unusual]
    rows = sorted(zip(names, result.p_value.tolist(), words, strict=True), key=lambda row: row[1])
    write_rows(args.output, rows, "w", COLUMNS)
    return {
        "output": str(args.output),
        "images": len(files),
        "unusual": sum(is_unusual),
        "false_alarm_rate": args.false_alarm_rate,
    }


def fit(detector: "AnomalyDetector", args: Arguments) -> dict[str, Any]:
    """Fit a detector to validation images of the model's data set, and save it."""
    from ebm_app.evaluation.held_out import images_for

    config = detector.model.config
    levels = images_for(config, config.dataset, args.data_root).validation[: args.fit]
    folder = find_folder(args.model) if args.output_dir is None else args.output_dir
    folder.mkdir(parents=True, exist_ok=True)
    about = {"dataset": config.dataset, "split": "validation", "num_images": len(levels)}
    detector.fit(levels).save(folder, **about)
    return {"output_dir": str(folder), **about, "smallest_p_value": detector.smallest_p_value}

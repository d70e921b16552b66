"""Detect unusual images in a folder, or fit a detector to a folder of ordinary images.

ebm anomaly digits photos --output_dir runs/photos
ebm anomaly --fit ordinary --output_dir runs/detector
ebm anomaly runs/detector photos

anomaly.csv has one row per image, sorted by p-value: file, p_value, q_value, and whether the image
is unusual (yes or no). If all images with q-values up to --alpha are flagged, as by default, that
share of them is ordinary on average. maps/ has each unusual image next to its anomaly map. Images
must have the size, channels and grey levels of the model, or be converted with the flags --resize,
--grayscale, --rgb and --round_levels. With --fit, the model is saved with a detector, calibrated
by five folds of the images. Without a model, --fit uses a bundled one: digits for grey images of
8x8 pixels, mnist for other grey images and cifar10 for colour images.
"""

import sys
from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm.auto import tqdm

from ebm_app.cli.command_line import CommonFlags, ImageFileFlags, Positional, parse
from ebm_app.cli.score import check_folder, list_images, name_of, read_levels, write_rows
from ebm_app.folders import CONFIG_FILE, find_folder
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import Fraction, configuration, setting

if TYPE_CHECKING:
    from ebm_app.anomaly import AnomalyDetector

COLUMNS = ("file", "p_value", "q_value", "unusual")
#: Images between updates of the progress bar
BATCH_SIZE = 32
#: Value of a map, in standard deviations above ordinary images, that is drawn white
WHITE = 6.0


@configuration(kw_only=True)
class Arguments(CommonFlags, ImageFileFlags):
    model: Positional[str | None] = setting("model: folder, bundled name or hub id", None)
    folder: Positional[Path | None] = setting("folder of images, searched recursively", None)
    output_dir: Path = setting("folder to write to", Path("runs/anomaly"))
    alpha: Fraction = setting("expected share of ordinary images among the flagged ones", 0.05)
    false_alarm_rate: Fraction | None = setting(
        "share of ordinary images to flag, instead of --alpha", None
    )
    fit: Path | None = setting("folder of ordinary images to fit a detector to", None)


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Fit a detector, or test the images of a folder; return the metrics."""
    args = parse(Arguments, __doc__, argv)
    if not args.fit and not (args.model and args.folder):
        raise UserError("Expected a model and a folder of images, or --fit FOLDER.")
    if args.fit and args.folder:
        raise UserError("--fit fits a detector. Test the images of a folder in a second command.")
    folder = args.fit or args.folder
    check_folder(folder)
    # slow to import, and not needed for --help
    from ebm_app.anomaly import AnomalyDetector
    from ebm_app.utils.processes import resolve_device

    files = list_images(folder)
    detector = AnomalyDetector(
        args.model or bundled_model(files), device=resolve_device(args.device)
    )
    return (fit if args.fit else detect)(args, detector, files)


def detect(args: Arguments, detector: "AnomalyDetector", files: Sequence[Path]) -> dict[str, Any]:
    """Write the table and the maps of images; return the metrics."""
    import numpy as np
    import torch
    from scipy.stats import false_discovery_control

    from ebm_app.data.levels import to_display
    from ebm_app.data.pictures import image_grid, save_image

    rate = args.false_alarm_rate or args.alpha
    detector.threshold(rate)  # raises if there are too few calibration images
    config, rows = detector.ebm.config, []
    for begin in tqdm(range(0, len(files), BATCH_SIZE), desc="anomaly"):
        levels = read_levels(files, begin, BATCH_SIZE, config, args)
        if levels:
            batch = torch.stack([*levels.values()])
            findings = detector.examine(batch)
            names = [name_of(files[number], args.folder) for number in levels]
            rows += zip(names, findings.p_value.tolist(), batch, findings.maps, strict=True)
    if not rows:
        raise UserError(f"No image in '{args.folder}' could be read. Use another folder.")
    rows.sort(key=lambda row: row[1])
    p_values = np.array([row[1] for row in rows])
    q_values = false_discovery_control(p_values)
    is_unusual = (p_values if args.false_alarm_rate else q_values) <= rate
    if not is_unusual.any():
        lowest = ceil(100 * q_values[0]) / 100
        print(
            f"warning: No image is flagged. The lowest --alpha that flags one is {lowest}. To "
            "lower it, fit the detector to more images.",
            file=sys.stderr,
        )
    words = ["yes" if unusual else "no" for unusual in is_unusual]
    table = zip((row[0] for row in rows), p_values, q_values.round(6), words, strict=True)
    write_rows(args.output_dir / "anomaly.csv", [*table], "w", COLUMNS)
    for name, _, levels, excess in rows[: is_unusual.sum()]:
        image = to_display(levels, config.num_levels)
        brightness = (torch.from_numpy(excess) / WHITE).clamp(0, 1).expand_as(image)
        grid = image_grid(torch.stack([image, brightness]))
        save_image(grid, args.output_dir / "maps" / f"{name}.png")
    return {
        "output_dir": str(args.output_dir),
        "images": len(rows),
        "bad": len(files) - len(rows),
        "unusual": int(is_unusual.sum()),
        "false_alarm_rate" if args.false_alarm_rate else "alpha": rate,
    }


def fit(args: Arguments, detector: "AnomalyDetector", files: Sequence[Path]) -> dict[str, Any]:
    """Fit a detector to ordinary images, and save it with its model."""
    import torch  # slow to import

    folder = args.output_dir
    levels = read_levels(files, 0, len(files), detector.ebm.config, args)
    images = torch.stack([*levels.values()]) if levels else []
    about = {"dataset": f"folder:{args.fit}", "num_images": len(images)}
    is_other = folder.resolve() != find_folder(detector.model).resolve()
    if is_other and (folder / CONFIG_FILE).exists():
        raise UserError(f"{folder} already holds a model. Use another --output_dir.")
    detector.fit(images)
    if is_other:
        detector.ebm.save_pretrained(folder)
    detector.save(folder, **about)
    figures = {"model": detector.model, **about, "smallest_p_value": detector.smallest_p_value}
    return {"output_dir": str(folder), **figures}


def bundled_model(files: Sequence[Path]) -> str:
    """Return the name of the bundled model for images like the first of ``files``."""
    from ebm_app.data.pictures import read_image

    image = read_image(files[0])
    if image.mode == "RGB":
        return "cifar10"
    return "digits" if image.size == (8, 8) else "mnist"

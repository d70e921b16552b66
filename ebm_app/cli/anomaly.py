"""Test whether the images in a folder are unusual, or fit a detector to a folder.

ebm anomaly digits photos --output_dir runs/photos
ebm anomaly digits --fit ordinary --output_dir runs/detector
ebm anomaly runs/detector photos

anomaly.csv has one row per image, sorted by p-value: file, p_value, and whether the image is
unusual (yes or no). The fraction --alpha of ordinary images is flagged. maps/ has each
unusual image next to its anomaly map, which is white where the image is most unusual. Images must
have the size, channels and grey levels of the model, or be converted with --resize. --fit fits a
detector to ordinary images and saves it with the model; images in a second folder are then tested
with it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm.auto import tqdm

from ebm_app.cli.command_line import CommonFlags, ImageFileFlags, ModelFlag, Positional, parse
from ebm_app.cli.score import (
    check_folder,
    list_images,
    name_of,
    read_levels,
    write_rows,
)
from ebm_app.folders import CONFIG_FILE, find_folder
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import Fraction, configuration, setting

if TYPE_CHECKING:
    from ebm_app.anomaly import AnomalyDetector
    from ebm_app.ebm import EBM

COLUMNS = ("file", "p_value", "unusual")
#: Images between updates of the progress bar
BATCH_SIZE = 32
#: Value of a map that is drawn white; nine in ten ordinary images are below 1 everywhere
WHITE = 4.0


@configuration(kw_only=True)
class Arguments(CommonFlags, ImageFileFlags, ModelFlag):
    folder: Positional[Path | None] = setting("folder of images, searched recursively", None)
    output_dir: Path = setting("folder to write to", Path("runs/anomaly"))
    alpha: Fraction = setting(
        "false-alarm rate: fraction of ordinary images that are flagged", 0.05
    )
    fit: Path | None = setting("folder of ordinary images to fit a detector to", None)


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Fit a detector, test the images of a folder, or both; return the metrics."""
    args = parse(Arguments, __doc__, argv)
    if not (args.fit or args.folder):
        raise UserError("Expected a folder of images to test, or --fit FOLDER, or both.")
    for folder in filter(None, (args.fit, args.folder)):
        check_folder(folder)
    # slow to import, and not needed for --help
    from ebm_app.anomaly import AnomalyDetector
    from ebm_app.ebm import EBM
    from ebm_app.utils.processes import resolve_device

    device = resolve_device(args.device)
    metrics: dict[str, Any] = {"output_dir": str(args.output_dir), "model": args.model}
    if args.fit:
        detector = fit(args, EBM.from_pretrained(args.model, device), args.fit)
        metrics["fitted_images"] = len(detector.fitted_.calibration)
    else:
        detector = AnomalyDetector.from_pretrained(args.model, device=device)
    if args.folder:
        metrics |= examine(args, detector, args.folder)
    return metrics


def fit(args: Arguments, ebm: "EBM", folder: Path) -> "AnomalyDetector":
    """Fit a detector to the images of a folder, and save it with its model."""
    import torch  # slow to import

    from ebm_app.anomaly import AnomalyDetector

    is_new = args.output_dir.resolve() != find_folder(args.model).resolve()
    if is_new and (args.output_dir / CONFIG_FILE).exists():
        raise UserError(f"{args.output_dir} already holds a model. Use another --output_dir.")
    files, levels = list_images(folder), {}
    for begin in tqdm(range(0, len(files), BATCH_SIZE), desc="read"):
        levels |= read_levels(files, begin, BATCH_SIZE, ebm.config, args)
    detector = AnomalyDetector(ebm).fit(torch.stack([*levels.values()]))
    if is_new:
        ebm.save_pretrained(args.output_dir)
    detector.save(args.output_dir, dataset=f"folder:{folder}")
    return detector


def examine(args: Arguments, detector: "AnomalyDetector", folder: Path) -> dict[str, Any]:
    """Write the table and the maps of the images of a folder; return the metrics."""
    import torch  # slow to import

    from ebm_app.data.levels import to_display
    from ebm_app.data.pictures import image_grid, save_image

    detector.threshold(args.alpha)  # raises if the detector was fitted to too few images
    files, config, rows = list_images(folder), detector.ebm_.config, []
    for begin in tqdm(range(0, len(files), BATCH_SIZE), desc="anomaly"):
        levels = read_levels(files, begin, BATCH_SIZE, config, args)
        findings = detector.examine(torch.stack([*levels.values()]))
        columns = zip(levels.items(), findings.p_value.tolist(), findings.maps, strict=True)
        for (number, image), p_value, excess in columns:
            name, is_unusual = name_of(files[number], folder), p_value <= args.alpha
            rows.append((name, p_value, "yes" if is_unusual else "no"))
            if is_unusual:
                shown = to_display(image, config.num_levels)
                brightness = (torch.from_numpy(excess) / WHITE).clamp(0, 1).expand_as(shown)
                grid = image_grid(torch.stack([shown, brightness]))
                save_image(grid, args.output_dir / "maps" / f"{name}.png")
    rows.sort(key=lambda row: row[1])
    write_rows(args.output_dir / "anomaly.csv", rows, "w", COLUMNS)
    return {
        "images": len(rows),
        "unusual": sum(row[2] == "yes" for row in rows),
        "alpha": args.alpha,
    }

"""What a run left in its folder, when another begins there or when it goes back in time."""

import shutil
import sys
from pathlib import Path

from ebm_app.io import METRICS_FILE, PREVIEWS, RUN_FILE
from ebm_app.io.writing import remove_folder, replace_file
from ebm_app.models.folders import CONFIG_FILE, WEIGHTS_FILE
from ebm_app.training.checkpoint import BEST_FILE, PENDING, PREFIX, STATE, checkpoints, step_of

SET_ASIDE = "set-aside-"
#: files at the top of a run
RECORDS = (CONFIG_FILE, WEIGHTS_FILE, METRICS_FILE, RUN_FILE, "loss.png")


def remove_run(output_dir: Path) -> None:
    """Delete what a run left in ``output_dir``, and nothing else: what was set aside stays."""
    for folder in [*checkpoints(output_dir), output_dir / PREVIEWS]:
        remove_folder(folder)
    for name in RECORDS:
        (output_dir / name).unlink(missing_ok=True)


def tidy(output_dir: Path) -> None:
    """Delete what a process that was killed was writing."""
    for name in RECORDS:
        (output_dir / (name + PENDING)).unlink(missing_ok=True)
    for folder in output_dir.glob(f"{PREFIX}[0-9]*{PENDING}"):
        remove_folder(folder)


def go_back(output_dir: Path, start: Path) -> None:
    """Set aside what a run did after the checkpoint ``start``, if it has checkpoints from there
    on: they move to a folder that is a run of its own, with copies of model and records. Of
    another run's checkpoint, all that is in ``output_dir`` is set aside.

    Without such checkpoints the steps that come are the ones that a crash has lost.
    """
    is_own = start.resolve().parent == output_dir.resolve()
    step = step_of(start) if is_own else -1
    later = [
        folder
        for folder in checkpoints(output_dir)
        if step_of(folder) >= step and folder.resolve() != start.resolve()
    ]
    if not later and (is_own or not (output_dir / CONFIG_FILE).exists()):
        return
    number = 1
    while (aside := output_dir / f"{SET_ASIDE}{number}").exists():
        number += 1
    (aside / PREVIEWS).mkdir(parents=True)
    for name in RECORDS:
        if (output_dir / name).exists():
            shutil.copy2(output_dir / name, aside / name)
            if not is_own:
                (output_dir / name).unlink()
    for preview in (output_dir / PREVIEWS).glob("step-*.png"):
        number = preview.stem.removeprefix("step-")
        if number.isdigit() and int(number) > step:
            preview.rename(aside / PREVIEWS / preview.name)
    for folder in later:
        folder.rename(aside / folder.name)
    what = f"what this run did after step {step}" if is_own else "the run in this folder"
    print(f"{what} was set aside in {aside}", file=sys.stderr)


def restore_best(output_dir: Path, checkpoint: Path, has_best: bool) -> None:
    """Put the best model as of a checkpoint at the top; none, where no model was validated yet."""
    if has_best:
        replace_file(output_dir / WEIGHTS_FILE, (checkpoint / STATE / BEST_FILE).read_bytes())
        replace_file(output_dir / CONFIG_FILE, (checkpoint / CONFIG_FILE).read_bytes())
        return
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        (output_dir / name).unlink(missing_ok=True)

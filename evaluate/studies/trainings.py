"""Training runs that a study needs: each is a run of a training script, made once."""

import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ebm_app.io import RUN_FILE
from ebm_app.io.errors import UserError
from ebm_app.io.records import read_record
from ebm_app.io.run_schemas import AnyRun
from ebm_app.training.checkpoint import checkpoints


def train_once(script: Path, flags: Sequence[str], output_dir: Path) -> None:
    """Run a training script, or go on with a run that was cut off, unless it has finished.

    Raises:
        UserError: where the folder holds a run of other flags, or the script fails.
    """
    record = output_dir / RUN_FILE
    asked = [*flags, "--output_dir", str(output_dir)]
    if record.exists():
        found = read_record(AnyRun, record)
        if found["command"][1 : 1 + len(asked)] != asked:
            raise UserError(
                f"{output_dir} holds a run of other flags: give another --output_dir, or remove it"
            )
        if found["figures"]:
            return
    start = ["--overwrite_output_dir"]
    if checkpoints(output_dir):
        start = ["--resume_from_checkpoint", "latest"]
    command = [str(script), *asked, *start]
    print(shlex.join(["python", *command]), file=sys.stderr)
    if subprocess.run([sys.executable, *command], stdout=subprocess.DEVNULL).returncode:
        raise UserError(f"{script.name} failed: see its message above")

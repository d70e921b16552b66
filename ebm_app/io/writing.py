"""Writing files to the disk, whole or not at all."""

import io
import os
import shutil
import stat
from pathlib import Path
from typing import IO, TYPE_CHECKING

from ebm_app.io.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def open_to_append(path: Path) -> IO[str]:
    """A plain file to append to, made where it is missing; a link is not followed, and a pipe in
    its place never waited for."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UserError(f"{path} is not a plain file: remove it, or give another folder")
    return open(descriptor, "a", encoding="utf-8")


def replace_file(path: Path, content: bytes) -> None:
    """Write a file aside, force it to the disk and rename it: a reader finds the old one
    or the new one, complete, at whatever time of a crash. A link or a pipe in its place is
    replaced, not written to."""
    pending = path.with_name(f".{path.name}.tmp")
    pending.unlink(missing_ok=True)
    try:
        with pending.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(pending, path)
    except BaseException:
        pending.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def save_figure(figure: "Figure", path: Path, dpi: int = 110) -> None:
    """Write a figure of matplotlib as a PNG; see ``replace_file``."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=dpi)
    replace_file(path, content.getvalue())


def remove_folder(folder: Path) -> None:
    """Delete a folder, of a link the link alone; nothing where there is none."""
    if folder.is_symlink():
        folder.unlink()
    elif folder.exists():
        shutil.rmtree(folder)


def sync_folder(folder: Path) -> None:
    """Force the names in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

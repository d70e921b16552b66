"""Writing files to the disk, whole or not at all."""

import fcntl
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def replace_file(path: Path, content: bytes) -> None:
    """Write a file aside, force it to the disk and rename it: a reader finds the old one
    or the new one, complete, at whatever time of a crash. A link or a pipe in its place is
    replaced, not written to."""
    pending = path.with_name(f".{path.name}.tmp")
    with alone_in(path.parent):  # two runs may write to one folder
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


def save_figure(figure: "Figure", path: Path, dpi: int = 110) -> None:
    """Write a figure of matplotlib as a PNG; see ``replace_file``."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=dpi)
    replace_file(path, content.getvalue())


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Within it, no other run writes to a folder; its names are then forced to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a disk without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

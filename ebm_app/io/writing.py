"""Writing files to the disk, and the message where that fails."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ebm_app.io.errors import UserError

#: errors of the disk, and not of the program
REFUSALS = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM),
    *(errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP),
    *(errno.EIO, errno.ESTALE, errno.ENOENT),
)


@contextmanager
def explained_write(folder: Path, consequence: str = "") -> Iterator[None]:
    """Turn what a disk refuses into a UserError that names the folder, what to do, and the
    ``consequence``. Errors of files elsewhere pass through."""
    try:
        yield
    except OSError as error:
        if error.errno not in REFUSALS or not _may_concern(folder, error.filename):
            raise
        text = f"{folder} cannot be written ({os.strerror(error.errno)}): mend that, or give "
        text += "another folder"
        raise UserError("; ".join(filter(None, [text, consequence]))) from None


def _may_concern(folder: Path, name: str | bytes | int | None) -> bool:
    """Whether an error of this file is one of ``folder``, what is in it or a folder above; an
    error that names no file may be."""
    if not isinstance(name, str | bytes):
        return True
    folder, file = folder.absolute(), Path(os.fsdecode(name)).absolute()
    return file.is_relative_to(folder) or folder.is_relative_to(file)


def replace_file(path: Path, content: bytes) -> None:
    """Write a file aside, force it to the disk and rename it: a reader finds the old one
    or the new one, complete, at whatever time of a crash."""
    pending = path.with_name(path.name + ".tmp")
    try:
        with pending.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(pending, path)
    except BaseException:
        pending.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Force the names in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

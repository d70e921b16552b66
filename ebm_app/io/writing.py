"""Writing files to the disk, and the messages where that fails."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ebm_app.io.errors import UserError

#: errors of the disk, and not of the program: what a user can do about each
REMEDIES = {
    errno.ENOSPC: "no space is left on its disk: free some",
    errno.EDQUOT: "the quota of its disk is used up: free some space",
    errno.EFBIG: "the file is larger than its disk takes: give another folder",
    errno.EROFS: "its disk is read-only: give another folder",
    errno.EACCES: "permission is denied: give another folder, or its permission",
    errno.EPERM: "permission is denied: give another folder, or its permission",
    errno.ENOTDIR: "a file stands in the place of a folder: give another folder",
    errno.EEXIST: "a file stands in the place of a folder: give another folder",
    errno.EISDIR: "a folder stands in the place of a file: give another folder",
    errno.ENAMETOOLONG: "the name is too long: give a shorter one",
    errno.ELOOP: "its links run in a circle: give another folder",
    errno.EIO: "the disk failed: give a folder on another",
    errno.ESTALE: "the network disk went away: give a folder on another",
    errno.ENOENT: "the folder has gone: give another",
}


@contextmanager
def explained_write(folder: Path, consequence: str = "") -> Iterator[None]:
    """Turn what a disk refuses into a UserError that names the folder, what to do, and the
    ``consequence``. Errors of files elsewhere pass through."""
    try:
        yield
    except OSError as error:
        if error.errno not in REMEDIES or not _may_concern(folder, error.filename):
            raise
        text = f"{folder} cannot be written: {REMEDIES[error.errno]}"
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

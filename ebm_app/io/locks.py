"""One writer at a time: a lock that its process holds and that the system frees when it ends."""

import fcntl
import os
import socket
import sys
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Self

from ebm_app.io.errors import UserError
from ebm_app.io.fields import shortened
from ebm_app.io.writing import explained_write


class Lock:
    """The file ``path`` as a lock of this process, until ``release`` or the end of the object.

    The file names host and process for those who are refused. It is the system's lock on it that
    counts: a process that was killed leaves the file, and holds nothing.

    Raises:
        UserError: where another holds it, or the folder cannot be written.
    """

    def __init__(self, path: Path) -> None:
        with explained_write(path.parent):
            was_there = path.parent.exists()
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = _open(path)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        self.release = weakref.finalize(self, _release, path, descriptor, was_there)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


def _open(path: Path) -> int:
    """A descriptor that holds the lock on what stands at ``path`` now."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            who = shortened(os.pread(descriptor, 100, 0).decode(errors="replace"))
            os.close(descriptor)
            raise UserError(
                f"{path.parent} is being written by {who or 'another process'}: wait for it, or "
                "give another --output_dir"
            ) from None
        except OSError as error:  # a disk without locks
            print(
                f"the disk of {path.parent} keeps no second writer out ({error.strerror})",
                file=sys.stderr,
            )
        with suppress(FileNotFoundError):
            if os.path.samestat(path.stat(), os.fstat(descriptor)):
                return descriptor
        os.close(descriptor)  # who held it before removed the file between the two calls


def _release(path: Path, descriptor: int, was_there: bool) -> None:
    path.unlink(missing_ok=True)
    os.close(descriptor)
    if not was_there:  # a folder that was made for nothing is removed
        with suppress(OSError):
            path.parent.rmdir()

"""The names of the files that a run leaves, and what is said where they cannot be written."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ebm_app.errors import UserError

METRICS_FILE, RUN_FILE, PREVIEWS = "metrics.jsonl", "run.json", "previews"


@contextmanager
def explained_write(folder: Path) -> Iterator[None]:
    """Turn a full or unwritable disk into a UserError that names the folder and what is left."""
    consequence = "earlier checkpoints are intact"
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(
                f"no space left on the disk of {folder}: free some and resume; {consequence}"
            ) from None
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
            raise UserError(f"{folder} is not writable: {error.strerror}; {consequence}") from None
        raise
